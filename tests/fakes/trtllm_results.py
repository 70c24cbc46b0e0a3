# SPDX-License-Identifier: Apache-2.0
"""The fake's results: a request's outputs, which grow in place as the caller iterates over them.

Source: tensorrt_llm/executor/result.py (GenerationResult, CompletionOutput), llmapi/llm.py (RequestOutput).
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

_OUTPUTS = Path(__file__).parent / "trtllm_facts" / "1.2.1" / "outputs.json"


class CompletionOutput:
    """A sequence of a request; it grows in place."""

    def __init__(self) -> None:
        self.index = 0
        self.text = ""
        self.token_ids: list[int] = []
        self.cumulative_logprob: float | None = None
        self.logprobs: list[dict[int, Any]] = []
        self.prompt_logprobs: list[dict[int, Any]] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.generation_logits: Any = None
        self.disaggregated_params: Any = None
        self.request_perf_metrics: Any = None


# On the class as well, where a real dataclass with slots has them.
for _name in vars(CompletionOutput()):
    setattr(CompletionOutput, _name, None)


class Owner(Protocol):
    """The part of an executor that its results need."""

    def abort(self, result: "RequestOutput") -> None: ...
    def note_taken(self, result: "RequestOutput") -> None: ...


class RequestOutput:
    """A request; iterating gives the request itself again, each time with more tokens."""

    prompt = None
    context_logits: Any = None

    def __init__(
        self, number: int, prompt_token_ids: list[int], executor: Owner, outputs: list[CompletionOutput]
    ) -> None:
        self._number = number
        self._prompt_token_ids = prompt_token_ids
        self._executor = executor
        self._outputs = outputs
        self._is_done = False
        self._loop = asyncio.get_running_loop()  # as upstream, which makes no asynchronous queue without one
        self._queue: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._has_change = False  # applied, and perhaps not dealt with yet
        self.num_untaken = 0  # of what the executor has made; changed under its lock

    @property
    def request_id(self) -> int:
        return self._number

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._prompt_token_ids

    @property
    def outputs(self) -> list[CompletionOutput]:
        return self._outputs

    @property
    def finished(self) -> bool:
        return self._is_done

    def abort(self) -> None:
        """Ask for the end of the request."""
        self._executor.abort(self)

    def result(self, timeout: float | None = None) -> "RequestOutput":
        raise NotImplementedError("the fake is asynchronous")

    async def aresult(self) -> "RequestOutput":
        """Return the request when it has ended."""
        async for _ in self:
            pass
        return self

    def __await__(self) -> Any:
        return self.aresult().__await__()

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self._has_change:  # the caller has come back, so it has dealt with that
            self._executor.note_taken(self)
            self._has_change = False
        if self._is_done:
            raise StopAsyncIteration
        change = await self._queue.get()
        try:
            change()
        except Exception:
            self._loop.call_soon(self._executor.note_taken, self)  # once the caller has dealt with it
            raise
        self._has_change = True
        return self

    def put(self, change: Callable[[], None]) -> None:
        """Send something, from the executor's thread, that is applied when the caller takes it."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody takes it any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, change)

    def end(self) -> None:
        """Mark the end: nothing follows."""
        self._is_done = True


def now() -> timedelta:
    """Return the time of C++'s steady clock."""
    return timedelta(seconds=time.monotonic())


def perf_metrics(times: list[timedelta], num_blocks: int, *, is_last: bool) -> Any:
    """Return what a request knows of itself, under the names of the facts; the fake reuses and drafts nothing.

    Args:
        times: of its arrival, first iteration and first token.
        num_blocks: that it has allocated.
        is_last: it ends with this output.
    """
    names = json.loads(_OUTPUTS.read_text(encoding="utf-8"))["request_perf_metrics"]
    metrics = SimpleNamespace(
        **{
            group: SimpleNamespace(**dict.fromkeys(names[group], 0))
            for group in ("timing_metrics", "kv_cache_metrics", "speculative_decoding")
        }
    )
    timing = metrics.timing_metrics
    timing.arrival_time, timing.first_scheduled_time, timing.first_token_time = times
    timing.last_token_time = now() if is_last else timedelta(0)
    metrics.kv_cache_metrics.num_total_allocated_blocks = metrics.kv_cache_metrics.num_new_allocated_blocks = num_blocks
    return metrics
