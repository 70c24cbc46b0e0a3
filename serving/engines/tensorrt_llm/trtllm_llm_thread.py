# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's LLM in an event loop of its own, which makes all calls and follows every request and the stats.

What the loop sees waits in a queue of events, for `TrtLlmEngine.step`.
"""

import asyncio
import logging
import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ensemble_configs.spec.end_times import MAX_CLOSE_S
from serving.engines.seam.event_loop_thread import EventLoopThread, LoopStuckError
from serving.engines.seam.kv_events import AllBlocksCleared, KvEvent
from serving.engines.seam.thread_failures import thread_failures
from serving.engines.tensorrt_llm.trtllm_kv_events import TrtLlmKvEvents
from serving.engines.tensorrt_llm.trtllm_outputs import NewOutput, RunningRequest
from serving.engines.tensorrt_llm.trtllm_rules import TrtLlmRules, cure_of
from serving.engines.tensorrt_llm.trtllm_stats import NO_STATS, read_stats
from serving.engines.tensorrt_llm.trtllm_upstream import Llm, Result, Upstream, one_line
from trireme.base.errors import ServerError, SpecError

_log = logging.getLogger("trireme.engine")

_KV_EVENTS_S = 0.02  # between two questions for KV events
_CLOSE_S = MAX_CLOSE_S + 30.0  # more than any deployment gives, whose processes are then killed


@dataclass(slots=True)
class Event:
    """The news of one request, or what broke the whole engine."""

    request: RunningRequest | None
    output: NewOutput = field(default_factory=NewOutput)
    failure: Exception | None = None


class LlmThread:
    """An LLM, and the thread of its event loop.

    Attributes:
        events: news of requests, or what broke the whole engine, in the order in which it was seen.
        stats: of upstream's newest iteration.
        kv_events: what the KV cache has got and lost, in the order in which it was seen.
    """

    def __init__(
        self,
        upstream: Upstream,
        arguments: dict[str, object],
        *,
        rules: TrtLlmRules,
        load_timeout_s: float,
        on_idle: Callable[[], None],
        kv_events: TrtLlmKvEvents | None = None,
    ) -> None:
        """Load the model.

        Args:
            upstream: the installed TensorRT-LLM.
            arguments: make the LLM.
            rules: what a request does not survive upstream.
            load_timeout_s: how long the LLM may take to be made.
            on_idle: called in the loop's thread when upstream says that it has no request.
            kv_events: reads what upstream tells of its KV cache; None: it is not to tell.

        Raises:
            SpecError: upstream cannot load the model in this way, or not in time.
        """
        self._upstream = upstream
        self._rules = rules
        self._on_idle = on_idle
        self._has_begun = asyncio.Event()  # set in the loop, with the first request
        self._has_submitted = asyncio.Event()  # set in the loop: upstream's stats begin, or go on, with a request
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.stats = NO_STATS
        self.kv_events: queue.SimpleQueue[KvEvent] = queue.SimpleQueue()
        self._loop = EventLoopThread("trtllm")
        try:
            self._llm = self._load(arguments, load_timeout_s)
        except BaseException:
            self._loop.close()
            raise
        self._loop.call(lambda: self._loop.spawn(self._follow_stats()))
        if kv_events is not None:
            self._loop.call(lambda: self._loop.spawn(self._follow_kv_events(kv_events)))

    def _load(self, arguments: dict[str, object], timeout_s: float) -> Llm:
        """Make the LLM; where MPI cannot start the ranks, a thread of upstream's ends and the LLM waits for ever."""
        try:
            with thread_failures(self._give_up_loading):
                return self._loop.call(lambda: self._upstream.make_llm(**arguments), timeout_s=timeout_s)
        except LoopStuckError as exc:
            raise SpecError(
                f"TensorRT-LLM {self._upstream.version} has not loaded {arguments['model']} within "
                f"{timeout_s:g} s (engine.load_timeout_s)",
                field="engine.load_timeout_s",
            ) from exc
        except (AssertionError, ImportError, OSError, RuntimeError, TypeError, ValueError) as exc:
            raise SpecError(
                f"TensorRT-LLM {self._upstream.version} cannot load {arguments['model']}: {one_line(exc)}",
                field="engine",
            ) from exc

    def _give_up_loading(self, error: Exception) -> None:
        if "MPI" in f"{type(error).__module__}: {error}":
            self._loop.abandon(RuntimeError(f"MPI could not start the ranks: {one_line(error)}"))

    def start(self, request: RunningRequest, arguments: dict[str, object], *, timeout_s: float) -> None:
        """Hand a request to upstream, and follow it.

        Raises:
            LoopStuckError: upstream has not taken the request within `timeout_s`.
            Exception: whatever upstream raises for the request.
        """

        def start() -> None:
            request.result = self._llm.generate_async(**arguments)
            request.following = self._loop.spawn(self._follow(request, request.result))
            self._has_begun.set()
            self._has_submitted.set()

        self._loop.call(start, timeout_s=timeout_s)

    def abort(self, request: RunningRequest) -> None:
        """Have upstream end a request; its end comes as an event."""
        assert request.result is not None, "it was started"
        self._loop.call(request.result.abort)

    def stop_following(self, request: RunningRequest) -> None:
        """Wait no longer for a request; nothing more is seen of it."""
        if (following := request.following) is not None:
            self._loop.call(following.cancel)

    def close(self, running: Iterable[RunningRequest]) -> None:
        """End what runs and upstream's processes, which takes NCCL and CUDA tens of seconds with many ranks."""

        def end() -> None:
            for request in running:
                if request.result is not None:
                    request.result.abort()
            self._llm.shutdown()

        self._loop.call(end, timeout_s=_CLOSE_S)
        self._loop.close()

    # In the event loop

    async def _follow(self, request: RunningRequest, result: Result) -> None:
        try:
            async for output in result:
                if new := request.read(output):
                    self.events.put(Event(request, new))
        except (AssertionError, ValueError, self._upstream.request_error) as exc:
            # Beside its own error of a request: what it raises here while it reads a response, such as "Unknown finish
            # reason" of a beam that the search has left unfinished. It may go on computing that one.
            if not self._rules.runs_on_when_cancelled(request.sampling):
                result.abort()
            error = ServerError(f"TensorRT-LLM failed this request: {one_line(exc)}{cure_of(exc)}")
            self.events.put(Event(request, NewOutput(error=str(error))))
        except Exception as exc:  # whatever else it is, it is not of this request: the engine's process must end
            self.events.put(Event(None, failure=exc))

    async def _follow_stats(self) -> None:
        try:
            while True:
                await self._has_submitted.wait()  # before it upstream's iteration is empty, and ends at once
                self._has_submitted.clear()
                async for row in self._llm.get_stats_async(timeout=None):
                    self.stats = read_stats(row)
                    if self.stats.num_active == 0:
                        self._on_idle()
        except Exception as exc:  # as in _follow
            self.events.put(Event(None, failure=exc))

    async def _follow_kv_events(self, kv_events: TrtLlmKvEvents) -> None:
        """Take what upstream tells of its KV cache; where that cannot be read, the engine serves on without telling."""
        await self._has_begun.wait()  # before a request there is nobody to ask
        try:
            while True:
                # Without a time to wait: some versions wait in the caller's event loop.
                async for row in self._llm.get_kv_cache_events_async(timeout=0.0):
                    for event in kv_events.read(row):
                        self.kv_events.put(event)
                await asyncio.sleep(_KV_EVENTS_S)
        except Exception:
            _log.exception("KV events are told no longer")
            self.kv_events.put(AllBlocksCleared())
