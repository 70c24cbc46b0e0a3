# SPDX-License-Identifier: Apache-2.0
"""The engine with no model: real in-flight batching over paged KV blocks, time by a formula, tokens by a rule.

For tests of everything around an engine, and for capacity, overload and autoscaling without a GPU.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ensemble_configs.engine_specs import SimulatedEngineSpec
from ensemble_configs.errors import RequestError, SpecError
from serving.engines.base import (
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
from serving.engines.capabilities import Capabilities, Condition
from serving.engines.clock import Clock, Pace
from serving.engines.context_phase import check_context_phase, context_phase_of
from serving.engines.paged_batch import PagedBatch, PlannedStep, Sequence
from serving.engines.request_limits import refuse_unservable
from serving.engines.request_times import RequestTimes
from serving.engines.retained_blocks import RetainedBlocks
from serving.engines.toy_beams import BeamSearch
from serving.engines.toy_hash import NUM_RESERVED_IDS, digest, hash_tokens, how_sampled, prefix_digests
from serving.engines.toy_logits import SharedCandidates, ToyTokens
from serving.engines.toy_output import ToyOutput

# What acts on the logits of `toy_logits`, or is told of them.
_TOY = (
    "return_log_probs", "bad_words", "embedding_bias", "return_context_logits", "return_generation_logits",
    "draft_input_ids",
)  # fmt: skip
_ANOTHER_OUTPUT = Condition("as a change of the output, which does not follow the guide", lambda _: True, "")
CAPABILITIES = Capabilities(
    supported=frozenset(SamplingParams.__struct_fields__),
    why_not={},
    conditions={"guide_type": _ANOTHER_OUTPUT, "guide": _ANOTHER_OUTPUT},  # it knows no text
)


@dataclass(slots=True)
class _Running:
    """A request and what it has made."""

    request: GenerationRequest
    sequence: Sequence
    output: ToyOutput | None = None  # where more than tokens was asked for
    beams: BeamSearch | None = None
    accepted_ids: list[int] | None = None  # drafts, told with the first token
    num_reused_tokens: int = 0
    num_guesses: int = 0  # of lookahead, in each step
    times: RequestTimes = field(default_factory=RequestTimes)
    output_ids: list[int] = field(default_factory=list)
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def note_tokens(self, chunk: TokenChunk) -> None:
        """Count a chunk's tokens."""
        if self.num_guesses and self.output_ids:  # the first comes from the prefill
            self.num_draft_tokens += self.num_guesses
            self.num_accepted_tokens += len(chunk.token_ids) - 1
        self.output_ids += chunk.token_ids

    def perf(self, block_tokens: int) -> PerfMetrics | None:
        """What is told of it at its end."""
        num_blocks, num_reused = self.sequence.num_allocated_blocks, self.num_reused_tokens // block_tokens
        return self.times.perf(
            kv_cache_alloc_new_blocks=num_blocks - num_reused,
            kv_cache_reused_blocks=num_reused,
            kv_cache_alloc_total_blocks=num_blocks,
            total_accepted_draft_tokens=self.num_accepted_tokens,
            total_draft_tokens=self.num_draft_tokens,
        )


