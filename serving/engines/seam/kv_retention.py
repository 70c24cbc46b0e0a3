# SPDX-License-Identifier: Apache-2.0
"""The KV blocks that a request wants kept: the contract's parallel lists, checked and as ranges."""

from typing import NamedTuple

from serving.engines.seam.base import SamplingParams
from trireme.base.errors import RequestError

_LISTS = ("starts", "ends", "priorities", "durations_ms")


class RetainedRange(NamedTuple):
    """A range ``[start, end)`` of prompt tokens; None: to the end, or without limit."""

    start: int
    end: int | None
    priority: int
    duration_ms: int | None


def retained_ranges(sampling: SamplingParams) -> list[RetainedRange]:
    """Return the ranges of a request, in its order.

    Raises:
        RequestError: lists of different lengths, or a range without a token.
    """
    starts = sampling.retention_token_range_starts
    durations = sampling.retention_token_range_durations_ms or (-1,) * len(starts)
    lists = (starts, sampling.retention_token_range_ends, sampling.retention_token_range_priorities, durations)
    for name, values in zip(_LISTS, lists, strict=True):
        if len(values) != len(starts):
            field = f"retention_token_range_{name}"
            message = f"{field} has {len(values)} values for {len(starts)} starts; send one for each"
            raise RequestError(message, field=field, value=len(values))
    ranges = [
        RetainedRange(start, _or_none(end), priority, _or_none(duration))
        for start, end, priority, duration in zip(*lists, strict=True)
    ]
    for one in ranges:
        if one.end is not None and one.end <= one.start:
            field = "retention_token_range_ends"
            raise RequestError(f"{field} must be above their starts, or -1; got {one.end}", field=field, value=one.end)
    return ranges


def _or_none(value: int) -> int | None:
    return None if value == -1 else value
