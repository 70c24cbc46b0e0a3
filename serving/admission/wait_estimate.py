# SPDX-License-Identifier: Apache-2.0
"""How long a request would wait, from how fast those in flight make room; refusals and retry hints hang on it."""

import math

from serving.admission.budget import KvBudget
from serving.admission.expected_ends import ExpectedEnds
from serving.admission.fair_shares import Backlog
from serving.admission.ticket import Ticket
from serving.scheduling import Priority

_FORGET = 0.98  # of each sample's weight with every one that follows: the last fifty count
_LEAST_SHARE = 0.01


class WaitEstimate:
    """Of one engine. A class waits for what those above it leave, so what these took lately is taken off."""

    def __init__(self, budget: KvBudget) -> None:
        self._budget = budget
        self.ends = ExpectedEnds(budget)
        self._first_token = _Mean()
        self._stay = _Mean()
        self._start_shares = dict.fromkeys(Priority, 0.0)

    def note_start(self, priority: Priority) -> None:
        """A request of a class has started."""
        for one in Priority:
            self._start_shares[one] += (1.0 - _FORGET) * ((one is priority) - self._start_shares[one])

    def note_first_token(self, after_start_s: float) -> None:
        """A request has made its first token so long after its start."""
        self._first_token.add(after_start_s)

    def note_end(self, stay_s: float) -> None:
        """A request has come to its end so long after its start."""
        self._stay.add(stay_s)

    @property
    def first_token_s(self) -> float:
        """From a start to the first token, as it was lately; 0 before there was one."""
        return self._first_token.value

    @property
    def stay_s(self) -> float:
        """From a start to the end, as it was lately; 0 before there was one."""
        return self._stay.value

    def service_s(self, ticket: Ticket) -> float:
        """From its start to its end, by what its tenant's requests made; 0 while nothing is known."""
        return self.first_token_s + ticket.num_queued_output_tokens * self.ends.token_s

    def is_over_share(self, tenant: str) -> bool:
        """Whether a tenant holds more than its fair share."""
        return self._budget.is_over_share(tenant)

    def fits_now(self, waiting: Backlog, ticket: Ticket) -> bool:
        """Whether there is room for all of `waiting`, the last of which is this one."""
        room = self._budget.room_for(ticket.priority, ticket.tenant)
        return room.holds(self._budget.needs(waiting.num_requests, waiting.num_tokens))

    def wait_s(self, ahead: Backlog, ticket: Ticket) -> float:
        """Until a request can start behind `ahead`; 0 while nothing is known."""
        needed = self._budget.needs(ahead.num_requests + 1, ahead.num_tokens + ticket.num_queued_tokens)
        share = 1.0 - sum(self._start_shares[one] for one in Priority if one < ticket.priority)
        room = self._budget.room_for(ticket.priority, ticket.tenant)
        return self.ends.seconds_until(needed, room, share=max(share, _LEAST_SHARE), stay_s=self.stay_s)


class _Mean:
    """In which old samples fade."""

    def __init__(self) -> None:
        self._weight = self._sum = 0.0

    def add(self, sample: float) -> None:
        self._weight = _FORGET * self._weight + 1.0
        self._sum = _FORGET * self._sum + sample

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0


def retry_after_ms(wait_s: float, allowed_s: float) -> int:
    """When what is too long now will be short enough, if nobody else comes; at most an hour."""
    return max(1, math.ceil(1000 * min(3600.0, wait_s - allowed_s)))
