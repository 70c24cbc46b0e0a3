# SPDX-License-Identifier: Apache-2.0
"""The fake's stats of iterations, on their way from the executor to the reader of `get_stats_async`.

Source: tensorrt_llm/executor/{executor,base_worker,proxy,result}.py; the behaviours are named in `trtllm_switches`.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from trtllm_switches import Behaviour

PAUSE_S = 0.2  # between two looks at the executor's rows


class IterationStats:
    """The rows that wait, and the one iterator over them."""

    def __init__(self, changed: threading.Condition, has: Callable[[Behaviour], bool], max_rows: int) -> None:
        """Make the stats of an executor.

        Args:
            changed: the executor's lock.
            has: tells whether the executor has a behaviour.
            max_rows: rows that are kept for a reader, `iter_stats_max_iterations`.
        """
        self._changed, self._has, self._max_rows = changed, has, max_rows
        self._rows: list[str] = []  # that nobody has looked for yet
        self._queue: asyncio.Queue[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_begun = self._is_done = False
        self._timeout: float | None = None
        self._num_untaken = 0
        self._is_handled = True

    @property
    def are_taken(self) -> bool:
        """Return whether the reader has dealt with every row that it was sent."""
        return self._num_untaken == 0

    def begin(self) -> None:
        """Note a request: from the first one on there are stats, and an iterator that has ended goes on."""
        self._is_begun, self._is_done = True, False

    def tell(self, row: dict[str, Any]) -> None:
        """Keep a row; under the executor's lock."""
        if self._has(Behaviour.STATS_ROWS_ARE_DROPPED) and len(self._rows) >= self._max_rows:
            self._rows.pop(0)
        self._rows.append(json.dumps(row))

    def send(self) -> None:
        """Send what there is to the reader; under the executor's lock."""
        if self._queue is None or self._loop is None:
            return
        rows, self._rows = self._rows, []
        self._num_untaken += len(rows)
        for row in rows:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._queue.put_nowait, row)

    @property
    def are_waiting(self) -> bool:
        """Return whether there is something to send, and a reader."""
        return bool(self._rows) and self._queue is not None

    def read(self, timeout: float | None) -> AsyncIterator[dict[str, Any]]:
        """Return the iterator, or an empty one."""
        if not self._is_begun and self._has(Behaviour.STATS_BEGIN_WITH_A_REQUEST):
            return _nothing()
        with self._changed:
            if self._queue is None:
                self._loop, self._queue = asyncio.get_running_loop(), asyncio.Queue()
            self._timeout = timeout
            self._changed.notify_all()
        return self

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self

    async def __anext__(self) -> dict[str, Any]:
        self._note_handled()
        if self._is_done:
            raise StopAsyncIteration
        assert self._queue is not None, "it was read"
        try:
            row = await asyncio.wait_for(self._queue.get(), self._timeout)
        except TimeoutError:
            self._is_done = self._has(Behaviour.STATS_END_BY_TIMEOUT)
            raise StopAsyncIteration from None
        self._is_handled = False
        values: dict[str, Any] = json.loads(row)
        return values

    def _note_handled(self) -> None:
        if not self._is_handled:
            self._is_handled = True
            with self._changed:
                self._num_untaken -= 1
                self._changed.notify_all()


async def _nothing() -> AsyncIterator[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for row in rows:
        yield row
