# SPDX-License-Identifier: Apache-2.0
"""The blocks that an engine holds for reuse, as its events tell; the events that tell somebody new the same."""

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from serving.engines.seam.kv_events import BlocksRemoved, BlocksStored, KvEvent

_MAX_RUN = 512  # blocks of one event


class _Block(msgspec.Struct, frozen=True, gc=False):
    """A block; `root` tells apart beginnings of prompts with the same tokens.

    Tens of thousands are held, which the garbage collector would look through while every stream waits.
    """

    block_hash: int
    parent_hash: int | None
    token_bytes: bytes
    root: tuple[str | None, str | None]  # adapter and salt; of a child only the adapter is told
    group: int
    kind: str | None

    @property
    def child_key(self) -> tuple[object, ...]:
        return (self.parent_hash, self.token_bytes, *(() if self.parent_hash is not None else self.root))


class HeldBlocks:
    """The held blocks of one engine. Args: `block_tokens`: of a whole block; 0: the events tell."""

    def __init__(self, block_tokens: int = 0) -> None:
        self._blocks: dict[tuple[int, int], _Block] = {}  # by group and hash
        self._children: dict[tuple[object, ...], int] = {}  # hashes of the main attention's blocks
        self._block_tokens = block_tokens  # of the main attention's

    def copy(self) -> "HeldBlocks":
        """Return the same blocks, for `events` alone, to which nothing happens any more."""
        made = HeldBlocks(self._block_tokens)
        made._blocks = dict(self._blocks)
        return made

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._blocks)

    def hashes(self, group: int = 0) -> set[int]:
        """Return the hashes of a group's blocks."""
        return {block_hash for its_group, block_hash in self._blocks if its_group == group}

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a block, 0 before the first one."""
        return self._block_tokens

    def apply(self, event: KvEvent) -> None:
        """Take an event."""
        if isinstance(event, BlocksStored):
            self._store(event)
        elif isinstance(event, BlocksRemoved):
            for block_hash in event.block_hashes:
                self._remove(event.group, block_hash)
        else:
            self._blocks.clear()
            self._children.clear()

    def _store(self, event: BlocksStored) -> None:
        parent, size = event.parent_hash, event.block_tokens
        token_bytes = array("I", event.token_ids).tobytes()
        width, root = size * array("I").itemsize, (event.adapter, event.salt)
        for index, block_hash in enumerate(event.block_hashes):
            tokens = token_bytes[index * width : (index + 1) * width]
            block = _Block(block_hash, parent, tokens, root, event.group, event.kind)
            self._blocks[event.group, block_hash] = block
            if event.is_main:
                self._block_tokens = max(self._block_tokens, size)  # a shorter one is the beginning of a block
                self._children[block.child_key] = block_hash
            parent = block_hash

    def _remove(self, group: int, block_hash: int) -> None:
        block = self._blocks.pop((group, block_hash), None)
        if block is not None and self._children.get(block.child_key) == block_hash:
            del self._children[block.child_key]

    def prompt_blocks(self, token_ids: Sequence[int], *, adapter: str | None, salt: str | None) -> list[int]:
        """Return the hashes of a prompt's first blocks, as far as they are held.

        Args:
            adapter, salt: of the prompt; an engine that tells neither has blocks without.
        """
        size = self._block_tokens
        if not size:
            return []
        tokens, width = array("I", token_ids).tobytes(), size * array("I").itemsize
        found: list[int] = []
        for end in range(width, len(tokens) + 1, width):
            piece = tokens[end - width : end]
            if found:
                block_hash = self._children.get((found[-1], piece))
            else:
                roots = ((adapter, salt), (adapter, None), (None, None))
                known = (self._children.get((None, piece, *root)) for root in roots)
                block_hash = next((each for each in known if each is not None), None)
            if block_hash is None:
                break
            found.append(block_hash)
        return found

    def events(self) -> Iterator[BlocksStored]:
        """Yield the events after which somebody who knew nothing knows every block; parents come before children."""
        children: dict[tuple[int, int | None], list[_Block]] = {}
        for block in self._blocks.values():
            has_parent = block.parent_hash is not None and (block.group, block.parent_hash) in self._blocks
            children.setdefault((block.group, block.parent_hash if has_parent else None), []).append(block)
        waiting = [[block] for (_, parent), blocks in children.items() if parent is None for block in blocks]
        while waiting:
            run = waiting.pop()
            while len(run) < _MAX_RUN and (nexts := children.get((run[-1].group, run[-1].block_hash))):
                alike, *others = nexts
                waiting += [[other] for other in others]
                if len(alike.token_bytes) != len(run[0].token_bytes):
                    waiting.append([alike])
                    break
                run.append(alike)
            else:
                waiting += [[other] for other in children.get((run[-1].group, run[-1].block_hash), ())]
            yield _event_of(run)


def _event_of(run: Sequence[_Block]) -> BlocksStored:
    first = run[0]
    token_ids = array("I", b"".join(block.token_bytes for block in run)).tolist()
    return BlocksStored(
        [block.block_hash for block in run],
        first.parent_hash,
        token_ids,
        len(first.token_bytes) // array("I").itemsize,
        *first.root,
        first.group,
        first.kind,
    )
