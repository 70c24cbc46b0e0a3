# SPDX-License-Identifier: Apache-2.0
"""The engine with no model: real in-flight batching over paged KV blocks, time by a formula, tokens by a rule.

For tests of everything around an engine, and for capacity, overload and autoscaling without a GPU.
"""

import msgspec

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import (
    FIRST_WARM_UP_KEY,
    BatchStats,
    Engine,
    EngineInfo,
    EngineStats,
    ExtraOutputs,
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.capabilities import Capabilities, Condition
from serving.engines.seam.clock import Clock, Pace
from serving.engines.seam.paged_batch import PagedBatch, PlannedStep, Sequence
from serving.engines.seam.request_limits import refuse_unservable
from serving.engines.seam.retained_blocks import RetainedBlocks
from serving.engines.simulated.context_phase import check_context_phase, context_phase_of
from serving.engines.simulated.fake_beams import BeamSearch
from serving.engines.simulated.fake_model import FakeModel
from serving.engines.simulated.fake_output import FakeOutput
from serving.engines.simulated.simulated_fault import SimulatedFault
from serving.engines.simulated.simulated_request import SimulatedRequest
from trireme.base.errors import RequestError

_ANOTHER_OUTPUT = Condition("as a change of the output, which does not follow the guide", lambda _: True, "")
_NO_DRAFTS = "nothing drafts for it; draft_input_ids of tensorrt_llm takes a client's own drafts, or leave it out"
CAPABILITIES = Capabilities(
    supported=frozenset(SamplingParams.__struct_fields__) - {"num_draft_tokens", "use_draft_logits"},
    why_not={"num_draft_tokens": _NO_DRAFTS, "use_draft_logits": _NO_DRAFTS},
    conditions={
        "guide_type": _ANOTHER_OUTPUT,  # the engine knows no text
        "guide": _ANOTHER_OUTPUT,
    },
)


class SimulatedEngine(Engine):
    """An engine without a model; a request's tokens depend on itself and the spec, never on its key or its company.

    The model has no end token of its own (`info.end_ids` is empty): a request ends at `max_tokens`, or at the `end_id`
    that it names. `hash` honours every parameter in that it changes the output; `echo` has nothing to sample. In both
    modes bias, bans, probabilities, logits, drafts and beams are those of `fake_logits`. Drafts are part of the
    prefill, at whose end they are verified. Lookahead guesses right each time: `lookahead_ngram_size` tokens a step,
    always the same ones. Beams share the blocks of one sequence.
    """

    def __init__(self, spec: SimulatedEngineSpec, clock: Clock) -> None:
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
        self._retained = RetainedBlocks(spec.kv_block_tokens)
        self._sequences: dict[int, SimulatedRequest] = {}
        self._num_steps = 0
        self._num_prefill_tokens = 0  # of the newest step
        self._fault = SimulatedFault(spec.fault)
        self._fault.note_load()
        unmet = CAPABILITIES.unmet(spec)
        self.info = EngineInfo(
            provider=spec.provider,
            vocab_size=spec.vocab_size,
            max_seq_len=spec.max_seq_len,
            end_ids=(),
            kv_block_tokens=spec.kv_block_tokens,
            num_kv_blocks=spec.num_kv_blocks,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            supported=CAPABILITIES.supported - unmet.keys(),
            why_not={**CAPABILITIES.why_not, **unmet},
        )

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        refuse_unservable(request, self.info)
        check_context_phase(request)
        if request.key < FIRST_WARM_UP_KEY:
            self._fault.note_request()
        if not self._sequences:
            self._pace.restart()
        running = self._running_of(request)
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
        chunks = [self._go_on(sequence, sequence.num_next_tokens) for sequence in step.decoding]
        chunks += [self._go_on(sequence, 1) for sequence in step.prefilled]
        return [chunk for chunk in chunks if chunk is not None]

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

    def _go_on(self, sequence: Sequence, num_tokens: int) -> TokenChunk | None:
        """Return what a request makes in this step; None: nothing to tell yet."""
        running = self._sequences[sequence.key]
        running.times.note_token()
        if running.beams is None:
            chunk = self._next_tokens(running, num_tokens)
        elif (found := self._next_position(running, running.beams)) is None:
            return None
        else:
            chunk = found
        if chunk.finish_reason is not None:
            self._finish(running, chunk)
        elif chunk.error is not None:
            self._forget(sequence)
        return chunk

    def _next_tokens(self, running: SimulatedRequest, num_tokens: int) -> TokenChunk:
        sequence = running.sequence
        chunk = TokenChunk(sequence.key, [])
        for token_id in running.next_tokens(num_tokens):
            chunk.token_ids.append(token_id)
            is_end = token_id in sequence.end_ids and sequence.num_tokens >= sequence.min_num_tokens
            sequence.num_tokens += 1
            if is_end or sequence.num_tokens == sequence.max_num_tokens:
                chunk.finish_reason = FinishReason.STOP if is_end else FinishReason.LENGTH
                break
        if not chunk.token_ids:
            return _without_a_token(sequence.key)
        if running.output is not None:
            running.output.tell(chunk)
        running.note_tokens(chunk)
        return chunk

    def _next_position(self, running: SimulatedRequest, search: BeamSearch) -> TokenChunk | None:
        running.sequence.num_tokens += 1
        if not search.advance():
            return None
        beams = search.beams(self._spec.vocab_size)
        if not beams:
            return _without_a_token(running.sequence.key)
        best = beams[0]
        extras = ExtraOutputs(beams)
        if running.output is not None:
            extras.context_logits = running.output.take_context_logits()
        running.output_ids = best.token_ids
        return TokenChunk(
            running.sequence.key, best.token_ids, search.finish_reason(best), log_probs=best.log_probs, extras=extras
        )

    def _finish(self, running: SimulatedRequest, chunk: TokenChunk) -> None:
        request = running.request
        chunk.perf = running.perf(self._spec.kv_block_tokens)
        if request.sampling.is_context_only:
            chunk.extras = chunk.extras or ExtraOutputs()
            chunk.extras.context_phase_params = context_phase_of(request.input_ids, running.output_ids)
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
        if request.sampling.is_context_only:
            sampling = msgspec.structs.replace(request.sampling, max_tokens=1)
            request = msgspec.structs.replace(request, sampling=sampling)
        sampling, num_prompt_tokens = request.sampling, len(request.input_ids)
        # One token is always its own; and beams are searched, whatever was drafted.
        draft_ids = sampling.draft_input_ids[: sampling.max_tokens - 1] if sampling.beam_width == 1 else ()
        sequence = Sequence(
            key=request.key,
            num_tokens=num_prompt_tokens + len(draft_ids),
            max_num_tokens=num_prompt_tokens + sampling.max_tokens,
            min_num_tokens=num_prompt_tokens + sampling.min_tokens,
            end_ids=frozenset(self.info.end_ids if sampling.end_id is None else (sampling.end_id,)),
            tokens=self._model.output_of(request),
            tokens_per_step=sampling.lookahead_ngram_size or 1,
        )
        running = SimulatedRequest(request, sequence, draft_ids=draft_ids, num_draft_tokens=len(draft_ids))
        if isinstance(sequence.tokens, FakeOutput):
            running.output = sequence.tokens
            if sampling.beam_width > 1:
                running.beams = running.output.begin_search(sequence.end_ids)
        self._skip_prefill(running)
        return running

    def _skip_prefill(self, running: SimulatedRequest) -> None:
        """Skip the prefill of tokens that come from another server, or are still here from another request."""
        input_ids = running.request.input_ids
        if running.request.sampling.context_phase_params is not None:
            running.sequence.num_cached_tokens = len(input_ids) - 1
            return
        running.num_reused_tokens = running.sequence.num_cached_tokens = self._retained.num_reusable_tokens(
            input_ids, num_free_blocks=self._batch.num_free_blocks, now_s=self._clock.now_s()
        )


def _without_a_token(key: int) -> TokenChunk:
    refusal = RequestError("bad_words leave no token to go on with; send fewer", field="bad_words")
    return TokenChunk(key, [], error=str(refusal))
