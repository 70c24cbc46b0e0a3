# SPDX-License-Identifier: Apache-2.0
"""The account of an engine's steps, for any provider: counts, times and tokens read, summed up in the engine's process.

The account costs a pass over a step's chunks and one question for the engine's stats; it never goes through the running
requests. The chunks give the number of steps, their times and the tokens read:

- A step counts as the engine counts it (`EngineStats.num_steps`): TensorRT-LLM's iterations go on beside the calls of
  `step`, which take what has come in. Time counts in every call with work to do.
- A step is a prefill step if a request of the batch had no token yet, so a mixed step is one, too. Any other step only
  decodes.
- Decoding sequences read their context once a step: the prompt and the tokens made so far. The chunks keep the sum over
  all sequences: plus the prompt at the first token, plus each token made, minus the whole context at the end.
- The work beside one request is the difference of two sums: at its last token less at its first.

A request that an engine has preempted by itself counts as decoding until it goes on; engines report only the number of
preemptions.
"""

from copy import copy
from dataclasses import dataclass

import msgspec

from serving.engines.seam.base import (
    BatchStats,
    Engine,
    EngineCosts,
    EngineStats,
    GenerationRequest,
    StepStats,
    StepWork,
    TokenChunk,
)
from serving.engines.seam.clock import Clock
from serving.engines.seam.wrapped_engine import WrappedEngine


@dataclass(slots=True)
class _Sequence:
    num_prompt_tokens: int
    num_context_tokens: int = 0  # that it reads in a step; 0: it has no token yet
    tells_perf: bool = False
    prefill_seqs: int = 0  # in the batch at its first token
    sums_at_first: StepStats | None = None  # of all steps up to that


