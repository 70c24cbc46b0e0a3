# SPDX-License-Identifier: Apache-2.0
"""The inputs of a request for embeddings, as its tensors have them; what is wrong is refused by name.

A request holds texts or token ids, one in each row. An error names the row by `index`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensemble_configs.render.embedding_tensors import DIMENSIONS, IDS, PADDING, TEXTS
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from serving.requests.tensor_sink import Tensors
from trireme.base.errors import RequestError


class EmbeddingInputs(NamedTuple):
    """The inputs of a request.

    Attributes:
        texts: of each row; empty: there are token ids.
        ids: of each row, as the client has made them, ``[num_tokens] int32``; empty: there are texts.
        dimensions: values of a vector that are asked for; None: all.
    """

    texts: list[str]
    ids: list[NDArray[np.int32]]
    dimensions: int | None


def read_inputs(tensors: Tensors, spec: EmbeddingModelSpec, *, width: int, vocab_size: int) -> EmbeddingInputs:
    """Return the inputs of a request.

    Args:
        width: values of the model's vectors.
        vocab_size: tokens of the model.

    Raises:
        RequestError: neither texts nor token ids, or both; an empty or broken row; dimensions that the model lacks.
    """
    given = [name for name in (TEXTS, IDS) if name in tensors]
    if len(given) != 1:
        got = "both" if given else "neither"
        raise RequestError(f"{TEXTS} or {IDS} must be given, got {got}; send one of the two", field=TEXTS)
    dimensions = _dimensions(tensors, spec, width)
    if given == [TEXTS]:
        return EmbeddingInputs([_text(index, raw) for index, raw in enumerate(tensors[TEXTS].flat)], [], dimensions)
    rows = np.asarray(tensors[IDS], np.int32)
    return EmbeddingInputs([], [_ids(index, row, spec, vocab_size) for index, row in enumerate(rows)], dimensions)


def refuse_length(num_tokens: int, index: int, spec: EmbeddingModelSpec, *, field: str) -> RequestError:
    """Return the refusal of a row with too many tokens."""
    return RequestError(
        f"{field} has {num_tokens} tokens, and {spec.name} takes at most {spec.max_tokens}; shorten it, or send its "
        "parts",
        field=field,
        index=index,
        value=num_tokens,
        max=spec.max_tokens,
    )


def _text(index: int, raw: object) -> str:
    assert isinstance(raw, bytes), "Triton's strings are bytes"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise RequestError(
            f"{TEXTS} is not UTF-8 at byte {exc.start} ({exc.reason}); send UTF-8",
            field=TEXTS,
            index=index,
            byte=exc.start,
        ) from exc
    if not text:
        raise RequestError(f"{TEXTS} is empty; send at least one character", field=TEXTS, index=index)
    return text


def _ids(index: int, row: NDArray[np.int32], spec: EmbeddingModelSpec, vocab_size: int) -> NDArray[np.int32]:
    end = len(row)
    while end and row[end - 1] == PADDING:
        end -= 1
    ids = row[:end]
    if not end:
        raise RequestError(f"{IDS} is empty; send at least one token", field=IDS, index=index)
    if end > spec.max_tokens:
        raise refuse_length(end, index, spec, field=IDS)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if len(wrong):
        raise RequestError(
            f"{IDS} must be from 0 to {vocab_size - 1}, the tokens of {spec.name}, got {wrong[0]}; send ids of this "
            "model's tokenizer, or the text",
            field=IDS,
            index=index,
            value=int(wrong[0]),
            vocab_size=vocab_size,
        )
    return ids


def _dimensions(tensors: Tensors, spec: EmbeddingModelSpec, width: int) -> int | None:
    if DIMENSIONS not in tensors:
        return None
    asked: set[int] = set(np.asarray(tensors[DIMENSIONS], np.int32).flatten().tolist())
    if len(asked) > 1:
        raise RequestError(
            f"{DIMENSIONS} must be the same for all rows of a request, got {sorted(asked)}; send several requests",
            field=DIMENSIONS,
        )
    if not asked:
        return None
    [value] = asked
    if value == width:
        return None
    if not spec.is_truncatable:
        raise RequestError(
            f"{DIMENSIONS} must be {width} of {spec.name}, got {value}: the model was not trained for shorter vectors; "
            f"leave {DIMENSIONS} out",
            field=DIMENSIONS,
            value=value,
        )
    if not 1 <= value <= width:
        raise RequestError(
            f"{DIMENSIONS} must be from 1 to {width}, got {value}", field=DIMENSIONS, value=value, max=width
        )
    return value
