# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker of one server: after failures in a row it gets no requests for a while, and then one to try."""

from collections.abc import Callable

_FAILURES = 3  # in a row
_FIRST_S, _LONGEST_S = 1.0, 30.0


class Breaker:
    """The breaker of a server.

    Args:
        now_s: seconds of a clock that nobody sets.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._num_failed = 0
        self._open_until_s = 0.0
        self._wait_s = _FIRST_S
        self._is_trying = False

    @property
    def is_closed(self) -> bool:
        """Return whether the server may have a request: it is well, or it is time to try it with one."""
        if self._num_failed < _FAILURES:
            return True
        return not self._is_trying and self._now_s() >= self._open_until_s

    def begin(self) -> bool:
        """Note that a request goes to the server, and return whether that tries a server that failed."""
        is_trial = self._num_failed >= _FAILURES
        self._is_trying = self._is_trying or is_trial
        return is_trial

    def succeed(self) -> None:
        """Note that the server has answered, be it with a refusal of its caller's."""
        self._num_failed, self._wait_s, self._is_trying = 0, _FIRST_S, False

    def fail(self, *, is_trial: bool) -> None:
        """Note that the server, and not the request, was at fault."""
        self._num_failed += 1
        if is_trial:
            self._wait_s = min(2 * self._wait_s, _LONGEST_S)
            self._is_trying = False
        elif self._num_failed != _FAILURES:  # it begins to fail, or is known to
            return
        self._open_until_s = self._now_s() + self._wait_s

    def leave(self, *, is_trial: bool) -> None:
        """Note that a request ended that says nothing about the server, such as one that its caller left."""
        if is_trial:
            self._is_trying = False