class AccountedEngine(WrappedEngine):
    """An engine with an account of its steps; it passes every call through to the inner engine.

    It adds `steps` to the stats, `costs` to the engine's description, and `perf` to each chunk of the requests that ask
    for it.
    """

    def __init__(self, engine: Engine, clock: Clock, costs: EngineCosts | None = None) -> None:
        super().__init__(engine, msgspec.structs.replace(engine.info, costs=costs))
        self._clock = clock
        self._sequences: dict[int, _Sequence] = {}
        self._num_decoding = 0
        self._num_context_tokens = 0  # of all that decode
        self._num_reused_blocks: int | None = None  # in all; None: the engine has reported none
        self._num_seen_steps = self._num_steps_before = engine.stats().num_steps  # of its warm-up
        self._sums = StepStats()

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        self._engine.add(request)
        self._sequences[request.key] = _Sequence(len(request.input_ids), tells_perf=request.tells_perf)

    def cancel(self, key: int) -> None:
        """Stop a request."""
        self._engine.cancel(key)
        self._forget(key)

    def step(self) -> list[TokenChunk]:
        """Run one iteration, and add its work to the account."""
        if not self._engine.has_work:
            return self._engine.step()
        began_s = self._clock.now_s()
        chunks = self._engine.step()
        self._note(chunks, self._clock.now_s() - began_s)
        return chunks

    def _note(self, chunks: list[TokenChunk], duration_s: float) -> None:
        stats = self._engine.stats()
        num_steps, self._num_seen_steps = stats.num_steps - self._num_seen_steps, stats.num_steps
        num_decoding, num_context_tokens = self._num_decoding, self._num_context_tokens  # as the step began
        firsts, ended, num_ended = list[_Sequence](), list[tuple[TokenChunk, _Sequence]](), 0
        sums, sequences, num_output_tokens, num_decoded_tokens = self._sums, self._sequences, 0, 0
        for chunk in chunks:
            num_new = len(chunk.token_ids)
            num_output_tokens += num_new
            is_last = chunk.finish_reason is not None or chunk.error is not None
            num_ended += is_last
            if (sequence := sequences.get(chunk.key)) is None:
                continue
            if sequence.num_context_tokens and not sequence.tells_perf:  # nearly all: no call for each of them
                sequence.num_context_tokens += num_new
                num_decoded_tokens += num_new
            elif self._take(chunk, sequence):
                firsts.append(sequence)
            if is_last:
                self._forget(chunk.key)
                ended.append((chunk, sequence))
        sums.num_output_tokens += num_output_tokens
        self._num_context_tokens += num_decoded_tokens
        num_seqs = stats.num_running + num_ended
        sums.num_steps += num_steps
        sums.steps_s += duration_s
        if firsts or num_seqs > num_decoding:
            sums.num_prefill_steps += num_steps
            sums.prefill_steps_s += duration_s
        sums.num_kv_read_tokens += num_steps * num_context_tokens
        sums.num_batch_seqs += num_steps * num_seqs
        for sequence in firsts:
            sequence.prefill_seqs, sequence.sums_at_first = num_seqs, copy(sums)
        for chunk, sequence in ended:
            chunk.work = _work_of(sequence, sums)

    def _take(self, chunk: TokenChunk, sequence: _Sequence) -> bool:
        """Count a chunk of any request; return whether its tokens are the request's first ones."""
        if sequence.tells_perf and chunk.perf is None:
            chunk.perf = self._engine.perf_of(chunk.key)
        num_new = len(chunk.token_ids)
        is_first = bool(num_new) and not sequence.num_context_tokens
        if is_first:
            num_new += sequence.num_prompt_tokens
            self._sums.num_prompt_tokens += sequence.num_prompt_tokens - self._num_reused_tokens(chunk)
            self._num_decoding += 1
        sequence.num_context_tokens += num_new
        self._num_context_tokens += num_new
        return is_first

    def _num_reused_tokens(self, chunk: TokenChunk) -> int:
        perf = chunk.perf or self._engine.perf_of(chunk.key)
        num_tokens = None if perf is None else perf.cached_tokens(self.info.kv_block_tokens)
        if num_tokens is None:
            return 0
        num_blocks = num_tokens // self.info.kv_block_tokens  # whole ones
        self._num_reused_blocks = (self._num_reused_blocks or 0) + num_blocks
        return num_tokens

    def _forget(self, key: int) -> None:
        sequence = self._sequences.pop(key, None)
        if sequence is not None and sequence.num_context_tokens:
            self._num_decoding -= 1
            self._num_context_tokens -= sequence.num_context_tokens

    def stats(self) -> EngineStats:
        """Return the engine's stats with the account of its steps."""
        stats = self._engine.stats()
        return msgspec.structs.replace(
            stats,
            num_steps=stats.num_steps - self._num_steps_before,
            steps=copy(self._sums),
            batch=self._batch(stats),
        )

    def _batch(self, stats: EngineStats) -> BatchStats:
        """Return the engine's own figures of its batch, completed from the chunks where the engine reports none."""
        told = stats.batch or BatchStats()
        if told.num_generation_requests is not None and told.num_reused_kv_blocks is not None:
            return told
        num_generating = min(self._num_decoding, stats.num_running)
        known = {
            "num_context_requests": stats.num_running - num_generating,
            "num_generation_requests": num_generating,
            "num_reused_kv_blocks": self._num_reused_blocks,
        }
        missing = {name: value for name, value in known.items() if getattr(told, name) is None}
        return msgspec.structs.replace(told, **missing)


def _work_of(sequence: _Sequence, sums: StepStats) -> StepWork | None:
    """Return the work beside a sequence that has ended; None: it has had no token."""
    begin = sequence.sums_at_first
    if begin is None:
        return None
    num_steps = sums.num_steps - begin.num_steps
    if not num_steps:
        return StepWork(sequence.prefill_seqs)
    return StepWork(
        sequence.prefill_seqs,
        (sums.num_batch_seqs - begin.num_batch_seqs) / num_steps,
        (sums.num_prompt_tokens - begin.num_prompt_tokens) / num_steps,
        (sums.num_kv_read_tokens - begin.num_kv_read_tokens) / num_steps,
    )
