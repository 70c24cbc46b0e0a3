# SPDX-License-Identifier: Apache-2.0
"""The bucket of one limit: a minute's worth, which fills evenly and may be overdrawn by what could not be foreseen."""

_MINUTE_S = 60.0


class TokenBucket:
    """The units of one limit that are left, full at first.

    Over any time of `s` seconds no more than one minute's worth and `s` seconds' worth get through, but for what
    requests take beyond their estimates; that is paid back before the next one.

    Args:
        per_minute: units that it holds, and that come back in a minute.
        now_s: the time now, in seconds of any clock.
    """

    __slots__ = ("_left", "_seen_s", "per_minute")

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._seen_s = now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the seconds until an amount can be taken; 0: it can be now. More than a minute's worth never fits."""
        self._fill(now_s)
        return max(0.0, amount - self._left) * _MINUTE_S / self.per_minute

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount, whether or not it is there; a negative one is given back."""
        self._fill(now_s)
        self._left = min(self._left - amount, float(self.per_minute))

    def left(self, now_s: float) -> int:
        """Return the whole units that are left."""
        self._fill(now_s)
        return max(0, int(self._left))

    def full_in_s(self, now_s: float) -> float:
        """Return the seconds until the bucket is full."""
        self._fill(now_s)
        return (self.per_minute - self._left) * _MINUTE_S / self.per_minute

    def _fill(self, now_s: float) -> None:
        come_back = max(0.0, now_s - self._seen_s) * self.per_minute / _MINUTE_S
        self._left = min(self._left + come_back, float(self.per_minute))
        self._seen_s = max(now_s, self._seen_s)
