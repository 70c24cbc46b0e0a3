# SPDX-License-Identifier: Apache-2.0
"""The fake's tree of reusable KV blocks, and its events on their way to the reader of `get_kv_cache_events_async`.

Source: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp (storeContextBlocks, releaseBlocks, storeBlocks, freeChildren)
and kvCacheEventManager.cpp; tensorrt_llm/_utils.py, KVCacheEventSerializer.
"""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Block:
    tokens: tuple[int, ...]
    block_hash: int
    parent: "_Block | None"
    below: dict[tuple[int, ...], "_Block"] = field(default_factory=dict)
    last_used: int = 0


class KvEvents:
    """The tree and its events. All calls but the reader's are made under the executor's lock.

    Attributes:
        is_telling_of_descendants: as in versions that take out block by block (`freeChildren` calls itself); others
            tell of the highest block alone (freeBlockAndAllDescendants).
    """

    is_telling_of_descendants = False

    def __init__(self, *, max_size: int, num_blocks: int, block_tokens: int, window: int) -> None:
        """Make the tree of an executor.

        Args:
            max_size: `event_buffer_max_size`; 0: no events.
            num_blocks, block_tokens: of the KV cache.
            window: the longest attention window, `max_seq_len`.
        """
        self._max_size, self._num_blocks, self._block_tokens, self._window = max_size, num_blocks, block_tokens, window
        self._root = _Block((), 0, None)
        self._ids, self._ticks = itertools.count(), itertools.count(1)
        self._queue: list[dict[str, Any]] = []  # of this iteration
        self._events: deque[str] = deque()
        self._tell({"type": "created", "num_blocks_per_cache_level": [num_blocks, 0]})
        self.flush()

    def held(self) -> set[int]:
        """Return the hashes of whole blocks in the tree."""
        return {block.block_hash for block in self._all() if len(block.tokens) == self._block_tokens}

    def store(self, tokens: list[int], *, has_partial: bool) -> None:
        """Store a sequence but for its last token. Args: `has_partial`: with a block that is not full."""
        tokens, size = tokens[:-1], self._block_tokens
        ends = range(size, len(tokens) + (size if has_partial else 1), size)
        pieces = [tuple(tokens[end - size : end]) for end in ends if tokens[end - size : end]]
        at, stored = self._root, []
        for piece in pieces:
            if piece not in at.below:
                at.below[piece] = _Block(piece, hash((at.block_hash, piece)) & (2**64 - 1), at)
                stored.append(at.below[piece])
            at = at.below[piece]
            at.last_used = next(self._ticks)
        if stored:
            parent = stored[0].parent
            assert parent is not None
            self._tell({
                "type": "stored",
                "parent_hash": None if parent is self._root else parent.block_hash,
                "blocks": [_stored_block(block) for block in stored],
            })  # fmt: skip
        self._evict()

    def flush(self) -> None:
        """End an iteration: what it told can be read, and of too much the oldest is dropped."""
        if self._max_size:
            self._events += (json.dumps(event) for event in self._queue)
            while len(self._events) > self._max_size:
                self._events.popleft()
        self._queue.clear()

    async def read(self, timeout: float | None) -> AsyncIterator[dict[str, Any]]:
        """Yield what there is, and what comes within `timeout` seconds of it."""
        while True:
            while self._events:
                yield json.loads(self._events.popleft())
            if not timeout:
                return
            await asyncio.sleep(timeout)
            if not self._events:
                return

    def take_out(self, is_wanted: Callable[[int], bool]) -> None:
        """Take blocks out of the tree, with all that is below them, by their hashes."""
        for block in list(self._all()):
            if is_wanted(block.block_hash):
                self._free(block)

    def _evict(self) -> None:
        while len(blocks := list(self._all())) > self._num_blocks:
            self._free(min(blocks, key=lambda block: block.last_used))

    def _free(self, block: _Block) -> None:
        if block.parent is None or block.parent.below.get(block.tokens) is not block:
            return
        gone = [*_below(block), block] if self.is_telling_of_descendants else [block]
        del block.parent.below[block.tokens]
        hashes = [each.block_hash for each in gone]
        last = self._queue[-1]["data"] if self._queue else {}
        if last.get("type") == "removed":  # those of one iteration come together
            last["block_hashes"] += hashes
        else:
            self._tell({"type": "removed", "block_hashes": hashes})

    def _all(self) -> list[_Block]:
        return _below(self._root)

    def _tell(self, data: dict[str, Any]) -> None:
        self._queue.append({"event_id": next(self._ids), "data": data, "window_size": self._window})


def _below(block: _Block) -> list[_Block]:
    return [each for child in block.below.values() for each in (*_below(child), child)]


def _stored_block(block: _Block) -> dict[str, Any]:
    tokens = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in block.tokens]
    return {
        "type": "stored_block",
        "block_hash": block.block_hash,
        "tokens": tokens,
        "cache_level": 0,
        "priority": 35,
    }
