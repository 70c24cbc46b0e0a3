# SPDX-License-Identifier: Apache-2.0
"""The KV cache events of TensorRT-LLM, `LLM.get_kv_cache_events_async`, in the form of the seam.

Upstream numbers its events and keeps only so many for a reader: a number that is missing means that events are lost,
and nothing that is known holds any more. It tells of the block that is taken out of the tree of blocks, and of what was
below that block in some versions alone. An adapter is not told.

Source: tensorrt_llm/_utils.py, KVCacheEventSerializer; cpp/tensorrt_llm/batch_manager/kvCacheEventManager.cpp and
kvCacheManager.cpp, freeChildren.
"""

import logging

import msgspec

from serving.engines.seam.kv_events import AllBlocksCleared, BlockCopies, BlocksRemoved, BlocksStored, KvEvent
from trireme.base.known_types import known

_log = logging.getLogger("trireme.engine")

BUFFER_SIZE = 16_384  # events that upstream keeps until they are read
_MASK = 2**64 - 1


class _Token(msgspec.Struct):
    token_id: int


class _Block(msgspec.Struct):
    block_hash: int
    tokens: list[_Token]


class _Data(msgspec.Struct):
    type: str
    parent_hash: int | None = None
    blocks: list[_Block] = []
    block_hashes: list[int] = []


class _Row(msgspec.Struct):
    event_id: int
    data: _Data
    window_size: int = 0
    attention_dp_rank: int = 0


class TrtLlmKvEvents:
    """The reader of one engine's events.

    Args:
        block_tokens: of a whole block; a shorter one, the end of a sequence, is not told.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._copies = BlockCopies()  # of the ranks that have caches of their own
        self._children: dict[int, dict[int, list[int]]] = {}  # by rank: those of each block that is held
        self._next_ids: dict[int, int] = {}  # by rank
        self._window = 0  # the longest, which decides how much of a prompt is found

    def read(self, row: dict[str, object]) -> list[KvEvent]:
        """Return the events of a row.

        Raises:
            msgspec.ValidationError: it is none.
        """
        told = msgspec.convert(row, known(_Row))
        events: list[KvEvent] = []
        rank, number = told.attention_dp_rank, told.event_id
        if number != self._next_ids.get(rank, number):
            _log.warning("TensorRT-LLM has dropped KV events: what is held is not known any more")
            self._children.clear()
            events.append(AllBlocksCleared())
        self._next_ids[rank] = number + 1
        match told.data.type:
            case "created":
                self._window = max(self._window, told.window_size)
            case "stored" if told.window_size >= self._window:
                events += self._stored(rank, told.data)
            case "removed" if told.window_size >= self._window:
                gone = [each for block in told.data.block_hashes for each in self._taken_out(rank, block & _MASK)]
                events += [BlocksRemoved(gone)] if gone else []
        return self._copies.first_and_last(events)

    def _stored(self, rank: int, data: _Data) -> list[KvEvent]:
        children = self._children.setdefault(rank, {})
        parent = None if data.parent_hash is None else data.parent_hash & _MASK
        runs: list[KvEvent] = []
        for block in data.blocks:
            if len(block.tokens) != self._block_tokens:
                break  # the last of its sequence
            block_hash = block.block_hash & _MASK
            if block_hash not in children:
                children[block_hash] = []
                if parent in children:
                    children[parent].append(block_hash)
                tokens = [token.token_id for token in block.tokens]
                runs.append(BlocksStored([block_hash], parent, tokens, self._block_tokens))
            parent = block_hash
        return runs

    def _taken_out(self, rank: int, block_hash: int) -> list[int]:
        """Return a block and what is held below it, which nobody finds without it."""
        children = self._children.get(rank, {})
        gone, waiting = [], [block_hash]
        while waiting:
            block = waiting.pop()
            below = children.pop(block, None)
            if below is not None:
                gone.append(block)
                waiting += below
        return gone
