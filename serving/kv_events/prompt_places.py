# SPDX-License-Identifier: Apache-2.0
"""The beginnings of prompts whose KV blocks are held, by the numbers that gateways have for them.

A gateway knows a prompt by its text alone, and an engine by its tokens. Here both are known: a piece of the text counts
as held while the block is held in which its middle is, by its share of the prompt's bytes; what is behind the last
whole block counts with that one.
"""

from array import array
from collections.abc import Sequence

from serving.engines.seam.base import GenerationRequest
from serving.engines.seam.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from serving.kv_events.held_blocks import HeldBlocks
from serving.kv_events.messages import PrefixesRemoved, PrefixesStored, ToldEvent

_MAX_WAITING = 4096  # prompts of which some blocks are not held yet
_Wanted = tuple[int | None, bytes]  # the block that a prompt waits for: its parent's hash and its tokens


class PromptPlaces:
    """The held beginnings of prompts of one engine.

    Args:
        held: its blocks, brought up to date by the caller before this is told.
    """

    def __init__(self, held: HeldBlocks) -> None:
        self._held = held
        self._blocks: dict[int, int] = {}  # by number: the block that it counts with
        self._numbers: dict[int, list[int]] = {}  # by block: what counts with it
        self._ends: set[int] = set()  # numbers with which a prompt ended
        self._waiting: dict[_Wanted, list[GenerationRequest]] = {}  # the oldest first
        self._num_waiting = 0

    def note_prompts(self, requests: Sequence[GenerationRequest]) -> PrefixesStored | None:
        """Note prompts that have been computed, and return what is held of them and was not; None: nothing is new.

        A prompt whose blocks are not all held yet is looked at again when the next one of them comes.
        """
        new: list[int] = []
        ends: list[int] = []
        for request in requests:
            self._place(request, new, ends)
        return PrefixesStored(new, ends) if new or ends else None

    def note_event(self, event: KvEvent) -> ToldEvent | None:
        """Note an event of blocks, and return what comes or goes with it; None: nothing does, or all goes."""
        match event:
            case BlocksRemoved():
                return self._remove(event.block_hashes)
            case AllBlocksCleared():
                self._blocks.clear()
                self._numbers.clear()
                self._ends.clear()
                return None
            case BlocksStored() if self._waiting:
                first = array("I", event.token_ids[: event.block_tokens]).tobytes()
                waiting = self._waiting.pop((event.parent_hash, first), [])
                self._num_waiting -= len(waiting)
                return self.note_prompts(waiting)
        return None

    def snapshot(self) -> PrefixesStored | None:
        """Return everything that is held; None: nothing is."""
        return PrefixesStored(list(self._blocks), list(self._ends)) if self._blocks else None

    def _remove(self, blocks: Sequence[int]) -> PrefixesRemoved | None:
        gone = []
        for block in blocks:
            for number in self._numbers.pop(block, ()):
                if self._blocks.get(number) == block:
                    del self._blocks[number]
                    self._ends.discard(number)
                    gone.append(number)
        return PrefixesRemoved(gone) if gone else None

    def _place(self, request: GenerationRequest, new: list[int], ends: list[int]) -> None:
        """Give the pieces of a prompt their blocks, as far as these are held."""
        prefix, sampling = request.prefix, request.sampling
        num_tokens = len(request.input_ids) - request.num_output_ids
        if prefix is None or not prefix.numbers:
            return
        adapter = sampling.lora_name
        if adapter is None and sampling.lora_task_id is not None:
            adapter = str(sampling.lora_task_id)
        blocks = self._held.prompt_blocks(
            request.input_ids[:num_tokens], adapter=adapter, salt=request.scheduling.tenant or None
        )
        size = self._held.block_tokens
        if size and num_tokens < size:
            return
        is_whole = bool(size) and len(blocks) == num_tokens // size
        if not is_whole:
            self._wait(request, blocks, size)
        begin = 0
        for number, end in zip(prefix.numbers, prefix.ends, strict=True) if blocks else ():
            index = int((begin + end) / 2 / prefix.num_bytes * num_tokens) // size
            begin = end
            if index < len(blocks) or is_whole:
                self._put(number, blocks[min(index, len(blocks) - 1)], new)
        last = prefix.numbers[-1]
        if is_whole and last not in self._ends:
            self._ends.add(last)
            ends.append(last)

    def _wait(self, request: GenerationRequest, blocks: Sequence[int], size: int) -> None:
        if self._num_waiting == _MAX_WAITING:
            oldest = next(iter(self._waiting))
            self._num_waiting -= len(self._waiting.pop(oldest))
        begin = len(blocks) * size
        tokens = array("I", request.input_ids[begin : begin + size]).tobytes()
        self._waiting.setdefault((blocks[-1] if blocks else None, tokens), []).append(request)
        self._num_waiting += 1

    def _put(self, number: int, block: int, new: list[int]) -> None:
        if self._blocks.get(number) == block:
            return
        if number not in self._blocks:
            new.append(number)
        self._blocks[number] = block
        self._numbers.setdefault(block, []).append(number)
