# SPDX-License-Identifier: Apache-2.0
"""A clock that moves when a test moves it."""

from dataclasses import dataclass

UNIX_S = 1_700_000_000.0  # seconds since 1970, for code that asks `time.time`


@dataclass
class ManualClock:
    """A clock for code that asks one for seconds, or in the place of the module `time`; a test sets `now_s`."""

    now_s: float = 100.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now_s

    def monotonic(self) -> float:
        """Return the seconds, as `time.monotonic` does."""
        return self.now_s

    def time_ns(self) -> int:
        """Return the nanoseconds, as `time.time_ns` does."""
        return int(self.now_s * 1e9)
