# SPDX-License-Identifier: Apache-2.0
"""The KV cache events of an engine, in one form for all: the blocks that requests can reuse, as they come and go.

A block is stored once, and removed once: an engine that keeps two copies of a block tells of the first that comes and
of the last that goes.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

MAIN_ATTENTION = ("full_attention", "mla_attention", "sink_full_attention")  # vLLM's words


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """A run of blocks that requests can reuse from now on, each the child of the one before it.

    Attributes:
        block_hashes: the engine's names of the blocks, 64 bits without a sign.
        parent_hash: of the block before the first one; None: the run begins a prompt.
        token_ids: of all the blocks, one after the other.
        block_tokens: tokens of each block.
        adapter: name of the adapter whose blocks these are, as requests name it; None: the model's own, or not told.
        salt: what keeps the blocks apart from equal ones, such as a tenant; told with a run that begins a prompt.
        group: of a model with several kinds of attention, whose blocks of one hash are apart.
        kind: of attention, in vLLM's words; None: not told.
    """

    block_hashes: list[int]
    parent_hash: int | None
    token_ids: list[int]
    block_tokens: int
    adapter: str | None = None
    salt: str | None = None
    group: int = 0
    kind: str | None = None

    @property
    def is_main(self) -> bool:
        """Return whether the blocks decide how much of a prompt is found."""
        return self.group == 0 if self.kind is None else self.kind in MAIN_ATTENTION


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """The blocks that no request can reuse any more."""

    block_hashes: list[int]
    group: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    """The event that no block is left, of any group."""


KvEvent = BlocksStored | BlocksRemoved | AllBlocksCleared


class BlockCopies:
    """The number of copies that an engine keeps of each block, for an engine that tells of every copy."""

    def __init__(self) -> None:
        self._copies: Counter[tuple[int, int]] = Counter()

    def first_and_last(self, events: Iterable[KvEvent]) -> list[KvEvent]:
        """Return the events of first copies that come and of last ones that go."""
        found: list[KvEvent] = []
        for event in events:
            if isinstance(event, BlocksStored):
                found += self._first(event)
            elif isinstance(event, BlocksRemoved):
                gone = [block_hash for block_hash in event.block_hashes if self._is_last(event.group, block_hash)]
                if gone:
                    found.append(BlocksRemoved(gone, event.group))
            else:
                self._copies.clear()
                found.append(event)
        return found

    def _is_last(self, group: int, block_hash: int) -> bool:
        key = group, block_hash
        num_left = self._copies[key] - 1
        if num_left > 0:
            self._copies[key] = num_left
        else:
            del self._copies[key]
        return num_left == 0

    def _first(self, event: BlocksStored) -> list[BlocksStored]:
        is_new = []
        for block_hash in event.block_hashes:
            self._copies[event.group, block_hash] += 1
            is_new.append(self._copies[event.group, block_hash] == 1)
        if all(is_new):
            return [event]
        runs, begin = [], 0
        while begin < len(is_new):
            end = begin
            while end < len(is_new) and is_new[end]:
                end += 1
            if end > begin:
                runs.append(part_of(event, begin, end))
            begin = end + 1
        return runs


def part_of(event: BlocksStored, begin: int, end: int) -> BlocksStored:
    """Return the blocks ``[begin, end)`` of a run."""
    size = event.block_tokens
    return msgspec.structs.replace(
        event,
        block_hashes=event.block_hashes[begin:end],
        parent_hash=event.block_hashes[begin - 1] if begin else event.parent_hash,
        token_ids=event.token_ids[begin * size : end * size],
    )
