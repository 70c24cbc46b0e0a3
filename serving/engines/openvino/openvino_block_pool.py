# SPDX-License-Identifier: Apache-2.0
"""The KV blocks of OpenVINO's pipeline as its allocator hands them out: which contents are there, which is lost next.

Blocks are followed, not held: there is no way to ask OpenVINO GenAI 2026.4 for them. A content is the hash of all
tokens up to the end of a block. Source: openvino.genai, block_manager.hpp, BlockAllocator.
"""

import heapq
from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class KvBlock:
    """A block, with how many sequences use it and when its content was last asked for."""

    used_at: int
    content: int = 0
    num_users: int = 0


class BlockPool:
    """The blocks of a pipeline with prefix caching: free, in use, or kept for a request that continues their content.

    A block that nobody uses any more keeps its content until no block is free that has none. Then the one that was
    asked for least recently is overwritten.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(KvBlock(used_at) for used_at in range(num_blocks))
        self._now = num_blocks  # counts what would be moments
        self._kept: dict[int, KvBlock] = {}
        self._by_age: list[tuple[int, int, KvBlock]] = []  # a heap of `_kept`, with entries that no longer hold
        # The newest block of each content, in use or kept. OpenVINO drops an entry with the content of any block that
        # it overwrites, though another block may have the same.
        self._newest: dict[int, KvBlock] = {}

    @property
    def num_free(self) -> int:
        """Return the number of blocks that may be taken, kept ones included."""
        return len(self._free) + len(self._kept)

    @property
    def num_used(self) -> int:
        """Return the number of blocks that sequences use; a block that several share counts once."""
        return self.num_blocks - self.num_free

    def take(self, content: int) -> KvBlock:
        """Return a block for a new content; there must be a free one."""
        if self._free:
            block = self._free.popleft()
        else:
            block = self._least_recent()
            self._newest.pop(block.content, None)
            block.used_at = self._tick()
        block.num_users = 1
        block.content = content
        self._newest[content] = block
        return block

    def find(self, content: int) -> KvBlock | None:
        """Return the block that holds a content, with one more user; None: there is none."""
        block = self._kept.pop(content, None) or self._newest.get(content)
        if block is not None:
            block.num_users += 1
            block.used_at = self._tick()
        return block

    def rename(self, block: KvBlock, content: int) -> None:
        """Give a block in use the content that it has now."""
        if block.content != content:
            self._newest.pop(block.content, None)
            block.content = content
        self._newest[content] = block

    def release(self, block: KvBlock) -> None:
        """Take one user from a block; without any, the block is kept for its content."""
        block.num_users -= 1
        if block.num_users:
            return
        twin = self._kept.pop(block.content, None)
        if twin is not None:
            if self._newest.get(block.content) is twin:
                del self._newest[block.content]
            self._free.append(twin)
        self._kept[block.content] = block
        heapq.heappush(self._by_age, (block.used_at, id(block), block))
        if len(self._by_age) > 2 * self.num_blocks:
            self._by_age = [(kept.used_at, id(kept), kept) for kept in self._kept.values()]
            heapq.heapify(self._by_age)

    def _least_recent(self) -> KvBlock:
        while True:
            used_at, _, block = heapq.heappop(self._by_age)
            if block.used_at == used_at and self._kept.get(block.content) is block:
                del self._kept[block.content]
                return block

    def _tick(self) -> int:
        self._now += 1
        return self._now
