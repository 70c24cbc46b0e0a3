# SPDX-License-Identifier: Apache-2.0
"""The idle timeout of a stream: a reader who waits too long for one response has lost the peer."""

import asyncio

import grpc.aio


class SilenceWatch:
    """A watch that cancels a call if its reader has waited `limit_s` seconds for one response; None: never.

    One timer for the stream: `asyncio.timeout` around every response costs 7 us each.
    """

    def __init__(self, call: grpc.aio.Call, limit_s: float | None) -> None:
        self.is_over = False
        self.limit_s = float("inf") if limit_s is None else limit_s
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.restart()
        if limit_s is not None:
            self._check()

    def restart(self) -> None:
        """Note that the reader waits from now on."""
        self._waiting_since = self._loop.time()

    def pause(self) -> None:
        """Note that the reader is busy with what came."""
        self._waiting_since = float("inf")

    def limit(self, limit_s: float) -> None:
        """Wait no longer than this for each response from now on."""
        self.stop()
        self.limit_s = limit_s
        self._check()

    def stop(self) -> None:
        """Note that the call has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        waited_s = max(0.0, self._loop.time() - self._waiting_since)
        self.is_over = waited_s >= self.limit_s
        if self.is_over:
            self._call.cancel()
        else:
            self._timer = self._loop.call_later(self.limit_s - waited_s, self._check)