class SimulatedEngine(Engine):
    """Deterministic: a request's tokens depend on itself and the spec, never on its key or its company.

    The model has no end token of its own (`info.end_ids` is empty): a request ends at `max_tokens`, or at the `end_id`
    that it names. `hash` honours every parameter in that it changes the output; `echo` has nothing to sample. In both
    modes bias, bans, probabilities, logits, drafts and beams are those of `toy_logits`. Lookahead guesses right each
    time: `lookahead_ngram_size` tokens a step, the same ones. Beams share the blocks of one sequence.
    """

    def __init__(self, spec: SimulatedEngineSpec, clock: Clock) -> None:
        if spec.vocab_size <= NUM_RESERVED_IDS:
            raise SpecError(
                f"engine.vocab_size ({spec.vocab_size}) must be above {NUM_RESERVED_IDS}", field="engine.vocab_size"
            )
        self._spec = spec
        self._clock = clock
        self._pace = Pace(clock)
        self._seeds = random.Random(spec.seed)  # for requests that bring none
        self._batch = PagedBatch(
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            num_blocks=spec.num_kv_blocks,
            block_tokens=spec.kv_block_tokens,
        )
        self._retained = RetainedBlocks(spec.kv_block_tokens)
        self._sequences: dict[int, _Running] = {}
        self._num_steps = 0
        self.info = EngineInfo(
            provider=spec.provider,
            vocab_size=spec.vocab_size,
            max_seq_len=spec.max_seq_len,
            end_ids=(),
            kv_block_tokens=spec.kv_block_tokens,
            num_kv_blocks=spec.num_kv_blocks,
            max_num_seqs=spec.max_num_seqs,
            supported=CAPABILITIES.supported,
            why_not=dict(CAPABILITIES.why_not),
        )

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        refuse_unservable(request, self.info)
        check_context_phase(request)
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
        """Times and blocks of a running request."""
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
        self._pace.spend_s(self._duration_s(step))
        chunks = [self._go_on(sequence, sequence.num_next_tokens) for sequence in step.decoding]
        chunks += [self._go_on(sequence, 1) for sequence in step.prefilled]
        return [chunk for chunk in chunks if chunk is not None]

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self._sequences)

    def stats(self) -> EngineStats:
        """What the engine holds now."""
        batch = self._batch
        return EngineStats(
            num_running=len(batch.running),
            num_waiting=len(batch.waiting),
            num_steps=self._num_steps,
            num_used_kv_blocks=batch.num_blocks - batch.num_free_blocks,
            num_kv_blocks=batch.num_blocks,
        )

    def _go_on(self, sequence: Sequence, num_tokens: int) -> TokenChunk | None:
        """What a request makes in this step; None: nothing to tell yet."""
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

    def _next_tokens(self, running: _Running, num_tokens: int) -> TokenChunk:
        sequence = running.sequence
        chunk = TokenChunk(sequence.key, running.accepted_ids or [])
        running.accepted_ids = None
        for _ in range(num_tokens):
            token_id = next(sequence.tokens, None)
            if token_id is None:
                return _without_a_token(sequence.key)
            chunk.token_ids.append(token_id)
            is_end = token_id in sequence.end_ids and sequence.num_tokens >= sequence.min_num_tokens
            sequence.num_tokens += 1
            if is_end or sequence.num_tokens == sequence.max_num_tokens:
                chunk.finish_reason = FinishReason.STOP if is_end else FinishReason.LENGTH
                break
        if running.output is not None:
            running.output.tell(chunk)
        running.note_tokens(chunk)
        return chunk

    def _next_position(self, running: _Running, search: BeamSearch) -> TokenChunk | None:
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

    def _finish(self, running: _Running, chunk: TokenChunk) -> None:
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

    def _running_of(self, request: GenerationRequest) -> _Running:
        if request.sampling.is_context_only:
            sampling = msgspec.structs.replace(request.sampling, max_tokens=1)
            request = msgspec.structs.replace(request, sampling=sampling)
        sampling, num_prompt_tokens = request.sampling, len(request.input_ids)
        sequence = Sequence(
            key=request.key,
            num_tokens=num_prompt_tokens,
            max_num_tokens=num_prompt_tokens + sampling.max_tokens,
            min_num_tokens=num_prompt_tokens + sampling.min_tokens,
            end_ids=frozenset(self.info.end_ids if sampling.end_id is None else (sampling.end_id,)),
            tokens=iter(()),
            tokens_per_step=sampling.lookahead_ngram_size or 1,
        )
        running = _Running(request, sequence, num_guesses=_num_guesses(sampling))
        self._set_output(running)
        self._skip_prefill(running)
        return running

    def _set_output(self, running: _Running) -> None:
        request, sequence = running.request, running.sequence
        sampling = request.sampling
        how = self._how(sampling)
        sequence.tokens = self._candidates_of(request, how)
        if sampling.beam_width == 1 and not any(getattr(sampling, name) for name in _TOY):
            return
        toy = ToyTokens(
            SharedCandidates(sequence.tokens),
            vocab=range(NUM_RESERVED_IDS, self._spec.vocab_size),
            vocab_size=self._spec.vocab_size,
            bias=sampling.embedding_bias or {},
            bad_words=sampling.bad_words,
            prompt=request.input_ids,
        )
        running.output = ToyOutput(toy, sampling, self._spec.vocab_size, self._prompt_candidates(request, how))
        sequence.tokens = running.output
        if sampling.beam_width > 1:
            running.beams = BeamSearch(toy, sampling, sequence.end_ids)
        elif sampling.draft_input_ids:
            running.accepted_ids = running.output.verify_drafts(sequence.end_ids)
            running.num_draft_tokens = len(sampling.draft_input_ids)
            running.num_accepted_tokens = len(running.accepted_ids)
            sequence.num_tokens += len(running.accepted_ids)  # their keys and values come with the prefill

    def _skip_prefill(self, running: _Running) -> None:
        """What comes from another server, or is still here from another request, is not computed again."""
        input_ids = running.request.input_ids
        if running.request.sampling.context_phase_params is not None:
            running.sequence.num_cached_tokens = len(input_ids) - 1
            return
        running.num_reused_tokens = running.sequence.num_cached_tokens = self._retained.num_reusable_tokens(
            input_ids, num_free_blocks=self._batch.num_free_blocks, now_s=self._clock.now_s()
        )

    def _how(self, sampling: SamplingParams) -> tuple[object, ...]:
        seed = sampling.seed
        if seed is None and not sampling.is_greedy:
            seed = self._seeds.getrandbits(64)
        return how_sampled(sampling, engine_seed=self._spec.seed, seed=seed or 0)

    def _candidates_of(self, request: GenerationRequest, how: tuple[object, ...]) -> Iterator[int]:
        if self._spec.mode == "echo":
            return itertools.cycle([self._real_id(token_id) for token_id in request.input_ids])
        return hash_tokens(digest(how, request.input_ids), self._spec.vocab_size)

    def _prompt_candidates(self, request: GenerationRequest, how: tuple[object, ...]) -> Iterator[int]:
        """What stands out after the first token of the prompt, after the second, and so on."""
        if self._spec.mode == "echo":
            return (self._real_id(token_id) for token_id in [*request.input_ids[1:], request.input_ids[0]])
        states = prefix_digests(how, request.input_ids)
        return (next(hash_tokens(state, self._spec.vocab_size)) for state in states)

    def _real_id(self, token_id: int) -> int:
        """Virtual tokens of a prompt table have no text; the last real one stands for them."""
        return min(token_id, self._spec.vocab_size - 1)


def _num_guesses(sampling: SamplingParams) -> int:
    """Tokens that lookahead tries in a step beside the one that is certain: of its window and the n-grams to verify."""
    sizes = (sampling.lookahead_window_size, sampling.lookahead_verification_set_size)
    if sampling.lookahead_ngram_size is None:
        return 0
    return (sampling.lookahead_ngram_size - 1) * sum(size or 0 for size in sizes)


def _without_a_token(key: int) -> TokenChunk:
    refusal = RequestError("bad_words leave no token to go on with; send fewer", field="bad_words")
    return TokenChunk(key, [], error=str(refusal))
