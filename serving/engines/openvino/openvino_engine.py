# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI continuous batching behind the seam, on the CPU.

OpenVINO batches, pages and preempts. This module maps requests, drives the pipeline and puts back what it drops; what
may not begin yet waits here, and `openvino_admission` says what.
"""

import contextlib
import logging
from collections import deque

import msgspec

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.openvino.openvino_admission import Admission
from serving.engines.openvino.openvino_beams import as_beam, best_first, refuse_unsearchable
from serving.engines.openvino.openvino_cached_tokens import CachedTokens
from serving.engines.openvino.openvino_capabilities import CAPABILITIES
from serving.engines.openvino.openvino_drafting import num_drafts_of, refuse_undraftable, set_drafting
from serving.engines.openvino.openvino_generation import Generation
from serving.engines.openvino.openvino_guides import GuideCompiler, refuse_unguidable
from serving.engines.openvino.openvino_pipeline import (
    FINISH_REASONS,
    IGNORED,
    KV_BLOCK_TOKENS,
    WARM_UP_IDS,
    Handle,
    generation_config,
    load_pipeline,
    token_tensor,
)
from serving.engines.seam.base import (
    Engine,
    EngineInfo,
    EngineStats,
    ExtraOutputs,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.model_folder import ModelFolder, check_max_seq_len
from serving.engines.seam.request_limits import refuse_unservable
from serving.engines.seam.signal_stack import drop_signal_stack
from trireme.base.errors import Unavailable

_log = logging.getLogger("trireme.openvino")

_MAX_DROPS = 8  # drops of the whole batch in a row, with no token in between; then its requests fail


class OpenVinoEngine(Engine):
    """A `ContinuousBatchingPipeline`, driven step by step.

    Not bit-exact across batch compositions: the same request may take another token in other company.
    `stats` counts blocks as OpenVINO does: what prefix caching keeps for reuse is free.
    """

    def __init__(self, spec: OpenVinoEngineSpec, model: ModelFolder) -> None:
        check_max_seq_len(spec, model)
        self._spec = spec
        self._pipeline = load_pipeline(spec)
        self._guides = GuideCompiler(model.dir, model.vocab_size)
        unmet = CAPABILITIES.unmet(spec)
        self._is_pipeline_empty = True
        self._waiting: deque[Generation] = deque()
        self._running: dict[int, tuple[Handle, Generation]] = {}
        self._num_used_blocks = 0
        self._admission = Admission(spec)
        self._cached = _cached_tokens(spec)
        self._leaving: list[tuple[int, Generation]] = []  # cancelled, and the step that has freed their blocks
        self._num_steps = 0
        self._num_drops = 0
        self.info = EngineInfo(
            provider=spec.provider,
            vocab_size=model.vocab_size,
            max_seq_len=spec.max_seq_len,
            end_ids=model.end_ids,
            kv_block_tokens=KV_BLOCK_TOKENS,
            num_kv_blocks=spec.num_kv_blocks,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            supported=CAPABILITIES.supported - unmet.keys(),
            why_not={**CAPABILITIES.why_not, **unmet},
        )

    def add(self, request: GenerationRequest) -> None:
        """Queue a request; the first step with room for it hands it to the pipeline."""
        refuse_unservable(request, self.info)
        refuse_unguidable(request.sampling, self.info)
        refuse_unsearchable(request.sampling, self.info)
        refuse_undraftable(request.sampling, self._spec)
        self._admission.refuse_unfitting(request)
        self._waiting.append(Generation(request, self._config(request.sampling)))

    def cancel(self, key: int) -> None:
        """Stop a request; the next step frees its blocks, and the one after it shows that in `stats`."""
        if running := self._running.pop(key, None):
            handle, generation = running
            handle.cancel()
            if self._cached is not None:
                self._cached.cancel(key)
            self._leaving.append((self._num_steps + 2, generation))
        else:
            self._waiting = deque(waiting for waiting in self._waiting if waiting.request.key != key)

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Return the times of a running request."""
        running = self._running.get(key)
        return self._perf(running[1]) if running else None

    def step(self) -> list[TokenChunk]:
        """Run one iteration of the pipeline and read what it made."""
        self._admit()
        if self._is_pipeline_empty:
            return []
        self._pipeline.step()
        self._num_steps += 1
        chunks, dropped = self._read()
        if self._cached is not None:
            self._follow(self._cached, chunks, dropped)
        self._is_pipeline_empty = not self._pipeline.has_non_finished_requests()
        self._leaving = [
            (step, left) for step, left in self._leaving if step > self._num_steps and not self._is_pipeline_empty
        ]
        self._num_used_blocks = 0 if self._is_pipeline_empty else self._measure_used_blocks()
        if dropped:
            chunks += self._retry(dropped)
        assert not (self._running and self._is_pipeline_empty), "OpenVINO lost a request"
        return chunks

    @property
    def has_work(self) -> bool:
        """Return whether a request is waiting, running or being cleaned up."""
        return bool(self._waiting) or not self._is_pipeline_empty

    def stats(self) -> EngineStats:
        """Return the state of the engine; used blocks are those of the last step, and none when there is no work."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_steps=self._num_steps,
            num_used_kv_blocks=self._num_used_blocks,
            num_kv_blocks=self.info.num_kv_blocks,
        )

    def close(self) -> None:
        """End what runs, so that OpenVINO does not complain about leaked blocks, and unload the model."""
        for handle, _ in self._running.values():
            handle.cancel()
        self._running.clear()
        self._waiting.clear()
        with contextlib.suppress(RuntimeError):  # raised by a broken pipeline
            self._pipeline.step()
        del self._pipeline, self._guides
        drop_signal_stack()

    def _config(self, sampling: SamplingParams) -> object:
        config = generation_config(sampling, end_ids=self.info.end_ids, vocab_size=self.info.vocab_size)
        set_drafting(config, self._spec, sampling)
        if sampling.guide_type is not None:
            config.structured_output_config = self._guides.compile(sampling.guide_type, sampling.guide)
        return config

    def _count_drafts(self, generation: Generation, num_tokens: int) -> None:
        sampling = generation.request.sampling
        num_drafts = num_drafts_of(sampling, self._spec)
        if num_drafts and generation.output_ids:  # the first token comes from the prefill
            generation.drafts.note_step(
                num_tokens,
                num_draft_tokens=num_drafts,
                num_missing=sampling.max_tokens - len(generation.output_ids),
            )

    def _perf(self, generation: Generation) -> PerfMetrics | None:
        drafts = generation.drafts
        # A prompt may have nothing to look up: how often it had, OpenVINO does not tell.
        num_offered = None if self._spec.max_ngram_size is not None else drafts.num_offered
        return generation.times.perf(
            total_accepted_draft_tokens=drafts.num_accepted,
            total_draft_tokens=num_offered,
            num_cached_tokens=generation.num_cached_tokens,
        )

    def _follow(self, cached: CachedTokens, chunks: list[TokenChunk], dropped: list[Generation]) -> None:
        ended = {chunk.key for chunk in chunks if chunk.finish_reason is not None}
        ended.update(generation.request.key for generation in dropped)
        made = {chunk.key: chunk.token_ids for chunk in chunks}
        cached.step(made, ended, num_used_blocks=self._measure_used_blocks())
        if not cached.is_followed:
            _log.warning("what the prefix cache holds is no longer known: %s", cached.why_lost)
            self._cached = None

    def _measure_used_blocks(self) -> int:
        return round(self._pipeline.get_metrics().cache_usage * self.info.num_kv_blocks / 100)

    def _admit(self) -> None:
        while self._waiting and self._may_begin(self._waiting[0]):
            generation = self._waiting.popleft()
            request = generation.request
            handle = self._pipeline.add_request(request.key, token_tensor(generation.token_ids), generation.config)
            if self._cached is not None:
                self._look_up(self._cached, generation)
            self._admission.note(generation)
            generation.num_prefill_blocks = generation.num_blocks
            generation.times.note_scheduled()
            self._running[request.key] = (handle, generation)
            self._is_pipeline_empty = False

    def _look_up(self, cached: CachedTokens, generation: Generation) -> None:
        request = generation.request
        if request.sampling.beam_width > 1:
            cached.lose("beams share blocks with each other")
            return
        num_tokens = cached.add(request.key, generation.token_ids)
        if not generation.times.first_scheduled_ns:  # put back, it finds what it made itself
            generation.num_cached_tokens = num_tokens

    def _may_begin(self, generation: Generation) -> bool:
        return self._admission.may_begin(
            generation,
            beside=[running for _, running in self._running.values()],
            leaving=[left for _, left in self._leaving],
            num_used_blocks=self._num_used_blocks,
        )

    def _read(self) -> tuple[list[TokenChunk], list[Generation]]:
        """Return what the last step made, and which requests it dropped."""
        chunks, dropped = [], []
        for handle, generation in list(self._running.values()):
            if not handle.can_read():
                continue  # in prefill, or preempted
            if chunk := self._read_chunk(handle, generation):
                chunks.append(chunk)
            elif handle.get_status() == IGNORED:
                dropped.append(generation)
        return chunks, dropped

    def _read_chunk(self, handle: Handle, generation: Generation) -> TokenChunk | None:
        if generation.request.sampling.beam_width > 1:
            return self._read_beams(handle, generation)
        key = generation.request.key
        for output in handle.read().values():
            token_ids = output.generated_ids
            finish_reason = FINISH_REASONS[output.finish_reason.value]
            if finish_reason is not None:
                del self._running[key]
                self._admission.note(generation)
            elif not token_ids:
                continue
            self._count_drafts(generation, len(token_ids))
            generation.output_ids += token_ids
            generation.num_prefill_blocks = self._num_drops = 0
            generation.times.note_token()
            log_probs = output.generated_log_probs if generation.request.sampling.return_log_probs else None
            perf = None if finish_reason is None else self._perf(generation)
            return TokenChunk(key, token_ids, finish_reason, log_probs=log_probs, perf=perf)
        return None

    def _read_beams(self, handle: Handle, generation: Generation) -> TokenChunk | None:
        """Return the beams of a request, which all come in the last step; nothing of a request that was dropped."""
        outputs = best_first(handle.read().values())
        if not outputs:
            return None
        request = generation.request
        beams = [as_beam(output, has_log_probs=request.sampling.return_log_probs) for output in outputs]
        del self._running[request.key]
        self._num_drops = 0
        generation.times.note_token()
        return TokenChunk(
            request.key,
            beams[0].token_ids,
            FINISH_REASONS[outputs[0].finish_reason.value],
            log_probs=beams[0].log_probs,
            perf=self._perf(generation),
            extras=ExtraOutputs(beams),
        )

    def _retry(self, dropped: list[Generation]) -> list[TokenChunk]:
        """Put dropped requests back to the front of the queue, to go on after their output so far.

        OpenVINO ends all requests with IGNORED when none can go on. Each of ours would fit alone, so that is a matter
        of company: a cancelled request still holds the blocks that another one needs now. One that cannot go on fails.
        """
        self._num_drops += 1
        for generation in dropped:
            del self._running[generation.request.key]
        lost = [generation for generation in dropped if self._num_drops > _MAX_DROPS or not generation.can_go_on]
        for generation in reversed(dropped):
            if generation in lost:
                continue
            sampling, num_output_ids = generation.request.sampling, len(generation.output_ids)
            rest = msgspec.structs.replace(
                sampling,
                max_tokens=sampling.max_tokens - num_output_ids,
                min_tokens=max(0, sampling.min_tokens - num_output_ids),
            )
            generation.config = self._config(rest)
            generation.lineage = None
            self._waiting.appendleft(generation)
        error = str(Unavailable("the KV cache is full and gives no room; try again", reason="kv_cache"))
        return [TokenChunk(generation.request.key, [], error=error) for generation in lost]


def _cached_tokens(spec: OpenVinoEngineSpec) -> CachedTokens | None:
    """Return the tracker of a new pipeline's prefix cache; None: the pipeline has no such cache, or it drafts."""
    if not spec.is_prefix_caching or spec.max_ngram_size is not None:
        return None
    cached = CachedTokens(
        num_blocks=spec.num_kv_blocks,
        block_tokens=KV_BLOCK_TOKENS,
        max_num_batched_tokens=spec.max_num_batched_tokens,
    )
    cached.follow_warm_up(WARM_UP_IDS)
    return cached
