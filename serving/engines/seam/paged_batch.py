# SPDX-License-Identifier: Apache-2.0
"""The in-flight (iteration-level) batch over a paged KV cache: which sequences run in a step, and what they hold.

Blocks are counted, not addressed: there are no keys and values to put into them. Tokens and time are `simulated`'s.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """A request in the batch, or on its way into it."""

    key: int
    num_tokens: int  # tokens known: of the prompt, and of the output so far
    max_num_tokens: int  # with all of its output
    tokens: Iterator[int]  # the output to come
    end_ids: frozenset[int]
    min_num_tokens: int  # an end token counts from here on
    num_cached_tokens: int = 0  # first tokens that need no prefill; lost on preemption
    num_unprocessed: int = 0  # tokens of its prefill that are still to be computed
    num_blocks: int = 0  # 0: the sequence waits
    num_allocated_blocks: int = 0  # since arrival, with blocks of a preempted computation
    num_preemptions: int = 0
    num_free_slots: int = 0  # tokens that still fit into its blocks


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The tokens that one step computes."""

    decoding: list[Sequence]  # one token each
    prefilled: list[Sequence]  # sequences that end their prefill in this step and get a token, too
    num_prefill_tokens: int
    admitted: list[Sequence]  # sequences that begin their prefill in this step


class PagedBatch:
    """The waiting queue, the running batch and the KV blocks between them.

    Sequences are admitted in order of arrival, each with the blocks of all its known tokens, and take one more block
    whenever the last is full. When there is none left, the youngest running sequence gives up all of its own and goes
    back to the front of the queue, to be computed again (preemption by recompute). So `running` and then `waiting` is
    always the order of arrival, and the oldest sequence always gets on: everything that fits alone finishes.
    """

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, num_blocks: int, block_tokens: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._block_tokens = block_tokens
        self.num_blocks = num_blocks
        self.num_free_blocks = num_blocks
        self.num_preemptions = 0
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._prefilling: Sequence | None = None  # in the middle of its prefill; always the last of `running`

    def add(self, sequence: Sequence) -> None:
        """Put a sequence at the end of the queue."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks."""
        if sequence.num_blocks:
            self.running.remove(sequence)
            self._free(sequence)
        else:
            self.waiting.remove(sequence)

    def plan_step(self) -> PlannedStep:
        """Choose the tokens of one step and give them their blocks: decoding first, prefill with what is left."""
        decoding = self._plan_decoding()
        prefilled: list[Sequence] = []
        admitted: list[Sequence] = []
        budget = free_budget = self.max_num_batched_tokens - len(decoding)
        while free_budget and (sequence := self._prefilling or self._admit()):
            if sequence is not self._prefilling:
                admitted.append(sequence)
            num_tokens = min(sequence.num_unprocessed, free_budget)
            sequence.num_unprocessed -= num_tokens
            free_budget -= num_tokens
            self._prefilling = sequence if sequence.num_unprocessed else None
            if sequence.num_unprocessed == 0:
                prefilled.append(sequence)
        return PlannedStep(decoding, prefilled, budget - free_budget, admitted)

    def _plan_decoding(self) -> list[Sequence]:
        decoding: list[Sequence] = []
        for sequence in self.running[: self.max_num_batched_tokens]:
            if sequence is self._prefilling or not self._reserve(sequence):
                break  # all behind it are preempted as well
            decoding.append(sequence)
        return decoding

    def _reserve(self, sequence: Sequence) -> bool:
        """Take a slot of a running sequence, growing it where needed; return False if it has been preempted."""
        if sequence.num_free_slots == 0 and not self._grow(sequence):
            return False
        sequence.num_free_slots -= 1
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Give a running sequence one more block; return False if no block was left to take but its own."""
        if sequence.num_blocks == 0:
            return False  # an older one has preempted it in this step
        while self.num_free_blocks == 0:
            youngest = self.running.pop()
            self._free(youngest)
            self.waiting.appendleft(youngest)
            self.num_preemptions += 1
            youngest.num_preemptions += 1
            if youngest is sequence:
                return False
        self.num_free_blocks -= 1
        sequence.num_blocks += 1
        sequence.num_allocated_blocks += 1
        sequence.num_free_slots += self._block_tokens
        return True

    def _admit(self) -> Sequence | None:
        """Move the first waiting sequence into the batch, if it fits; no sequence overtakes it."""
        if not self.waiting or len(self.running) == self.max_num_seqs:
            return None
        sequence = self.waiting[0]
        num_blocks = -(-sequence.num_tokens // self._block_tokens)
        if num_blocks > self.num_free_blocks:
            return None
        self.running.append(self.waiting.popleft())
        self.num_free_blocks -= num_blocks
        sequence.num_blocks = num_blocks
        sequence.num_allocated_blocks += num_blocks
        sequence.num_free_slots = num_blocks * self._block_tokens - sequence.num_tokens
        sequence.num_unprocessed = sequence.num_tokens - sequence.num_cached_tokens
        sequence.num_cached_tokens = 0
        return sequence

    def _free(self, sequence: Sequence) -> None:
        self.num_free_blocks += sequence.num_blocks
        sequence.num_blocks = sequence.num_free_slots = 0
        if sequence is self._prefilling:
            self._prefilling = None
