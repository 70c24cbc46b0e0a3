# SPDX-License-Identifier: Apache-2.0
"""The engine with no model: real in-flight batching over paged KV blocks, time by a formula, tokens by a rule.

For tests of everything around an engine, and for capacity, overload and autoscaling without a GPU.
"""

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import (
    FIRST_WARM_UP_KEY,
    BatchStats,
    Engine,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.capabilities import RETENTION_FIELDS, Capabilities
from serving.engines.seam.clock import Clock, Pace
from serving.engines.seam.kv_events import KvEvent
from serving.engines.seam.paged_batch import PagedBatch, PlannedStep, Sequence
from serving.engines.seam.request_limits import refuse_unservable
from serving.engines.simulated.fake_model import FakeModel
from serving.engines.simulated.retained_blocks import RetainedBlocks
from serving.engines.simulated.simulated_fault import SimulatedFault
from serving.engines.simulated.simulated_request import SimulatedRequest
from trireme.base.errors import ServerError

_FAILS = ServerError("the simulated engine fails this request, as engine.fault of its deployment asks for")
_NO_MODEL = "it has no model, which this needs; leave it out or serve with another provider"
_SUPPORTED = frozenset({"max_tokens", "min_tokens", "end_id", "temperature", "top_k", "top_p", "seed"})
_SUPPORTED |= {*RETENTION_FIELDS}
CAPABILITIES = Capabilities(
    supported=_SUPPORTED,
    why_not=dict.fromkeys(
        (name for name in SamplingParams.__struct_fields__ if name not in _SUPPORTED),
        _NO_MODEL,
    ),
)


class SimulatedEngine(Engine):
    """An engine without a model; a request's tokens depend on itself and the spec, never on its key or its company.

    A request ends at `max_tokens`, at the `end_id` that it names, or else at that of the spec, which may have none. In
    `hash` mode temperature, `top_k`, `top_p` and the seed of a sampled request give other tokens; `echo` has nothing to
    sample. What needs a model's numbers is refused by name.
    """

    def __init__(self, spec: SimulatedEngineSpec, clock: Clock, *, tells_kv_events: bool = False) -> None:
        self._spec = spec
        self._clock = clock
        self._pace = Pace(clock)
        self._model = FakeModel(spec)
        self._batch = PagedBatch(
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            num_blocks=spec.num_kv_blocks,
            block_tokens=spec.kv_block_tokens,
        )
        self._retained = RetainedBlocks(
            spec.kv_block_tokens, are_all_kept=spec.is_block_reuse, tells_events=tells_kv_events
        )
        self._sequences: dict[int, SimulatedRequest] = {}
        self._num_steps = 0
        self._num_prefill_tokens = 0  # of the newest step
        self._fault = SimulatedFault(spec.fault)
        self._fault.note_load()
        self.info = EngineInfo(
            provider=spec.provider,
            vocab_size=spec.vocab_size,
            max_seq_len=spec.max_seq_len,
            end_ids=() if spec.end_id is None else (spec.end_id,),
            kv_block_tokens=spec.kv_block_tokens,
            num_kv_blocks=spec.num_kv_blocks,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            supported=CAPABILITIES.supported,
            why_not=dict(CAPABILITIES.why_not),
        )

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        refuse_unservable(request, self.info)
        fails = request.key < FIRST_WARM_UP_KEY and self._fault.fails()
        if not self._sequences:
            self._pace.restart()
        running = self._running_of(request)
        running.fails = fails
        self._sequences[request.key] = running
        self._batch.add(running.sequence)

    def cancel(self, key: int) -> None:
        """Stop a request; its blocks are free at once."""
        if running := self._sequences.pop(key, None):
            self._batch.remove(running.sequence)

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Return the times and blocks of a running request."""
        running = self._sequences.get(key)
        return running.perf(self._spec.kv_block_tokens) if running else None

    def step(self) -> list[TokenChunk]:
        """Run one iteration of the batch, which lasts as long as the spec says."""
        if not self._sequences:
            return []
        step = self._batch.plan_step()
        for sequence in step.admitted:
            self._sequences[sequence.key].times.note_scheduled()
        self._num_steps += 1
        self._num_prefill_tokens = step.num_prefill_tokens
        self._pace.spend_s(self._duration_s(step))
        return [self._go_on(sequence) for sequence in (*step.decoding, *step.prefilled)]

    def take_kv_events(self) -> list[KvEvent]:
        """Return what was kept of requests that ended, and what was given up for others that came."""
        return self._retained.take_events()

    @property
    def has_work(self) -> bool:
        """Return whether a request is waiting or running."""
        return bool(self._sequences)

    def stats(self) -> EngineStats:
        """Return the state of the engine."""
        batch = self._batch
        return EngineStats(
            num_running=len(batch.running),
            num_waiting=len(batch.waiting),
            num_steps=self._num_steps,
            num_used_kv_blocks=batch.num_blocks - batch.num_free_blocks,
            num_kv_blocks=batch.num_blocks,
            num_preemptions=batch.num_preemptions,
            batch=BatchStats(num_context_tokens=self._num_prefill_tokens if self._sequences else 0),
        )

    def _go_on(self, sequence: Sequence) -> TokenChunk:
        """Return the next token of a request."""
        running = self._sequences[sequence.key]
        if running.fails:
            self._forget(sequence)
            return TokenChunk(sequence.key, [], error=str(_FAILS))
        running.times.note_token()
        token_id = next(sequence.tokens)
        running.output_ids.append(token_id)
        chunk = TokenChunk(sequence.key, [token_id])
        is_end = token_id in sequence.end_ids and sequence.num_tokens >= sequence.min_num_tokens
        sequence.num_tokens += 1
        if is_end or sequence.num_tokens == sequence.max_num_tokens:
            chunk.finish_reason = FinishReason.STOP if is_end else FinishReason.LENGTH
            chunk.perf = running.perf(self._spec.kv_block_tokens)
            self._finish(running)
        return chunk

    def _finish(self, running: SimulatedRequest) -> None:
        request = running.request
        self._retained.keep(request.sampling, request.input_ids, running.output_ids, now_s=self._clock.now_s())
        self._forget(running.sequence)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.key]
        self._batch.remove(sequence)

    def _duration_s(self, step: PlannedStep) -> float:
        spec = self._spec
        prefill_us = step.num_prefill_tokens * spec.prefill_us_per_token
        decode_us = len(step.decoding) * spec.decode_us_per_seq
        return spec.step_ms * 1e-3 + (prefill_us + decode_us) * 1e-6

    def _running_of(self, request: GenerationRequest) -> SimulatedRequest:
        sampling, num_prompt_tokens = request.sampling, len(request.input_ids)
        num_reused_tokens = self._retained.num_reusable_tokens(
            request.input_ids, num_free_blocks=self._batch.num_free_blocks, now_s=self._clock.now_s()
        )
        sequence = Sequence(
            key=request.key,
            num_tokens=num_prompt_tokens,
            max_num_tokens=num_prompt_tokens + sampling.max_tokens,
            min_num_tokens=num_prompt_tokens + sampling.min_tokens,
            end_ids=frozenset(self.info.end_ids if sampling.end_id is None else (sampling.end_id,)),
            tokens=self._model.tokens_of(request),
            num_cached_tokens=num_reused_tokens,
        )
        return SimulatedRequest(request, sequence, num_reused_tokens)
