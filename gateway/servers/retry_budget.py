# SPDX-License-Identifier: Apache-2.0
"""The budget of second tries: a share of all requests, so that a fault of all servers is not made twice as bad."""

_SHARE = 0.2
_MOST = 20.0  # second tries at once


class RetryBudget:
    """The budget of a gateway: each request adds a share of a second try."""

    def __init__(self) -> None:
        self._left = _MOST

    def note_request(self) -> None:
        """Note a request, a first try."""
        self._left = min(self._left + _SHARE, _MOST)

    def take(self) -> bool:
        """Return whether there is a second try left, and take it."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
