# SPDX-License-Identifier: Apache-2.0
"""The detection of a server that is down, by what becomes of requests, and the pause of users who meet it."""

from trireme.base.errors import Unavailable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0


class ServerDown:
    """The time for which one server has answered nothing.

    `seconds` goes from the first to the last request that was not answered, since the last answer.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._first_ns: int | None = None

    def note_answer(self) -> None:
        """Note anything that a server said, refusals and errors too."""
        self.seconds = 0.0
        self._first_ns = None

    def note_loss(self, at_ns: int) -> None:
        """Note that nothing took a request, or that its connection broke."""
        self._first_ns = at_ns if self._first_ns is None else self._first_ns
        self.seconds = (at_ns - self._first_ns) / 1e9


def next_pause_s(before_s: float) -> float:
    """Return the pause of a user whose request was not answered, until the next one.

    Args:
        before_s: the pause before, 0 for none.
    """
    return min(max(2 * before_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)


def not_ready(url: str, model: str) -> Unavailable:
    """Return the error of a load that nobody would answer."""
    message = f"no server takes requests for model {model!r} at {url}; is it running and ready?"
    return Unavailable(message, reason="unreachable")
