# SPDX-License-Identifier: Apache-2.0
"""Which requests OpenVINO must not begin side by side: those that continue the same cached tokens within one KV block.

With prefix caching, OpenVINO GenAI 2026.4 gives a new request the blocks of what it continues, a partly filled last one
too. Where two requests get the same one before either has done its prefill, both write their own tokens into it, and
both answers are spoilt (a block is copied before it is written when decoding only: `append_slots` in its
block_manager.hpp). So the second waits until the first has a token; then the block holds other tokens and is not found.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence


class EarlierPrompts:
    """The prompts of which the cache may still hold the last, partly filled block, as hashes.

    Args:
        capacity: how many are remembered, the newest; each holds a block of its own.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def note(self, input_ids: Sequence[int]) -> None:
        """A prompt has been given to OpenVINO, or its generation has ended just now."""
        *_, whole = _prefix_hashes(input_ids)
        self._hashes[whole] = None
        self._hashes.move_to_end(whole)
        if len(self._hashes) > self._capacity:
            self._hashes.popitem(last=False)

    def continued_by(self, input_ids: Sequence[int]) -> frozenset[int]:
        """Those that `input_ids` begin with and go on from. A generation may have gone on from there too, or not."""
        return frozenset(found for found in _prefix_hashes(input_ids[:-1]) if found in self._hashes)


def _prefix_hashes(input_ids: Sequence[int]) -> Iterator[int]:
    """Of the first token, the first two, and so on."""
    return itertools.accumulate(input_ids, lambda before, token_id: hash((before, token_id)))
