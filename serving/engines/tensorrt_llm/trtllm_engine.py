# SPDX-License-Identifier: Apache-2.0
"""The engine on TensorRT-LLM's LLM API behind the seam, for compiled engines and for PyTorch alike.

Upstream batches by itself, in processes of its own. What `LlmThread` sees of it waits in a queue, and `step` takes what
is there, waiting a little for the first.
"""

import itertools
import logging
import pickle
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from ensemble_configs.releases.kv_capacity import WholeSequence
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from serving.engines.seam.base import (
    Engine,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.event_loop_thread import ANSWERS_S, LoopStuckError
from serving.engines.seam.kv_events import KvEvent
from serving.engines.seam.request_limits import refuse_short_cache, refuse_unservable
from serving.engines.tensorrt_llm.trtllm_cancels import Cancels, Ending
from serving.engines.tensorrt_llm.trtllm_kv_events import TrtLlmKvEvents
from serving.engines.tensorrt_llm.trtllm_llm_thread import Event, LlmThread
from serving.engines.tensorrt_llm.trtllm_outputs import RunningRequest
from serving.engines.tensorrt_llm.trtllm_sampling import SamplingWords
from serving.engines.tensorrt_llm.trtllm_upstream import Upstream, one_line
from trireme.base.errors import ServerError, SpecError

# How long a step may find nothing: as long as a new request or a cancel may wait behind it.
_MAX_WAIT_S = 0.002
_FIRST_TOKEN_S = 600.0
_FIRST_STATS_S = 30.0

_log = logging.getLogger("trireme.engine")

Value = TypeVar("Value")


class TrtLlmEngine(Engine):
    """An LLM of upstream. A step of the seam is not an iteration of upstream, whose batch never waits for us.

    Of the KV cache we know what upstream tells: the size after a first token, made at start, and what is used after
    every iteration. Between iterations nothing is told, so without requests nothing counts as used.
    """

    def __init__(
        self,
        upstream: Upstream,
        arguments: dict[str, object],
        words: SamplingWords,
        info: EngineInfo,
        *,
        spec: TensorRtEngineSpec | PyTorchEngineSpec,
        whole_sequence: WholeSequence,
        kv_events: TrtLlmKvEvents | None = None,
    ) -> None:
        """Load the model, and generate a first token with it.

        Args:
            upstream: the installed TensorRT-LLM.
            arguments: make the LLM.
            words: the requests, as upstream wants them.
            info: the KV cache is filled in from what upstream tells.
            spec: how long the LLM may take to be made, how long a call may take that has upstream read an adapter from
                the disk (`watchdog_s`), and whether the deployment names the size of the KV cache. Where the free
                memory decides, an engine that has no room for a whole sequence is no engine of this deployment.
            whole_sequence: the longest that is promised; requests are held to what of it the KV cache has room for.
            kv_events: reads what upstream tells of its KV cache; None: it is not to tell.

        Raises:
            SpecError: upstream cannot load the model in this way, makes no token with it, or has no room for a sequence
                in its KV cache.
        """
        self._whole_sequence = whole_sequence
        self._is_cache_size_asked = spec.num_kv_blocks is not None
        self._upstream = upstream
        self._adapter_timeout_s = spec.watchdog_s
        self._num_seen_events = 0  # events with output of upstream
        self._words = words
        self._requests: dict[int, RunningRequest] = {}
        self._cancels = Cancels()
        self._numbers = itertools.count(1)
        self._llm = LlmThread(
            upstream,
            arguments,
            rules=words.rules,
            load_timeout_s=spec.load_timeout_s,
            on_idle=self._cancels.note_idle,
            kv_events=kv_events,
        )
        self.info = info
        try:
            self._measure()
        except BaseException:
            self.close()
            raise
        self._note_longest_sequence()

    def _note_longest_sequence(self) -> None:
        longest = self._whole_sequence.longest(
            num_blocks=self.info.num_kv_blocks, block_tokens=self.info.kv_block_tokens
        )
        if longest < self.info.max_seq_len:
            _log.warning(
                "the KV cache holds no sequence of engine.max_seq_len (%d) tokens, so a request may have %d in all; "
                "raise engine.num_kv_blocks or engine.free_gpu_memory_fraction",
                self.info.max_seq_len,
                longest,
            )
            self.info = msgspec.structs.replace(self.info, max_seq_len=longest)

    def _measure(self) -> None:
        """Generate one token, which loads what upstream loads late, and take the KV cache's size from the stats."""
        self._start(GenerationRequest(key=-1, input_ids=[0], sampling=self.plain_sampling))
        chunks = _wait_for(self.step, _FIRST_TOKEN_S, "no first token came")
        if chunks[0].error is not None:
            raise SpecError(f"the first token failed: {chunks[0].error}", field="engine")
        stats = _wait_for(
            lambda: self._llm.stats if self._llm.stats.num_kv_blocks else None, _FIRST_STATS_S, "no stats came"
        )
        self.info = msgspec.structs.replace(
            self.info, num_kv_blocks=stats.num_kv_blocks, kv_block_tokens=stats.kv_block_tokens
        )
        if not self._is_cache_size_asked:
            refuse_short_cache(self._whole_sequence, self.info)

    @property
    def plain_sampling(self) -> SamplingParams:
        """Return the sampling of a request for one token, with the beams that the deployment's requests must have."""
        return self._words.rules.first_sampling

    def add(self, request: GenerationRequest) -> None:
        """Hand a request to upstream, which queues it."""
        refuse_unservable(request, self.info)
        self._words.rules.refuse_stream_that_a_pause_would_cut(request, self.info.max_prompt_tokens)
        self._start(request)

    def _start(self, request: GenerationRequest) -> None:
        arguments = self._words.call_arguments(request)
        running = RunningRequest(
            request.key,
            self._words.end_ids_of(request.sampling),
            request.sampling,
            vocab_size=self.info.vocab_size,
            number=next(self._numbers),
        )
        is_reading = self._words.has_adapter_read(arguments)
        try:
            self._llm.start(running, arguments, timeout_s=self._adapter_timeout_s if is_reading else ANSWERS_S)
        except (AttributeError, TypeError, ValueError, pickle.PicklingError, self._upstream.request_error) as exc:
            raise self._words.refusal_of(exc, arguments) from exc
        except LoopStuckError:
            raise
        except Exception as exc:  # a file may be the reason for any exception
            error = self._words.adapter_refusal(exc, arguments, request.sampling)
            if error is exc:
                raise
            _log.warning("TensorRT-LLM could not load an adapter", exc_info=exc)
            raise error from exc
        self._words.note_taken(arguments)
        self._requests[request.key] = running

    def cancel(self, key: int) -> None:
        """Have upstream end a request, if that does no harm there; for the caller it is over now."""
        if request := self._requests.pop(key, None):
            self._end_upstream(request)

    def _end_upstream(self, request: RunningRequest) -> None:
        if self._words.rules.runs_on_when_cancelled(request.sampling):
            self._cancels.begin(request, Ending.RUNNING_ON, time.monotonic())
            return
        is_waiting = self._is_waiting(request)
        self._cancels.begin(request, Ending.WAITING if is_waiting else Ending.STOPPING, time.monotonic())
        self._llm.abort(request)
        if is_waiting and self._words.rules.drops_waiting_when_cancelled:
            self._cancels.forget(request)
            self._llm.stop_following(request)

    def _is_waiting(self, request: RunningRequest) -> bool:
        """Return whether upstream cannot have taken a request from its queue, which it does in order of arrival."""
        if request.num_tokens:
            return False
        num_before = sum(other.number < request.number for other in self._requests.values())
        return num_before + self._cancels.num_before(request) >= self._words.rules.max_active

    def is_ending(self, key: int) -> bool:
        """Return whether upstream may still compute a cancelled request."""
        return key in self._cancels

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Return what is known of a running request; None before its first token."""
        request = self._requests.get(key)
        return request.perf if request is not None else None

    def step(self) -> list[TokenChunk]:
        """Take what upstream has made since the last step, or makes in the next 2 ms while there is work."""
        chunks: dict[int, TokenChunk] = {}
        with suppress(queue.Empty):
            if self.has_work:
                self._take(self._llm.events.get(timeout=_MAX_WAIT_S), chunks)
            while True:
                self._take(self._llm.events.get_nowait(), chunks)
        for request in self._cancels.overdue(time.monotonic(), self._llm.stats.num_iterations):
            self._llm.stop_following(request)
        return list(chunks.values())

    def _take(self, event: Event, chunks: dict[int, TokenChunk]) -> None:
        self._num_seen_events += 1
        if event.failure is not None:
            raise ServerError(
                f"TensorRT-LLM's executor broke: {one_line(event.failure)}", reason="executor_died"
            ) from event.failure
        request = event.request
        assert request is not None, "an event without a failure is of a request"
        new = event.output
        if request.is_cancelled:
            if new.is_last:
                self._cancels.confirm(request)
            return
        chunk = chunks.setdefault(request.key, TokenChunk(request.key, []))
        chunk.token_ids += new.token_ids
        if new.log_probs is not None:
            chunk.log_probs = (chunk.log_probs or []) + new.log_probs
        chunk.finish_reason, chunk.error, chunk.perf = new.finish_reason, new.error, new.perf
        chunk.extras = new.extras
        if new.is_last:
            del self._requests[request.key]
            if not new.is_over:
                self._end_upstream(request)

    @property
    def has_work(self) -> bool:
        """Return whether a request runs or waits upstream, or upstream computes or ends one that was cancelled."""
        return bool(self._requests) or self._cancels.are_work

    def take_kv_events(self) -> list[KvEvent]:
        """Return what upstream has told since the last call; it tells with a delay, and without a step as well."""
        events: list[KvEvent] = []
        with suppress(queue.Empty):
            while True:
                events.append(self._llm.kv_events.get_nowait())
        return events

    @property
    def progress(self) -> int | None:
        """Count what upstream has made and its iterations: our own steps go on whatever becomes of its ranks."""
        return self._num_seen_events + self._llm.stats.num_iterations if self.has_work else None

    def stats(self) -> EngineStats:
        """Return our requests, divided as upstream's last iteration says, and the blocks that it used."""
        num_requests = len(self._requests)
        num_running = min(self._llm.stats.num_scheduled, num_requests)
        may_hold_blocks = self.has_work or self._cancels.may_hold_blocks
        return EngineStats(
            num_running=num_running,
            num_waiting=num_requests - num_running,
            num_used_kv_blocks=self._llm.stats.num_used_kv_blocks if may_hold_blocks else 0,
            num_kv_blocks=self.info.num_kv_blocks,
            num_steps=self._llm.stats.num_iterations,
            batch=self._llm.stats.batch,
            cancels=self._cancels.stats(),
        )

    def close(self) -> None:
        """End what runs and upstream's processes, which takes NCCL and CUDA tens of seconds with many ranks."""
        self._llm.close(self._requests.values())


def _wait_for(look: Callable[[], Value | None], timeout_s: float, complaint: str) -> Value:
    """Return the first true value that `look` gives.

    Raises:
        SpecError: none came within `timeout_s` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if value := look():
            return value
        time.sleep(_MAX_WAIT_S)
    raise SpecError(f"TensorRT-LLM loaded the model, but {complaint} within {timeout_s:.0f} s", field="engine")
