# SPDX-License-Identifier: Apache-2.0
"""The way of every request of a job to the server: as many as the window says, spread in time, none during a pause."""

import asyncio
import collections

from clients.batch.window import Window


class Gate:
    """The gate before the server, inside one event loop; each task that enters has to leave."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._open_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.num_inside = 0

    @property
    def is_full(self) -> bool:
        """Return whether as many requests are inside as may be."""
        return self.num_inside >= self._window.size

    async def enter(self, *, is_again: bool = False) -> None:
        """Wait for the turn.

        Args:
            is_again: the request was inside before, and goes before those that were not.
        """
        turn = self._loop.create_future()
        (self._waiting.appendleft if is_again else self._waiting.append)(turn)
        self._admit()
        await turn

    def leave(self) -> None:
        """Make room for the next."""
        self.num_inside -= 1
        self._loop.call_soon(self._admit)  # after whoever left has said how it went

    def pause(self, seconds: float) -> None:
        """Let nobody in for some seconds; pauses do not add up."""
        self._open_s = max(self._open_s, self._loop.time() + seconds)

    def _admit(self) -> None:
        while self._waiting and not self.is_full:
            now_s = self._loop.time()
            if now_s < self._open_s:
                self._look_again(self._open_s)
                return
            turn = self._waiting.popleft()
            if turn.done():  # cancelled
                continue
            self.num_inside += 1
            self._open_s = now_s + self._window.gap_s
            turn.set_result(None)

    def _look_again(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._admit)
