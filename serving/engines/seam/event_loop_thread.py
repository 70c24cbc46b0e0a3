# SPDX-License-Identifier: Apache-2.0
"""An asyncio event loop in a thread of its own, for libraries that are asynchronous where the caller is not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

Value = TypeVar("Value")

ANSWERS_S = 10.0  # a call that takes longer is not one of a request: the library is stuck in the loop's thread


class LoopStuckError(Exception):
    """The error of a loop that does not answer; what its thread was given may still happen."""


class EventLoopThread:
    """A thread with an event loop, until closed. It runs one thing at a time; errors come back to the caller."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself holds them weakly
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()  # calls with a waiting caller
        self._is_stuck = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, function: Callable[[], Value], *, timeout_s: float | None = ANSWERS_S) -> Value:
        """Run a function in the loop's thread, with the loop running around it, and wait for what it returns.

        Args:
            function: must not wait for the loop.
            timeout_s: how long to wait; None: for ever.

        Raises:
            LoopStuckError: the loop has not run it, or has not come back from it, in time; or `abandon` was called.
        """
        answer: Future[Value] = Future()

        def run() -> None:
            with suppress(InvalidStateError):  # no caller waits any more
                try:
                    answer.set_result(function())
                except BaseException as exc:
                    answer.set_exception(exc)

        with self._lock:
            self._calls.add(answer)
        self._loop.call_soon_threadsafe(run)
        try:
            return answer.result(timeout_s)
        except TimeoutError as exc:
            if answer.done():
                raise
            self._is_stuck = True
            raise LoopStuckError(f"no answer for {timeout_s:g} s") from exc
        finally:
            with self._lock:
                self._calls.discard(answer)

    def abandon(self, error: Exception) -> None:
        """Give up what runs in the loop's thread: its waiting callers get the error. May be called by any thread."""
        with self._lock:
            self._is_stuck = self._is_stuck or bool(self._calls)
            for answer in self._calls:
                with suppress(InvalidStateError):
                    answer.set_exception(error)

    def spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task and return it; from inside `call` only."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Cancel what runs, wait for its end, and end the thread; a stuck thread is left to the end of the process."""
        if self._is_stuck:
            return
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
