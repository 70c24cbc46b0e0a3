# SPDX-License-Identifier: Apache-2.0
"""The engine with no model: real in-flight batching over paged KV blocks, time by a formula, tokens by a rule.

For tests of everything around an engine, and for capacity, overload and autoscaling without a GPU.
"""

import hashlib
import itertools
import random
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ensemble_configs.engine_specs import SimulatedEngineSpec
from ensemble_configs.errors import RequestError, SpecError
from serving.engines.base import (
    Engine,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.clock import Clock, Pace
from serving.engines.paged_batch import PagedBatch, PlannedStep, Sequence
from serving.engines.request_limits import NO_DRAFT_LOGITS, refuse_unservable
from serving.engines.request_times import RequestTimes
from serving.engines.simulated_drafts import verified, with_errors
from serving.engines.toy_logits import ToyTokens

# Tokenizers keep their special tokens here; the hash never yields one, so that every output has a text.
NUM_RESERVED_IDS = 16

# What changes the output of greedy generation too, by entering the hash.
_HASHED = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_HASHED_SAMPLED = ("top_p_min", "top_p_decay", "top_p_reset_id")
# What acts on the logits of `toy_logits`.
_TOY = ("return_log_probs", "bad_words", "embedding_bias")
_SUPPORTED = frozenset(
    {"max_tokens", "min_tokens", "temperature", "top_k", "top_p", "seed", "end_id", "draft_input_ids"}.union(
        _HASHED, _HASHED_SAMPLED, _TOY
    )
)
_NO_TEXT = "it makes token ids by a rule and knows no text that a guide could be about; leave it out"
_NO_BEAMS = "it follows one sequence of a request; ask for num_return_sequences instead"
_NO_LOGITS = "it has no logits of every token to return; leave it out"
_WHY_NOT = {
    "guide_type": _NO_TEXT,
    "guide": _NO_TEXT,
    "return_context_logits": _NO_LOGITS,
    "return_generation_logits": _NO_LOGITS,
    "lora_task_id": "it has no weights that an adapter could change; leave it out",
    "num_draft_tokens": "nothing drafts for it; name a draft_engine in the deployment, or leave it out",
    "use_draft_logits": NO_DRAFT_LOGITS,
} | dict.fromkeys(("beam_width", "length_penalty", "early_stopping", "beam_search_diversity_rate"), _NO_BEAMS)
_DEFAULTS = SamplingParams(max_tokens=1)


@dataclass(slots=True)
class _Running:
    """A request and what is told of it at its end."""

    sequence: Sequence
    returns_log_probs: bool
    draft_ids: tuple[int, ...] = ()  # part of its prefill, until they are verified
    num_drafts: int = 0
    num_accepted: int = 0
    times: RequestTimes = field(default_factory=RequestTimes)

    def next_tokens(self) -> Iterator[int]:
        """The tokens of a step: one, or with the drafts that are verified now several. `num_tokens` is the caller's."""
        draft_ids, self.draft_ids = self.draft_ids, ()
        sequence = self.sequence
        sequence.num_tokens -= len(draft_ids)
        sequence.num_free_slots += len(draft_ids)
        for index, token_id in enumerate(verified(sequence.tokens, draft_ids)):
            sequence.num_free_slots -= index > 0  # the one before was a draft, and is in the KV cache
            self.num_accepted += token_id in draft_ids[index : index + 1]
            yield token_id

    def log_prob(self) -> float:
        """Of the token that was just taken, where it was asked for."""
        assert isinstance(self.sequence.tokens, ToyTokens), "who asks for log probabilities gets toy logits"
        return self.sequence.tokens.log_prob

    def perf(self) -> PerfMetrics | None:
        """No block is ever reused: there is nothing in them."""
        num_blocks = self.sequence.num_allocated_blocks
        return self.times.perf(
            kv_cache_alloc_new_blocks=num_blocks,
            kv_cache_reused_blocks=0,
            kv_cache_alloc_total_blocks=num_blocks,
            total_accepted_draft_tokens=self.num_accepted,
            total_draft_tokens=self.num_drafts,
        )


class SimulatedEngine(Engine):
    """Deterministic: a request's tokens depend on itself and the spec, never on its key or its company.

    The model has no end token of its own (`info.end_ids` is empty): a request ends at `max_tokens`, or at the `end_id`
    that it names. `hash` honours sampling in that every parameter changes the output; `echo` has nothing to sample.
    Bad words, embedding bias and log probabilities are those of `toy_logits`, in both modes. Drafts are part of the
    prefill, at whose end they are verified.
    """

    def __init__(self, spec: SimulatedEngineSpec, clock: Clock) -> None:
        if spec.vocab_size <= NUM_RESERVED_IDS:
            raise SpecError(
                f"engine.vocab_size ({spec.vocab_size}) must be above {NUM_RESERVED_IDS}", field="engine.vocab_size"
            )
        self._spec = spec
        self._pace = Pace(clock)
        self._seeds = random.Random(spec.seed)  # for requests that bring none
        self._batch = PagedBatch(
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            num_blocks=spec.num_kv_blocks,
            block_tokens=spec.kv_block_tokens,
        )
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
            supported=_SUPPORTED,
            why_not=_WHY_NOT,
        )

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        refuse_unservable(request, self.info)
        if not self._sequences:
            self._pace.restart()
        sampling, num_prompt_tokens = request.sampling, len(request.input_ids)
        draft_ids = sampling.draft_input_ids[: sampling.max_tokens - 1]  # one token is always its own
        sequence = Sequence(
            key=request.key,
            num_tokens=num_prompt_tokens + len(draft_ids),
            max_num_tokens=num_prompt_tokens + sampling.max_tokens,
            min_num_tokens=num_prompt_tokens + sampling.min_tokens,
            end_ids=frozenset(self.info.end_ids if sampling.end_id is None else (sampling.end_id,)),
            tokens=self._output_of(request),
        )
        self._sequences[request.key] = _Running(
            sequence, sampling.return_log_probs, draft_ids, num_drafts=len(draft_ids)
        )
        self._batch.add(sequence)

    def cancel(self, key: int) -> None:
        """Stop a request; its blocks are free at once."""
        if running := self._sequences.pop(key, None):
            self._batch.remove(running.sequence)

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Times and blocks of a running request."""
        running = self._sequences.get(key)
        return running.perf() if running else None

    def step(self) -> list[TokenChunk]:
        """Run one iteration of the batch, which lasts as long as the spec says."""
        if not self._sequences:
            return []
        step = self._batch.plan_step()
        for sequence in step.admitted:
            self._sequences[sequence.key].times.note_scheduled()
        self._num_steps += 1
        self._pace.spend_s(self._duration_s(step))
        return [self._next_tokens(sequence) for sequence in itertools.chain(step.decoding, step.prefilled)]

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
            num_preemptions=batch.num_preemptions,
        )

    def _next_tokens(self, sequence: Sequence) -> TokenChunk:
        running = self._sequences[sequence.key]
        chunk = TokenChunk(sequence.key, [], log_probs=[] if running.returns_log_probs else None)
        for token_id in running.next_tokens():
            is_end = token_id in sequence.end_ids and sequence.num_tokens >= sequence.min_num_tokens
            sequence.num_tokens += 1
            chunk.token_ids.append(token_id)
            if chunk.log_probs is not None:
                chunk.log_probs.append(running.log_prob())
            if is_end or sequence.num_tokens == sequence.max_num_tokens:
                chunk.finish_reason = FinishReason.STOP if is_end else FinishReason.LENGTH
                break
        if not chunk.token_ids:
            self._forget(sequence)
            refusal = RequestError("bad_words leave no token to go on with; send fewer", field="bad_words")
            return TokenChunk(sequence.key, [], error=str(refusal))
        running.times.note_token()
        if chunk.finish_reason is not None:
            chunk.perf = running.perf()
            self._forget(sequence)
        return chunk

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.key]
        self._batch.remove(sequence)

    def _duration_s(self, step: PlannedStep) -> float:
        spec = self._spec
        prefill_us = step.num_prefill_tokens * spec.prefill_us_per_token
        decode_us = len(step.decoding) * spec.decode_us_per_seq
        return spec.step_ms * 1e-3 + (prefill_us + decode_us) * 1e-6

    def _output_of(self, request: GenerationRequest) -> Iterator[int]:
        """What follows the output that the request brings along."""
        num_prompt_tokens = len(request.input_ids) - request.num_output_ids
        tokens = self._whole_output_of(request.input_ids[:num_prompt_tokens], request.sampling)
        for _ in range(request.num_output_ids):
            next(tokens, None)
        return tokens

    def _whole_output_of(self, prompt: list[int], sampling: SamplingParams) -> Iterator[int]:
        vocab_size = self._spec.vocab_size
        vocab = range(NUM_RESERVED_IDS, vocab_size)
        candidates = self._candidates_of(prompt, sampling)
        if self._spec.error_rate:
            candidates = with_errors(candidates, self._spec.error_rate, vocab)
        if not any(getattr(sampling, name) for name in _TOY):
            return candidates
        return ToyTokens(
            candidates,
            vocab=vocab,
            vocab_size=vocab_size,
            bias=sampling.embedding_bias or {},
            bad_words=sampling.bad_words,
            prompt=prompt,
        )

    def _candidates_of(self, prompt: list[int], sampling: SamplingParams) -> Iterator[int]:
        if self._spec.mode == "echo":
            return itertools.cycle(prompt)
        how: tuple[object, ...] = (self._spec.seed,)
        if not sampling.is_greedy:
            seed = self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed
            how += (seed, sampling.temperature, sampling.top_k, sampling.top_p, *_asked_for(sampling, _HASHED_SAMPLED))
        how += _asked_for(sampling, _HASHED)
        return hash_tokens(_digest(how, prompt), self._spec.vocab_size)


def hash_tokens(state: int, vocab_size: int) -> Iterator[int]:
    """An endless sequence of token ids in [NUM_RESERVED_IDS, vocab_size), always the same for one 64-bit `state`.

    Source: Knuth's MMIX generator, the upper bits.
    """
    num_ids = vocab_size - NUM_RESERVED_IDS
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        yield NUM_RESERVED_IDS + (state >> 33) % num_ids


def _asked_for(sampling: SamplingParams, names: Iterable[str]) -> tuple[object, ...]:
    """Those of the parameters that are not at their defaults, with their names."""
    values = ((name, getattr(sampling, name)) for name in names)
    return tuple((name, value) for name, value in values if value != getattr(_DEFAULTS, name))


def _digest(how: tuple[object, ...], input_ids: Iterable[int]) -> int:
    digest = hashlib.blake2b(repr(how).encode(), digest_size=8)
    digest.update(array("q", input_ids))
    return int.from_bytes(digest.digest(), "little")
