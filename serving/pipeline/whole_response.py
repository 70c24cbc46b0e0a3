# SPDX-License-Identifier: Apache-2.0
"""The single response of a model that is not decoupled: a row for each prompt of the request, or for each sequence.

A request with one prompt and one sequence has one response anyway. The rows of several responses are in the
order of `batch_index` and `sequence_index`, which name the prompt and the sequence of a row. A tensor has the dims of
its largest row, and shorter rows are padded. A row holds zeros or empty text where only other rows asked for a tensor.
"""

from collections.abc import Sequence

import numpy as np

from serving.engines.seam.packed_array import Array
from serving.requests.stream_state import CONTEXT_PADDING
from serving.requests.tensor_sink import Tensors, TensorSink

_FILLERS = {"output_ids": -1, "token_ids": -1, "stream_state": CONTEXT_PADDING}
_FLAT = "text_output"  # [beams], without a batch dimension


class WholeResponse:
    """The sink that joins the responses to one request into one response, sent with the last of them.

    Args:
        sink: takes the joined response.
    """

    takes_one = True

    def __init__(self, sink: TensorSink) -> None:
        self._sink = sink
        self._parts: list[Tensors] = []
        self.fail = sink.fail
        self.is_cancelled = sink.is_cancelled
        self.named_outputs = sink.named_outputs

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        """Keep a response; send all kept responses as one with the last of them."""
        self._parts.append(tensors)
        if is_final:
            self._sink.send(joined_rows(self._parts), is_final=True)


def joined_rows(parts: Sequence[Tensors]) -> Tensors:
    """Return the responses to a request joined into one, ``[rows, *dims]``; a single response stays as it is."""
    if len(parts) == 1:
        return parts[0]
    rows = [_with_length(part) for part in sorted(parts, key=_place)]
    names = dict.fromkeys(name for row in rows for name in row)
    joined = {name: _padded([row.get(name) for row in rows], _FILLERS.get(name, 0)) for name in names}
    if _FLAT in joined:
        joined[_FLAT] = joined[_FLAT].reshape(-1)
    return joined


def _place(part: Tensors) -> tuple[int, ...]:
    return tuple(int(part[name].item()) if name in part else 0 for name in ("batch_index", "sequence_index"))


def _with_length(part: Tensors) -> Tensors:
    """Return the row with the sequence length, which padding would hide, and with a batch dimension everywhere."""
    row = dict(part)
    if _FLAT in row:
        row[_FLAT] = row[_FLAT][np.newaxis]
    if "output_ids" in row:
        row.setdefault("sequence_length", np.array([[row["output_ids"].shape[2]]], dtype=np.int32))
    return row


def _padded(rows: Sequence[Array | None], filler: int) -> Array:
    present = [row for row in rows if row is not None]
    dims = np.max([row.shape[1:] for row in present], axis=0)
    is_text = present[0].dtype == np.object_
    padded = np.full((len(rows), *dims), b"" if is_text else filler, dtype=present[0].dtype)
    for index, row in enumerate(rows):
        if row is not None:
            padded[(index, *(slice(size) for size in row.shape[1:]))] = row[0]
    return padded
