# SPDX-License-Identifier: Apache-2.0
"""The time that simulated work takes: the clocks, and the pace of steps that last as long as a formula says."""

import time
from typing import Protocol

# A caller that is later than this after the last step has paused: the lost time is not made up for.
_MAX_CATCH_UP_S = 0.010


class Clock(Protocol):
    """The clock on which a simulated engine spends its time."""

    def now_s(self) -> float:
        """Return the seconds since some fixed moment; never goes back."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Return when `duration_s` (>= 0) has passed."""
        ...


class WallClock:
    """The clock of real time."""

    def now_s(self) -> float:
        """Return the seconds of the monotonic clock."""
        return time.monotonic()

    def sleep_s(self, duration_s: float) -> None:
        """Sleep; the kernel wakes up to 0.1 ms late."""
        time.sleep(duration_s)


class VirtualClock:
    """A clock for tests that moves only when somebody sleeps."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """Return the start plus the seconds slept so far."""
        return self._now_s

    def sleep_s(self, duration_s: float) -> None:
        """Move the clock forward by `duration_s`."""
        self._now_s += duration_s


class Pace:
    """The deadlines of steps, absolute, so that late wake-ups and the caller's own work do not add up.

    A busy engine's n steps take the sum of their durations. Its caller works in the shadow of the step, as around an
    engine that schedules the next step while the last one's tokens are on their way.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline_s = clock.now_s()

    def restart(self) -> None:
        """Begin anew now: the engine was idle."""
        self._deadline_s = self._clock.now_s()

    def spend_s(self, duration_s: float) -> None:
        """Return when a step of this duration is over."""
        if duration_s == 0.0:
            return
        now_s = self._clock.now_s()
        self._deadline_s = max(self._deadline_s, now_s - _MAX_CATCH_UP_S) + duration_s
        if self._deadline_s > now_s:
            self._clock.sleep_s(self._deadline_s - now_s)
