# SPDX-License-Identifier: Apache-2.0
"""A request of several prompts: its tensors as one mapping for each row, and rows as the tensors of one request.

Row i of every tensor belongs to prompt i. Rows of different lengths are padded to the longest row: prompts up to their
`input_lengths`, lists of words as upstream does, everything else with 0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ensemble_configs.render.tensors import inputs_of
from serving.requests.number_ranges import out_of_range
from serving.requests.stream_state import CONTEXT_PADDING, KEYS_PER_REQUEST
from trireme.base.errors import RequestError

Array = npt.NDArray[np.generic]
Row = Mapping[str, Array]
T = TypeVar("T")

_PROMPTS = ("QUERY", "MESSAGES", "input_ids")
_KNOWN_AS = {name: row.ensemble for name, row in inputs_of("preprocessing") if row.ensemble}
_WORD_LISTS = ("STOP_WORDS_IDS", "BAD_WORDS_IDS")


def rows_of(tensors: Row) -> list[Row]:
    """Return the tensors of each prompt, ``[1, *dims]``; they share the memory of the request's tensors.

    Raises:
        RequestError: tensors differ in the number of prompts, or there is no prompt, or there are more than 128.
    """
    for array in tensors.values():
        if array.ndim and array.shape[0] != 1:
            return _split(tensors)
    return [tensors]


def engine_rows(tensors: Row) -> list[Row]:
    """Return the tensors of each prompt by the names of `tensorrt_llm`'s inputs; several prompts lose their padding.

    Raises:
        RequestError: `rows_of` refuses the tensors, or a length is larger than its row.
    """
    rows = rows_of(tensors)
    if len(rows) > 1:
        return for_each_row(_unpadded, rows)
    return [_without_filler(tensors)] if "decoder_input_ids" in tensors else rows


def for_each_row(work: Callable[[Row], T], rows: Sequence[Row]) -> list[T]:
    """Return the result of `work` for each row.

    Raises:
        RequestError: a row is refused; among several rows the error has its `batch_index`.
    """
    if len(rows) == 1:
        return [work(rows[0])]
    made = []
    for index, row in enumerate(rows):
        try:
            made.append(work(row))
        except RequestError as exc:
            raise RequestError(exc.message, **exc.facts, batch_index=index) from exc
    return made


def joined(rows: Sequence[Row], *, pad_ids: Sequence[int]) -> dict[str, Array]:
    """Return the outputs of `preprocessing` for several prompts, ``[batch, *dims]``, joined from the outputs of each.

    Args:
        rows: outputs of each prompt; a row without a tensor that another row has gets a filler that asks for nothing.
        pad_ids: id that pads the ids of each prompt.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _padded(name, [row.get(name) for row in rows], pad_ids) for name in names}


def _split(tensors: Row) -> list[Row]:
    sizes = {name: array.shape[0] if array.ndim else 1 for name, array in tensors.items()}
    by = next((name for name in _PROMPTS if name in sizes), next(iter(sizes)))
    size = sizes[by]
    for name, own in sizes.items():
        if own != size:
            field, prompts = _KNOWN_AS.get(name, name), _KNOWN_AS.get(by, by)
            message = f"{field} has a batch of {own}, and {prompts} one of {size}; send a row for each prompt"
            raise RequestError(message, field=field, value=own)
    if not 1 <= size <= KEYS_PER_REQUEST:
        field = _KNOWN_AS.get(by, by)
        message = f"{field} has a batch of {size}; send 1 to {KEYS_PER_REQUEST} prompts in a request"
        raise RequestError(message, field=field, value=size, max=KEYS_PER_REQUEST)
    return [{name: array[index : index + 1] for name, array in tensors.items()} for index in range(size)]


def _unpadded(row: Row) -> Row:
    cut = dict(row)
    _cut(cut, "input_ids", "input_lengths", at_least=1)
    if "prompt_table_extra_ids" in cut and "input_ids" in cut:
        cut["prompt_table_extra_ids"] = cut["prompt_table_extra_ids"][:, : cut["input_ids"].shape[1]]
    _cut(cut, "decoder_input_ids", "decoder_input_lengths", at_least=0)
    return _without_filler(cut)


def _without_filler(row: Row) -> Row:
    """Return the row without a decoder's prompt that is only filler.

    The filler is there because another prompt of the batch has a decoder's prompt, or because `preprocessing` made it.
    Upstream's end-to-end client sends the filler of `preprocessing` on, the padding id alone and without its length,
    and upstream's decoder-only engines do not look at it.
    """
    ids = row.get("decoder_input_ids")
    if ids is None:
        return row
    length = row["decoder_input_lengths"].item() if "decoder_input_lengths" in row else ids.size
    is_padding = ids.size == 1 and "pad_id" in row and ids.item() == row["pad_id"].item()
    if length and not is_padding:
        return row
    return {name: array for name, array in row.items() if name not in ("decoder_input_ids", "decoder_input_lengths")}


def _cut(row: dict[str, Array], name: str, lengths: str, *, at_least: int) -> None:
    """Cut the ids of a row to its length; keep all ids where no length is given."""
    if name not in row or lengths not in row:
        return
    length, width = int(row[lengths].item()), row[name].shape[1]
    if not at_least <= length <= width:
        raise out_of_range(lengths, length, f"{at_least} to {width}, the width of {name}")
    row[name] = row[name][:, :length]


def _padded(name: str, parts: Sequence[Array | None], pad_ids: Sequence[int]) -> Array:
    present = [part for part in parts if part is not None]
    width = max(part.shape[-1] for part in present)
    padded = np.zeros((len(parts), *present[0].shape[1:-1], width), dtype=present[0].dtype)
    if name == "STREAM_CONTEXT":
        padded[:] = CONTEXT_PADDING
    elif name == "INPUT_ID":
        padded[:] = np.array(pad_ids)[:, np.newaxis]
    elif name in _WORD_LISTS:
        padded[:, 1] = -1
    for index, part in enumerate(parts):
        if part is not None:
            padded[index, ..., : part.shape[-1]] = part[0]
    return padded
