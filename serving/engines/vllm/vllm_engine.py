# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine core behind the seam, in the engine's own process, driven step by step.

vLLM schedules, batches, pages and preempts. Its own front end (tokenizing, text, output processing) is not run.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.adapter_folder import Adapter
from serving.engines.seam.base import (
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
from serving.engines.seam.kv_events import KvEvent
from serving.engines.seam.model_folder import ModelFolder, check_max_seq_len
from serving.engines.seam.request_limits import refuse_unservable
from serving.engines.seam.request_times import RequestTimes
from serving.engines.vllm import vllm_upstream
from serving.engines.vllm.vllm_arguments import engine_arguments
from serving.engines.vllm.vllm_capabilities import CAPABILITIES
from serving.engines.vllm.vllm_drafting import check_draft_model, draft_counts, refuse_undraftable
from serving.engines.vllm.vllm_kv_events import VllmKvEvents
from serving.engines.vllm.vllm_lora import VllmAdapters, adapter_of
from serving.engines.vllm.vllm_sampling import sampling_params
from serving.engines.vllm.vllm_start import openmp_note
from serving.engines.vllm.vllm_transfer import (
    POLL_S,
    TransferTimes,
    cached_tokens,
    extra_arguments,
    pack,
    prefill_params,
    transfer_arguments,
)
from serving.engines.vllm.vllm_upstream import Output, Request, Upstream, one_line
from trireme.base.errors import RequestError, ServerError, SpecError

_FINISH_REASONS = {vllm_upstream.STOP: FinishReason.STOP, vllm_upstream.LENGTH: FinishReason.LENGTH}


@dataclass(slots=True)
class _Running:
    """A request in the core."""

    given: GenerationRequest
    request: Request
    times: RequestTimes = field(default_factory=RequestTimes)
    num_cached_tokens: int | None = None
    transfer_ms: float | None = None

    def perf(self) -> PerfMetrics | None:
        """Return what is known of the request; None before its first token."""
        return self.times.perf(
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.request.num_preemptions,
            kv_cache_transfer_ms=self.transfer_ms,
            **draft_counts(self.request),
        )


class _Held(NamedTuple):
    """A request that is not in the core yet."""

    request: GenerationRequest
    params: object  # vLLM's SamplingParams
    adapter: Adapter | None
    times: RequestTimes


class VllmEngine(Engine):
    """An `EngineCore` of vLLM. Blocks that are kept for reuse count as free, as a new request may take them."""

    def __init__(
        self, spec: VllmEngineSpec, model: ModelFolder, upstream: Upstream, *, tells_kv_events: bool = False
    ) -> None:
        """Load the model.

        Args:
            tells_kv_events: whether `take_kv_events` has something to return.

        Raises:
            SpecError: vLLM cannot load the model in this way.
        """
        check_max_seq_len(spec, model)
        check_draft_model(spec, model)
        _check_device(spec, upstream)
        arguments = engine_arguments(spec) | transfer_arguments(spec, upstream)
        if tells_kv_events:
            arguments["kv_events_config"] = upstream.make_kv_events_config()
        self._spec = spec
        self._upstream = upstream
        try:
            self._core = upstream.make_core(upstream.make_engine_args(**arguments))
        except Exception as exc:  # whatever vLLM, torch or a driver raises
            drafted = "" if (drafts := getattr(spec.speculation, "dir", None)) is None else f" with drafts of {drafts}"
            raise SpecError(
                f"vLLM {upstream.version} cannot load {spec.dir}{drafted}: {one_line(exc)}", field="engine"
            ) from exc
        self._scheduler = self._core.scheduler
        self._pool = self._scheduler.kv_cache_manager.block_pool
        self._adapters = VllmAdapters(spec, self._core, upstream)
        self._kv_events: VllmKvEvents | None = None
        if tells_kv_events:
            self._kv_events = VllmKvEvents(self._scheduler.kv_event_publisher, adapter_of)
        self._held: dict[int, _Held] = {}  # until there is room for their adapters
        self._running: dict[str, _Running] = {}
        self._num_steps = 0
        self._num_preemptions = 0
        self._transfer_times = TransferTimes()
        unmet = CAPABILITIES.unmet(spec)
        self.info = EngineInfo(
            provider=spec.provider,
            vocab_size=model.vocab_size,
            max_seq_len=spec.max_seq_len,
            end_ids=model.end_ids,
            kv_block_tokens=self._core.vllm_config.cache_config.block_size,
            num_kv_blocks=self._pool.num_gpu_blocks - 1,  # one is never given to a request
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            supported=CAPABILITIES.supported - unmet.keys(),
            why_not={**CAPABILITIES.why_not, **unmet},
        )

    @property
    def plain_sampling(self) -> SamplingParams:
        """Return the sampling of a request for one token, which is its last.

        It asks for log probabilities: vLLM compiles their kernel at its first use, for seconds.
        """
        return SamplingParams(max_tokens=1, end_id=-1, return_log_probs=True)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request; a step begins it when there is room."""
        refuse_unservable(request, self.info)
        refuse_undraftable(request.sampling, self._spec)
        self._adapters.look()
        held = _Held(request, self._params(request), self._adapters.find(request.sampling), RequestTimes())
        if self._adapters.has_room(held.adapter):
            self._begin(held)
        else:
            self._held[request.key] = held

    def _params(self, request: GenerationRequest) -> object:
        if request.sampling.is_context_only:
            return prefill_params(self._upstream)
        is_handed_over = request.sampling.context_phase_params is not None
        extra = extra_arguments(request) if is_handed_over else None
        return sampling_params(request.sampling, self.info, self._upstream, extra)

    def _begin(self, held: _Held) -> None:
        request, name = held.request, str(held.request.key)
        lora_request = self._adapters.lend(request.key, held.adapter, request.sampling)
        made, wave = self._core.preprocess_add_request(
            self._upstream.make_request(
                request_id=name,
                prompt_token_ids=request.input_ids,
                mm_features=None,
                sampling_params=held.params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=lora_request,
                cache_salt=(request.scheduling.tenant or None) if self._spec.is_cache_salted else None,
                data_parallel_rank=None,
                priority=request.scheduling.priority,  # the lower is the more urgent one, as in the contract
            )
        )
        self._core.add_request(made, wave)
        self._running[name] = _Running(request, made, held.times)

    def _begin_held(self) -> list[TokenChunk]:
        """Begin what waits for room for its adapter, and return the ends of those whose adapter cannot be loaded."""
        failed = []
        for key, held in list(self._held.items()):
            if self._adapters.has_room(held.adapter):
                del self._held[key]
                try:
                    self._begin(held)
                except RequestError as exc:
                    failed.append(TokenChunk(key, [], error=str(exc)))
        return failed

    def cancel(self, key: int) -> None:
        """Stop a request; its blocks are free at once."""
        self._held.pop(key, None)
        if self._running.pop(str(key), None) is not None:
            self._core.abort_requests([str(key)])
            self._adapters.give_back(key)

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Return the metrics of a running request."""
        running = self._running.get(str(key))
        return None if running is None else running.perf()

    def step(self) -> list[TokenChunk]:
        """Run one iteration of the core."""
        failed = self._begin_held() if self._held else []
        if not self._scheduler.has_requests():
            return failed
        outputs, is_executed = self._core.step_fn()
        self._core.post_step(is_executed)
        if not is_executed and self._scheduler.has_requests():
            time.sleep(POLL_S)
        self._num_steps += 1
        if not outputs:
            return failed
        self._transfer_times.note(outputs[0].scheduler_stats)
        return failed + [chunk for output in outputs[0].outputs if (chunk := self._chunk(output)) is not None]

    def _chunk(self, output: Output) -> TokenChunk | None:
        running = self._running.get(output.request_id)
        if running is None:  # cancelled while the step ran ahead
            return None
        self._note(running, output)
        reason = output.finish_reason
        if reason is None and not output.new_token_ids:
            return None
        if output.new_token_ids:
            running.times.note_token()
        chunk = TokenChunk(running.given.key, output.new_token_ids)
        if output.new_logprobs is not None:
            chunk.log_probs = [float(row[0]) for row in output.new_logprobs.logprobs]
        if reason is not None:
            del self._running[output.request_id]
            self._adapters.give_back(running.given.key)
            if output.kv_transfer_params is not None:
                packed = pack(running.given, output.kv_transfer_params)
                chunk.extras = ExtraOutputs(context_phase_params=packed)
            chunk.perf = running.perf()
            chunk.finish_reason = _FINISH_REASONS.get(reason)
            if chunk.finish_reason is None:
                chunk.error = str(ServerError("vLLM has failed this request, and its log says why; try again"))
        return chunk

    def _note(self, running: _Running, output: Output) -> None:
        for event in output.events or ():
            if event.type == vllm_upstream.SCHEDULED:
                # Of the monotonic clock.
                running.times.first_scheduled_ns = running.times.first_scheduled_ns or time.time_ns() - round(
                    (time.monotonic() - event.timestamp) * 1e9
                )
            elif event.type == vllm_upstream.PREEMPTED:
                self._num_preemptions += 1
        if output.prefill_stats is not None and running.num_cached_tokens is None:
            running.num_cached_tokens = cached_tokens(output.prefill_stats, running.request.kv_transfer_params)
            if output.prefill_stats.num_external_cached_tokens:
                running.transfer_ms = self._transfer_times.next_ms()

    def take_kv_events(self) -> list[KvEvent]:
        """Return what the steps since the last call did; a cancel frees blocks, and each of them is held until used."""
        return [] if self._kv_events is None else self._kv_events.take()

    @property
    def has_work(self) -> bool:
        """Return whether a request runs or waits, or the core has to forget ended ones."""
        return bool(self._held) or self._scheduler.has_requests()

    def stats(self) -> EngineStats:
        """Return the state of the scheduler."""
        num_running, num_waiting = self._scheduler.get_request_counts()
        return EngineStats(
            num_running=num_running,
            num_waiting=num_waiting + len(self._held),
            num_steps=self._num_steps,
            num_used_kv_blocks=self.info.num_kv_blocks - self._pool.get_num_free_blocks(),
            num_kv_blocks=self.info.num_kv_blocks,
            num_preemptions=self._num_preemptions,
        )

    def close(self) -> None:
        """End the core and its workers."""
        self._running.clear()
        self._held.clear()
        self._core.shutdown()
        Path(openmp_note(os.getpid())).unlink(missing_ok=True)


def _check_device(spec: VllmEngineSpec, upstream: Upstream) -> None:
    """Check that the installed vLLM is built for the deployment's device.

    Raises:
        SpecError: it is not.
    """
    if (upstream.device == "cpu") != spec.is_on_cpu:
        raise SpecError(
            f"engine.device is {spec.device}, and the installed vLLM is built for {upstream.device}; set "
            "engine.device, or name an environment with another vLLM in engine.venv_dir",
            field="engine.device",
            value=spec.device,
        )
