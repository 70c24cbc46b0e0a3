# SPDX-License-Identifier: Apache-2.0
"""OpenAI's body of `/v1/embeddings` as a request of the serving contract, and the answer's body."""

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from clients.embedding_messages import EmbeddingRequest
from clients.openai_api.answer_deltas import Usage
from clients.openai_api.api_error import ApiError
from clients.openai_api.body_fields import Positive, read_fields

MAX_INPUTS = 2048  # OpenAI's

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Ids = Annotated[list[_Id], msgspec.Meta(min_length=1)]


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body; null means not given."""

    # A text, texts, token ids, or lists of token ids.
    input: _Text | Annotated[list[_Text | _Id | _Ids], msgspec.Meta(min_length=1)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    user: str | None = None  # for the provider's own records: it asks nothing of the answer


class AskedEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The question of one body.

    Attributes:
        model: as the body names it; None: it names none.
        is_base64: vectors are told as the bytes of their values.
    """

    request: EmbeddingRequest
    model: str | None
    is_base64: bool


def embeddings_asked_by(body: Mapping[str, Any]) -> AskedEmbeddings:
    """Return what a body asks for.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    parsed = read_fields(body, EmbeddingsBody, {})
    request = _request(parsed.input, parsed.dimensions)
    if request.num_rows > MAX_INPUTS:
        raise ApiError(
            f"input has {request.num_rows} texts, and a request takes at most {MAX_INPUTS}; send several requests",
            code="invalid_value",
            param="input",
        )
    return AskedEmbeddings(request=request, model=parsed.model, is_base64=parsed.encoding_format == "base64")


def embeddings_answer(vectors: Sequence[bytes], usage: Usage, *, model: str, is_base64: bool) -> dict[str, object]:
    """Return the body of an answer.

    Args:
        vectors: FP32 values of each, little-endian.
    """
    shown = _as_base64 if is_base64 else _as_numbers
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": shown(vector)} for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens},
    }


def _request(given: str | Sequence[str | int | list[int]], dimensions: int | None) -> EmbeddingRequest:
    if isinstance(given, str):
        return EmbeddingRequest(texts=(given,), dimensions=dimensions)
    texts = tuple(each for each in given if isinstance(each, str))
    ids = tuple(each for each in given if isinstance(each, int))
    rows = tuple(tuple(each) for each in given if isinstance(each, list))
    if len(given) == len(texts):
        return EmbeddingRequest(texts=texts, dimensions=dimensions)
    if len(given) == len(ids):
        return EmbeddingRequest(ids=(ids,), dimensions=dimensions)
    if len(given) == len(rows):
        return EmbeddingRequest(ids=rows, dimensions=dimensions)
    raise ApiError(
        "input has texts, token ids or lists of these among each other; send a text, texts, token ids, or lists of "
        "token ids",
        code="invalid_value",
        param="input",
    )


def _as_numbers(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _as_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()
