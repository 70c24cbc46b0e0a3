# SPDX-License-Identifier: Apache-2.0
"""The fake's scheduler: the requests that an iteration computes, and what they hold of the KV cache.

Two schedulers in a row, as upstream: the capacity scheduler chooses the requests with blocks (GUARANTEED_NO_EVICT
reserves for `max_tokens` and begins nothing that it could not finish; MAX_UTILIZATION begins what fits now, and pauses
the youngest when the cache is full), the micro batch scheduler divides the tokens of one iteration: decode first, then
the prompts in pieces, or whole ones without chunked prefill.

Source: cpp/tensorrt_llm/batch_manager/{capacityScheduler,microBatchScheduler}.cpp, _torch/pyexecutor/scheduler.py.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """A request as the scheduler knows it."""

    number: int
    num_prompt_tokens: int
    max_tokens: int
    num_beams: int = 1
    num_made: int = 0  # output tokens of each beam
    num_computed: int = 0  # of the prompt; after a pause the output so far is a part of the prompt
    is_prefilled: bool = False  # the next token needs one more token of compute, not a prompt's
    num_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """Return the tokens so far, prompt and output."""
        return self.num_prompt_tokens + self.num_made

    def blocks_of(self, num_tokens: int, block_tokens: int) -> int:
        """Return the blocks for `num_tokens` tokens; beams share the full blocks of the prompt."""
        num_shared = self.num_prompt_tokens // block_tokens if self.num_beams > 1 else 0
        return num_shared + self.num_beams * (-(-num_tokens // block_tokens) - num_shared)


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of an iteration."""

    decoding: list[Sequence]
    prefilled: list[Sequence]  # whose prompt ends in it

    @property
    def producing(self) -> list[Sequence]:
        """Return the requests that get a token."""
        return [*self.decoding, *self.prefilled]


class Scheduler:
    """The queue before the executor, the active requests, and the blocks."""

    def __init__(
        self, *, max_batch_size: int, max_active: int, max_num_tokens: int, num_blocks: int, block_tokens: int
    ) -> None:
        """Make a scheduler.

        Args:
            max_batch_size: sequences of an iteration.
            max_active: requests taken from the queue at a time: a batch for each pipeline stage.
            max_num_tokens: tokens of an iteration.
            num_blocks: KV blocks.
            block_tokens: tokens of a block.
        """
        self.max_batch_size, self.max_active, self.max_num_tokens = max_batch_size, max_active, max_num_tokens
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self.is_chunking = True
        self.is_evicting = False
        self.is_of_one_width = False  # a decode step
        self.waiting: deque[Sequence] = deque()
        self.active: list[Sequence] = []
        self.scheduled: list[Sequence] = []  # of the last iteration
        self.num_paused = 0
        self._num_stranded = 0

    @property
    def running(self) -> list[Sequence]:
        """Return the requests that hold blocks."""
        return [sequence for sequence in self.active if sequence.num_blocks]

    @property
    def num_free_blocks(self) -> int:
        """Return the blocks that no request holds."""
        return self.num_blocks - self._num_stranded - sum(sequence.num_blocks for sequence in self.active)

    def add(self, sequence: Sequence) -> None:
        """Put a request into the queue."""
        self.waiting.append(sequence)

    def fetch(self) -> None:
        """Make as many of the queue active as may be, in order of arrival."""
        while self.waiting and len(self.active) < self.max_active:
            self.active.append(self.waiting.popleft())

    def remove(self, sequence: Sequence, *, is_stranding: bool = False) -> None:
        """Forget a request; its blocks are free, unless they are stranded."""
        if sequence in self.active:
            self.active.remove(sequence)
            self._num_stranded += sequence.num_blocks if is_stranding else 0
        else:
            self.waiting.remove(sequence)

    def plan(self) -> Plan:
        """Choose the requests that are computed, and give them their blocks."""
        decoding, beginning = self._with_capacity()
        if self.is_of_one_width:
            decoding = [sequence for sequence in decoding if sequence.num_beams == decoding[0].num_beams]
        budget = self.max_num_tokens - sum(sequence.num_beams for sequence in decoding)
        prefilled: list[Sequence] = []
        self.scheduled = list(decoding)
        for sequence in beginning:
            num_left = max(1, sequence.num_tokens - sequence.num_computed)
            num_now = self._piece(num_left, budget)
            if num_now == 0:
                break
            if not sequence.num_blocks:
                sequence.num_blocks = sequence.blocks_of(sequence.num_tokens, self.block_tokens)
            budget -= num_now
            sequence.num_computed += num_now
            self.scheduled.append(sequence)
            if num_now == num_left:
                sequence.is_prefilled = True
                prefilled.append(sequence)
        return Plan(decoding, prefilled)

    def _piece(self, num_left: int, budget: int) -> int:
        """Return the tokens of a prompt that fit into this iteration; a piece before the last is of whole blocks."""
        if num_left <= budget:
            return num_left
        return budget // self.block_tokens * self.block_tokens if self.is_chunking else 0

    def _with_capacity(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return the requests that decode, and those whose prompt is computed, in order of arrival."""
        num_reserved = 0
        for sequence in list(self.active):
            if not sequence.num_blocks:
                continue
            if sequence.is_prefilled:
                self._grow(sequence)
            if sequence.num_blocks and not self.is_evicting:
                num_reserved += self._whole(sequence) - sequence.num_blocks
        free = self.num_free_blocks - num_reserved
        chosen = self.running
        for sequence in self.active:
            if sequence.num_blocks:
                continue
            num_needed = sequence.blocks_of(sequence.num_tokens, self.block_tokens)
            num_needed = num_needed if self.is_evicting else self._whole(sequence)
            if len(chosen) >= self.max_batch_size or num_needed > free:
                break  # nobody overtakes
            free -= num_needed
            chosen.append(sequence)
        decoding = [sequence for sequence in chosen if sequence.is_prefilled and sequence.num_blocks]
        return decoding, [sequence for sequence in chosen if sequence not in decoding]

    def _whole(self, sequence: Sequence) -> int:
        return sequence.blocks_of(sequence.num_prompt_tokens + sequence.max_tokens, self.block_tokens)

    def _grow(self, sequence: Sequence) -> None:
        """Give a decoding request the block that its next token needs; where there is none, the youngest pauses."""
        num_needed = sequence.blocks_of(sequence.num_tokens, self.block_tokens)
        while num_needed - sequence.num_blocks > self.num_free_blocks:
            youngest = self.running[-1]
            youngest.num_blocks = youngest.num_computed = 0
            youngest.is_prefilled = False
            self.num_paused += 1
            if youngest is sequence:
                return
        sequence.num_blocks = num_needed
