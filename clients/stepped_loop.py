# SPDX-License-Identifier: Apache-2.0
"""An event loop for code that waits: asynchronous work, one step after the other."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class SteppedLoop:
    """An event loop that runs while a step is waited for, and that Ctrl-C may leave at any moment.

    `asyncio.Runner` alone forgets a Ctrl-C that arrives while a step begins (its count of them is set to nought behind
    the handler that counts, in Python 3.11 to 3.14): what comes out then is a CancelledError, or a step that goes on
    beside the next one.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        # The thread's own loop from here on: what is made of gRPC before the first step belongs to it.
        self._loop = self._runner.get_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Return what a step returns.

        Raises:
            KeyboardInterrupt: Ctrl-C; the step was cancelled and has ended, unless Ctrl-C came again meanwhile.
        """
        task = self._loop.create_task(step)
        try:
            return self._runner.run(_result(task))
        except (KeyboardInterrupt, asyncio.CancelledError):
            task.cancel()
            self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise KeyboardInterrupt from None

    def close(self) -> None:
        """Cancel what still runs and close the loop."""
        self._runner.close()


async def _result(task: "asyncio.Task[T]") -> T:
    return await task
