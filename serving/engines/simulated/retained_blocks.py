# SPDX-License-Identifier: Apache-2.0
"""The KV blocks of finished requests that are kept for reuse: of a request that asks for it (`retention_*`), or of all.

A block is known by all tokens up to its end. Kept blocks count as free: when others need the room, the lowest priority
goes first, and among equal priorities the oldest.
"""

import hashlib
import heapq
import itertools
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from serving.engines.seam.base import SamplingParams
from serving.engines.seam.kv_events import BlocksRemoved, BlocksStored, KvEvent
from serving.engines.seam.kv_retention import retained_ranges

_USUAL_PRIORITY = 35  # upstream's, of blocks for which nobody asked


class _Kept(NamedTuple):
    priority: int
    number: int  # in the order in which they were kept
    until_s: float


class RetainedBlocks:
    """The retained blocks of one engine.

    Args:
        block_tokens: tokens of one block.
        are_all_kept: blocks of requests that do not say are kept, too.
        tells_events: whether `take_events` has something to return.
    """

    def __init__(self, block_tokens: int, *, are_all_kept: bool = False, tells_events: bool = False) -> None:
        self._block_tokens = block_tokens
        self._usual = (_USUAL_PRIORITY, None) if are_all_kept else None
        self._tells_events = tells_events
        self._events: list[KvEvent] = []
        # By the tokens' bytes: Python keeps the hash of those, and of a tuple takes it anew each time.
        self._kept: dict[bytes, _Kept] = {}
        self._numbers = itertools.count()

    def num_reusable_tokens(self, token_ids: Sequence[int], *, num_free_blocks: int, now_s: float) -> int:
        """Return how many tokens at the start of a prompt need no prefill; the last always does."""
        if not self._kept:
            return 0
        self._shrink(num_free_blocks, now_s)
        num_blocks = (len(token_ids) - 1) // self._block_tokens
        known = _Tokens(token_ids)
        ends = (i * self._block_tokens for i in range(1, num_blocks + 1))
        reusable = itertools.takewhile(lambda end: known.up_to(end) in self._kept, ends)
        return max(reusable, default=0)

    def keep(self, sampling: SamplingParams, input_ids: list[int], output_ids: list[int], *, now_s: float) -> None:
        """Keep what a finished request asked for; the last token was never in the cache."""
        token_ids = (input_ids + output_ids)[:-1]
        known = _Tokens(token_ids)
        for start in range(0, len(token_ids) - self._block_tokens + 1, self._block_tokens):
            wish = _wish(sampling, start, num_prompt_tokens=len(input_ids)) or self._usual
            if wish is not None:
                priority, duration_ms = wish
                until_s = float("inf") if duration_ms is None else now_s + duration_ms / 1000
                kept = _Kept(priority, next(self._numbers), until_s)
                tokens = known.up_to(start + self._block_tokens)
                if self._tells_events and tokens not in self._kept:
                    self._tell_stored(tokens, token_ids[start : start + self._block_tokens])
                self._kept[tokens] = kept

    def take_events(self) -> list[KvEvent]:
        """Return what was kept and given up since the last call."""
        taken, self._events = self._events, []
        return taken

    def _tell_stored(self, tokens: bytes, token_ids: list[int]) -> None:
        before = tokens[: len(tokens) - self._block_tokens * array("q").itemsize]
        parent_hash = _hash(before) if before else None
        self._events.append(BlocksStored([_hash(tokens)], parent_hash, token_ids, self._block_tokens))

    def _give_up(self, tokens: bytes) -> None:
        del self._kept[tokens]
        if self._tells_events:
            self._events.append(BlocksRemoved([_hash(tokens)]))

    def _shrink(self, num_free_blocks: int, now_s: float) -> None:
        for known in [known for known, kept in self._kept.items() if kept.until_s <= now_s]:
            self._give_up(known)
        for known in heapq.nsmallest(len(self._kept) - num_free_blocks, self._kept, key=self._kept.__getitem__):
            self._give_up(known)


class _Tokens:
    """The tokens of one request, by which its blocks are known."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._bytes = array("q", token_ids).tobytes()

    def up_to(self, end: int) -> bytes:
        """Return what stands for the first `end` tokens."""
        return self._bytes[: end * array("q").itemsize]


def _hash(tokens: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(tokens, digest_size=8).digest(), "big")


def _wish(sampling: SamplingParams, start: int, *, num_prompt_tokens: int) -> tuple[int, int | None] | None:
    """Return the priority and duration in ms for the block that begins at a token; None: it need not be kept."""
    if start >= num_prompt_tokens:
        duration_ms = sampling.retention_decode_duration_ms
        if sampling.retention_decode_priority is None:
            return None
        return sampling.retention_decode_priority, None if duration_ms == -1 else duration_ms
    for one in reversed(retained_ranges(sampling)):  # the last one that covers it counts
        if one.start <= start and (one.end is None or start < one.end):
            return one.priority, one.duration_ms
    return None
