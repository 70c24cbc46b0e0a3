# SPDX-License-Identifier: Apache-2.0
"""How long a request would wait, from how fast those in flight make room; refusals and retry hints hang on it."""

import math

from serving.admission.batch_prefill import BatchPrefill
from serving.admission.budget import KvBudget
from serving.admission.expected_ends import ExpectedEnds
from serving.admission.fair_shares import Backlog
from serving.admission.kv_budget import Room
from serving.admission.policies import STARTS_FOR_AGED
from serving.admission.queued_request import Ticket
from serving.engines.seam.scheduling import Priority

_FORGET = 0.98  # of each sample's weight with every one that follows: the last fifty count
_STARTS_FADE_S = 5.0
_LEAST_SHARE = 0.01


class WaitEstimate:
    """Of one engine. A class waits for what those above it leave, so what these took lately is taken off."""

    def __init__(self, budget: KvBudget, prefill: BatchPrefill) -> None:
        self._budget = budget
        self._prefill = prefill
        self.ends = ExpectedEnds(budget)
        self._first_token = _Mean()
        self._stay = _Mean()
        self._starts = dict.fromkeys(Priority, 0.0)  # that fade with time, at `_starts_at_s`
        self._starts_at_s = 0.0

    def note_start(self, priority: Priority, now_s: float) -> None:
        """A request of a class has started."""
        self._fade_starts(now_s)
        self._starts[priority] += 1.0

    def _fade_starts(self, now_s: float) -> None:
        kept = math.exp(-max(0.0, now_s - self._starts_at_s) / _STARTS_FADE_S)
        self._starts = {priority: kept * count for priority, count in self._starts.items()}
        self._starts_at_s = max(now_s, self._starts_at_s)

    def _share_above(self, priority: Priority, now_s: float) -> float:
        """What the classes above took of the starts lately; of few it says little, so one more is added for nobody."""
        self._fade_starts(now_s)
        return sum(self._starts[one] for one in Priority if one < priority) / (sum(self._starts.values()) + 1.0)

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

    def room_for(self, ticket: Ticket) -> Room:
        """What is free now of what this one may take."""
        return self._budget.room_for(ticket.priority, ticket.tenant)

    def may_begin(self, ticket: Ticket) -> bool:
        """Whether its prompt may be prefilled beside what runs, if there is room for it."""
        return self._prefill.may_begin(ticket.priority, ticket.num_known_tokens)

    def note_waiting(self, ticket: Ticket, *, is_waiting: bool) -> None:
        """It waits from now on, or no longer."""
        if ticket.priority is Priority.BATCH:
            (self._prefill.wait if is_waiting else self._prefill.wait_no_longer)(ticket.num_known_tokens)

    def fits_now(self, waiting: Backlog, ticket: Ticket) -> bool:
        """Whether there is room for all of `waiting`, the last of which is this one."""
        if ticket.priority is Priority.BATCH and not self._prefill.begins_next(ticket.num_known_tokens):
            return False
        return self.room_for(ticket).holds(self._budget.needs(waiting.num_requests, waiting.num_tokens))

    def wait_s(self, ahead: Backlog, ticket: Ticket) -> float:
        """Until there is room for a request that comes now behind `ahead`; 0 while nothing is known."""
        needed = self._budget.needs(ahead.num_requests + 1, ahead.num_tokens + ticket.num_queued_tokens)
        share = 1.0 - self._share_above(ticket.priority, ticket.arrival_s)
        room = self.room_for(ticket)
        return self.ends.seconds_until(needed, room, share=max(share, _LEAST_SHARE), stay_s=self.stay_s)

    def held_back_s(self, ahead: Backlog, ticket: Ticket) -> float:
        """Until its prompt may be prefilled, whatever room there is; only of the batch class more than 0."""
        if ticket.priority is not Priority.BATCH:
            return 0.0
        num_steps = self._prefill.steps_until(ticket.num_known_tokens, num_ahead=ahead.num_requests)
        return num_steps * self.ends.token_s

    def turn_s(self, num_above: int, num_beside: int, *, ageing_s: float) -> float:
        """Until a request that comes now has a turn for its age, however many come in the classes above it.

        Those above it that wait already are older, and go first by class and by age. Then it has one of so many starts,
        behind those of its own class and below. As fast as starts came lately; math.inf: none did.

        Args:
            num_above: that wait, of the classes above.
            num_beside: that wait, of its own class and below.
        """
        starts_per_s = sum(self._starts.values()) / _STARTS_FADE_S
        if not starts_per_s:
            return math.inf
        turns = STARTS_FOR_AGED
        return max(ageing_s, num_above * turns / (turns - 1) / starts_per_s) + turns * (num_beside + 1) / starts_per_s


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
