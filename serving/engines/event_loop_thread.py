# SPDX-License-Identifier: Apache-2.0
"""An asyncio event loop in a thread of its own, for libraries that are asynchronous where the caller is not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

Value = TypeVar("Value")


class EventLoopThread:
    """Runs until closed. What is given to it runs there, one thing at a time; errors come back to the caller."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself holds them weakly
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, function: Callable[[], Value]) -> Value:
        """Run a function in the loop's thread, with the loop running around it, and wait for what it returns."""

        async def run() -> Value:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task and return it; from inside `call` only."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Cancel what runs, wait for its end, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
