# SPDX-License-Identifier: Apache-2.0
"""The requests that OpenVINO must not begin side by side: those that go on from a common cached, partly filled block.

With prefix caching, OpenVINO GenAI 2026.4 gives a new request the blocks of what it continues, a partly filled last one
too. Where two requests get the same one before either has done its prefill, both write their own tokens into it, and
both answers are spoilt (a block is copied before it is written when decoding only: `append_slots` in its
block_manager.hpp). So the second waits until the first has a token; then the block holds other tokens and is not found.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class Lineage(NamedTuple):
    """A prompt among those before it; tokens as hashes of all up to there."""

    whole: int  # hash of the whole prompt
    continued: frozenset[int]  # hashes of earlier prompts that the prompt goes on from


class EarlierPrompts:
    """The prompts of which the cache may still hold the last, partly filled block.

    Args:
        capacity: how many are remembered, the newest; each holds a block of its own.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def lineage_of(self, input_ids: Sequence[int]) -> Lineage:
        """Return the lineage of a prompt of at least one token; takes a few hundred microseconds for 1000 tokens."""
        hashes = list(itertools.accumulate(input_ids, lambda before, token_id: hash((before, token_id)), initial=0))
        whole = hashes.pop()
        return Lineage(whole, frozenset(found for found in hashes if found in self._hashes))

    def note(self, lineage: Lineage) -> None:
        """Remember a prompt that was given to OpenVINO, or of which the generation has just ended."""
        self._hashes[lineage.whole] = None
        self._hashes.move_to_end(lineage.whole)
        if len(self._hashes) > self._capacity:
            self._hashes.popitem(last=False)
