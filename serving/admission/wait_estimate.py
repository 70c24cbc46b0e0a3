# SPDX-License-Identifier: Apache-2.0
"""The time that a request would wait, by how fast requests in flight free KV budget; for refusals and retry times."""

import math

from serving.admission.batch_prefill import BatchPrefill
from serving.admission.budget import KvBudget
from serving.admission.expected_ends import ExpectedEnds
from serving.admission.fair_shares import Backlog
from serving.admission.kv_budget import KvAmount
from serving.admission.policies import STARTS_FOR_AGED
from serving.admission.queued_request import QueuedRequest
from serving.engines.seam.scheduling import Priority

_FORGET = 0.98  # of each sample's weight with every one that follows: the last fifty count
_STARTS_FADE_S = 5.0
_LEAST_SHARE = 0.01


class WaitEstimate:
    """The waiting times of one engine. A class waits for what the classes above it leave of the recent starts."""

    def __init__(self, budget: KvBudget, prefill: BatchPrefill) -> None:
        self._budget = budget
        self._prefill = prefill
        self.ends = ExpectedEnds(budget)
        self._first_token = _Mean()
        self._stay = _Mean()
        self._starts = dict.fromkeys(Priority, 0.0)  # recent starts, which fade with time, as of `_starts_at_s`
        self._starts_at_s = 0.0

    def note_start(self, priority: Priority, now_s: float) -> None:
        """Note that a request of a class has started."""
        self._fade_starts(now_s)
        self._starts[priority] += 1.0

    def _fade_starts(self, now_s: float) -> None:
        kept = math.exp(-max(0.0, now_s - self._starts_at_s) / _STARTS_FADE_S)
        self._starts = {priority: kept * count for priority, count in self._starts.items()}
        self._starts_at_s = max(now_s, self._starts_at_s)

    def _share_above(self, priority: Priority, now_s: float) -> float:
        """Return the fraction of recent starts that the classes above took.

        A few starts say little, so one more is added that is of no class.
        """
        self._fade_starts(now_s)
        return sum(self._starts[one] for one in Priority if one < priority) / (sum(self._starts.values()) + 1.0)

    def note_first_token(self, after_start_s: float) -> None:
        """Note the seconds from a request's start to its first token."""
        self._first_token.add(after_start_s)

    def note_end(self, stay_s: float) -> None:
        """Note the seconds from a request's start to its end."""
        self._stay.add(stay_s)

    @property
    def first_token_s(self) -> float:
        """Return the recent seconds from a start to the first token; 0 before the first sample."""
        return self._first_token.value

    def service_s(self, queued: QueuedRequest) -> float:
        """Return the seconds from a request's start to its end, by what its tenant's requests made.

        The result is 0 while nothing is known.
        """
        return self.first_token_s + queued.num_queued_output_tokens * self.ends.token_s

    def is_over_share(self, tenant: str) -> bool:
        """Return whether a tenant holds more than its fair share."""
        return self._budget.is_over_share(tenant)

    def room_for(self, queued: QueuedRequest) -> KvAmount:
        """Return the free KV budget that a request may take."""
        return self._budget.room_for(queued.priority, queued.tenant)

    def may_begin(self, queued: QueuedRequest) -> bool:
        """Return whether a request's prompt may be prefilled beside what runs, if there is room for it."""
        return self._prefill.may_begin(queued.priority, queued.num_known_tokens)

    def note_waiting(self, queued: QueuedRequest, *, is_waiting: bool) -> None:
        """Note that a request waits, or waits no longer."""
        if queued.priority is Priority.BATCH:
            (self._prefill.wait if is_waiting else self._prefill.wait_no_longer)(queued.num_known_tokens)

    def fits_now(self, waiting: Backlog, queued: QueuedRequest) -> bool:
        """Return whether there is room for all of `waiting`, which ends with this request."""
        if queued.priority is Priority.BATCH and not self._prefill.begins_next(queued.num_known_tokens):
            return False
        return self.room_for(queued).holds(self._budget.needs(waiting.num_requests, waiting.num_tokens))

    def wait_s(self, ahead: Backlog, queued: QueuedRequest) -> float:
        """Return the seconds until there is room for a new request behind `ahead`; 0 while nothing is known."""
        needed = self._budget.needs(ahead.num_requests + 1, ahead.num_tokens + queued.num_queued_tokens)
        share = 1.0 - self._share_above(queued.priority, queued.arrival_s)
        room = self.room_for(queued)
        return self.ends.seconds_until(needed, room, share=max(share, _LEAST_SHARE), stay_s=self._stay.value)

    def held_back_s(self, ahead: Backlog, queued: QueuedRequest) -> float:
        """Return the seconds until a request's prompt may be prefilled, whatever room there is; 0 for all but batch."""
        if queued.priority is not Priority.BATCH:
            return 0.0
        num_steps = self._prefill.steps_until(queued.num_known_tokens, num_ahead=ahead.num_requests)
        return num_steps * self.ends.token_s

    def turn_s(self, num_above: int, num_beside: int, *, ageing_s: float) -> float:
        """Return the seconds until a new request has a turn for its age, however many come in the classes above it.

        Requests above it that wait already are older, and go first by class and by age. Then one of `STARTS_FOR_AGED`
        starts is for aged requests, and the new request comes behind those of its own class and below. Starts are taken
        to come as fast as they did lately; math.inf: none came.

        Args:
            num_above: waiting requests of the classes above.
            num_beside: waiting requests of its own class and below.
            ageing_s: seconds after which a waiting request has a turn for its age.
        """
        starts_per_s = sum(self._starts.values()) / _STARTS_FADE_S
        if not starts_per_s:
            return math.inf
        turns = STARTS_FOR_AGED
        return max(ageing_s, num_above * turns / (turns - 1) / starts_per_s) + turns * (num_beside + 1) / starts_per_s


class _Mean:
    """A mean in which old samples fade."""

    def __init__(self) -> None:
        self._weight = self._sum = 0.0

    def add(self, sample: float) -> None:
        self._weight = _FORGET * self._weight + 1.0
        self._sum = _FORGET * self._sum + sample

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0


def retry_after_ms(wait_s: float, allowed_s: float) -> int:
    """Return the milliseconds until too long a wait is short enough, if nothing else arrives; at most an hour."""
    return max(1, math.ceil(1000 * min(3600.0, wait_s - allowed_s)))
