# SPDX-License-Identifier: Apache-2.0
"""Requests for embeddings and their answers, as typed data and as KServe messages."""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from tritonclient.grpc import service_pb2

from ensemble_configs.render.embedding_tensors import DIMENSIONS, IDS, NUM_TOKENS, PADDING, TEXTS, VECTORS
from trireme.base.errors import RequestError, ServerError

# tritonclient's generated messages have no types.
InferRequest = Any
InferResponse = Any


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a request, or their token ids, and the values of a vector that are asked for; None: all."""

    texts: tuple[str, ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    dimensions: int | None = None

    @property
    def num_rows(self) -> int:
        """Return the number of vectors that are asked for."""
        return len(self.texts) or len(self.ids)

    def part(self, begin: int, end: int) -> "EmbeddingRequest":
        """Return the request of some of the rows."""
        return msgspec.structs.replace(self, texts=self.texts[begin:end], ids=self.ids[begin:end])


class Embeddings(msgspec.Struct, frozen=True):
    """The vectors of a request's rows.

    Attributes:
        vectors: each as its FP32 values, little-endian.
        num_tokens: of each row.
    """

    vectors: tuple[bytes, ...]
    num_tokens: tuple[int, ...]


def encode_embedding_request(request: EmbeddingRequest, *, model: str, request_id: str) -> InferRequest:
    """Return the request as one message.

    Raises:
        RequestError: a text has a lone surrogate, or a token id does not fit its tensor.
    """
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    if request.texts:
        _add(message, TEXTS, "BYTES", [len(request.texts), 1], b"".join(map(_text, request.texts)))
    else:
        longest = max(map(len, request.ids), default=0)
        rows = [(*row, *[PADDING] * (longest - len(row))) for row in request.ids]
        _add(message, IDS, "INT32", [len(rows), longest], b"".join(map(_ids, rows)))
    if request.dimensions is not None:
        values = [request.dimensions] * request.num_rows
        _add(message, DIMENSIONS, "INT32", [len(values), 1], struct.pack(f"<{len(values)}i", *values))
    return message


def decode_embeddings(response: InferResponse) -> Embeddings:
    """Return the vectors of an answer.

    Raises:
        ServerError: outputs that are not what the contract says.
    """
    found = {
        output.name: (list(output.shape), raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False)
    }
    try:
        (num_rows, width), vectors = found[VECTORS]
        _, counts = found[NUM_TOKENS]
        num_tokens = struct.unpack(f"<{num_rows}i", counts)
        rows = struct.unpack(f"{4 * width}s" * num_rows, vectors)
    except (KeyError, ValueError, struct.error) as exc:
        raise ServerError(f"the server sent embeddings that are not of the serving contract: {exc!r}") from exc
    return Embeddings(rows, num_tokens)


def _add(message: InferRequest, name: str, data_type: str, shape: Sequence[int], data: bytes) -> None:
    message.inputs.add(name=name, datatype=data_type, shape=shape)
    message.raw_input_contents.append(data)


def _text(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise RequestError(f"{TEXTS} must be text that UTF-8 can hold; it has a lone surrogate", field=TEXTS) from exc
    return struct.pack("<I", len(data)) + data


def _ids(row: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(row)}i", *row)
    except struct.error as exc:
        raise RequestError(f"{IDS} must fit INT32", field=IDS) from exc
