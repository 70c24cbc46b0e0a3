# SPDX-License-Identifier: Apache-2.0
"""The load offered to an engine, let in or not, as a multiple of what the engine can hold."""

import math

from serving.admission.budget import KvBudget

_NOTHING = 1e-9


class OfferedLoad:
    """The requests that would be in flight if every arrival were let in.

    By Little's law, these are arrivals per second times their stay.
    The load does not fall because requests are refused, so what is refused because of it does not come back at once.

    Args:
        window_s: time constant in which arrivals fade.
    """

    def __init__(self, budget: KvBudget, window_s: float) -> None:
        self._budget = budget
        self._window_s = window_s
        self._seats = self._tokens = 0.0  # offered at `_at_s`
        self._at_s = -math.inf

    def note(self, now_s: float, *, stay_s: float, num_tokens: int) -> None:
        """Add an arrived request.

        Args:
            stay_s: seconds that the request is expected to be in flight.
            num_tokens: tokens that the request is expected to hold then.
        """
        self._fade(now_s)
        self._seats += stay_s / self._window_s
        self._tokens += stay_s * num_tokens / self._window_s

    def at(self, now_s: float) -> float:
        """Return the offered load; 1: all seats or all tokens of the budget would just be taken."""
        self._fade(now_s)
        return max(self._seats / self._budget.num_seats, self._tokens / self._budget.max_tokens)

    def seconds_until(self, load: float, now_s: float) -> float:
        """Return the seconds until the load has faded to `load`, if nothing else arrives."""
        return max(0.0, self._window_s * math.log(max(self.at(now_s), _NOTHING) / load))

    def _fade(self, now_s: float) -> None:
        kept = math.exp((self._at_s - now_s) / self._window_s)
        self._seats, self._tokens, self._at_s = self._seats * kept, self._tokens * kept, now_s
