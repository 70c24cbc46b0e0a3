# SPDX-License-Identifier: Apache-2.0
"""The watch over an engine that batches by itself: work that gets no further for too long is a hang."""

from serving.engines.seam.base import Engine
from serving.engines.seam.clock import Clock
from trireme.base.errors import ServerError


class ProgressWatch:
    """The watch that looks at `Engine.progress` after each step.

    An engine whose `step` is the work itself needs no watch: while it hangs its process is silent, which the process
    that started it notices.

    Args:
        clock: clock for the watch.
        watchdog_s: seconds that work may stand still.
    """

    def __init__(self, clock: Clock, *, watchdog_s: float) -> None:
        self._clock = clock
        self._watchdog_s = watchdog_s
        self._progress: int | None = None
        self._since_s = clock.now_s()

    def look(self, engine: Engine) -> None:
        """Check the engine's progress since the last look.

        Raises:
            ServerError: the engine has work, and made no progress for `watchdog_s`.
        """
        progress, now_s = engine.progress, self._clock.now_s()
        if progress is None or progress != self._progress:
            self._progress, self._since_s = progress, now_s
        elif now_s - self._since_s >= self._watchdog_s:
            raise ServerError(
                f"the engine has work and has made no token and no iteration for {self._watchdog_s:g} s "
                "(engine.watchdog_s); it is being restarted",
                reason="engine_hung",
            )
