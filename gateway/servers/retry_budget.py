# SPDX-License-Identifier: Apache-2.0
"""The budget of second tries: a share of all requests, so that a fault of all servers is not made twice as bad."""

_SHARE = 0.2
_MOST = 20.0  # second tries at once


class RetryBudget:
    """The budget of a gateway: each request adds a share of a second try.

    Args:
        share: of a try that a request adds.
        most: tries at once.
    """

    def __init__(self, *, share: float = _SHARE, most: float = _MOST) -> None:
        self._share, self._most = share, most
        self._left = most

    def note_request(self) -> None:
        """Note a request, a first try."""
        self._left = min(self._left + self._share, self._most)

    def take(self) -> bool:
        """Return whether there is another try left, and take it."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
