# SPDX-License-Identifier: Apache-2.0
"""The batches in which texts of different length are computed: those of like length together, for padding costs."""

from collections.abc import Iterator, Sequence


def text_batches(lengths: Sequence[int], *, max_texts: int, max_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of the texts of each batch, the shortest first; every text is in one.

    Args:
        lengths: tokens of each text.
        max_texts: of a batch.
        max_tokens: of a batch, padding included; a single text may be longer.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # The newest is the longest, to which the others are padded.
        if batch and (len(batch) == max_texts or (len(batch) + 1) * lengths[index] > max_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
