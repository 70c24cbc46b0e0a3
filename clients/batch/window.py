# SPDX-License-Identifier: Apache-2.0
"""The number of a job's requests in flight, learned from the server's answers; times are given, no clock is read.

Additive increase, multiplicative decrease, as TCP's congestion control (RFC 5681). A refusal is the signal: every
request is sent with a limit for its wait, so a server with admission refuses what would only stand in its queue.
"""

FIRST = 8.0
_CUT = 0.7
_FADE = 0.1  # weight of the newest answer in the mean
_SPREAD = 0.5  # of the mean interval between two answers; the rest makes up for it when answers come in bunches


class Window:
    """A window that grows with every answer while it is used up, and shrinks once for all refusals of one round.

    Args:
        ceiling: never more in flight than this.
    """

    def __init__(self, ceiling: int) -> None:
        self._ceiling = float(ceiling)
        self._size = min(FIRST, self._ceiling)
        self._is_doubling = True  # each round, until the first refusal
        self._cut_s = -1.0
        self._mean_s = 0.0

    @property
    def size(self) -> int:
        """Return how many requests may be in flight."""
        return int(self._size)

    @property
    def gap_s(self) -> float:
        """Return the seconds to leave between two sends.

        Requests of one length that began together would end together and begin together again: prefills of all of
        them in one step, which everybody else's tokens wait for.
        """
        return _SPREAD * self._mean_s / self._size

    def note_answer(self, took_s: float, *, was_full: bool) -> None:
        """Note an answer.

        Args:
            took_s: from its sending to its end.
            was_full: as many requests were in flight as may be; otherwise growing would mean nothing.
        """
        self._mean_s += (_FADE if self._mean_s else 1.0) * (took_s - self._mean_s)
        if was_full:
            step = 1.0 if self._is_doubling else 1.0 / self._size
            self._size = min(self._ceiling, self._size + step)

    def note_refusal(self, sent_s: float, now_s: float) -> None:
        """Note that the server had no room.

        Refusals of what was sent before the last cut are of one round, and cut once.
        """
        if sent_s < self._cut_s:
            return
        self._cut_s = now_s
        self._is_doubling = False
        self._size = max(1.0, _CUT * self._size)

    def note_loss(self) -> None:
        """Note that the server or its engine went away, and begin anew with one request in flight.

        That also shows whether a request is the cause.
        """
        self._size = 1.0
        self._is_doubling = True
        self._mean_s = 0.0
