# SPDX-License-Identifier: Apache-2.0
"""The bounded queue: which requests join it, which are refused at once with a retry time, and which are late."""

import heapq
import math

from ensemble_configs.spec.admission_spec import QueueSpec
from serving.admission.fair_shares import Backlog
from serving.admission.kv_budget import KvAmount
from serving.admission.policies import POLICIES
from serving.admission.queued_request import QueuedRequest
from serving.admission.wait_estimate import WaitEstimate, retry_after_ms
from serving.engines.seam.scheduling import Priority
from trireme.base.errors import QueueFull, RequestTimeout, ServingError, Unavailable

_TENANT_SHARE = 4.0


class RequestQueue:
    """The waiting requests, in the order of a policy.

    Args:
        first_token_s: the deployment's TTFT target in seconds, math.inf: none. A request that cannot meet the target is
            refused.
    """

    def __init__(self, spec: QueueSpec, estimate: WaitEstimate, *, first_token_s: float = math.inf) -> None:
        self._spec = spec
        self._policy = POLICIES[spec.policy](spec, estimate.is_over_share, estimate.may_begin)
        self._estimate = estimate
        self._first_token_s = first_token_s
        self._refuse_within_s = math.inf
        if spec.refuse_within_ms is not None and first_token_s < math.inf:
            self._refuse_within_s = spec.refuse_within_ms / 1000
        self._queued: dict[int, QueuedRequest] = {}
        self._limits: list[tuple[float, int]] = []  # a heap of (when, key) of requests with a time limit

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._queued)

    def __contains__(self, key: int) -> bool:
        return key in self._queued

    @property
    def num_waiting(self) -> dict[str, int]:
        """Return the number of waiting requests by the names of the classes."""
        return {priority.name.lower(): self._policy.waiting_of(priority).num_requests for priority in Priority}

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all waiting requests: prompts and expected outputs."""
        return sum(self._policy.waiting_of(priority).num_tokens for priority in Priority)

    def join(self, queued: QueuedRequest) -> None:
        """Add a new request.

        Raises:
            QueueFull: the queue of the class is full.
            Unavailable: the request could not start in time.
        """
        self._refuse_beyond_bounds(queued)
        self._refuse_too_late(queued)
        if _is_held_to_target(queued):
            queued.hopeless_s = queued.arrival_s + self._allowed_for_target_s()
            patience = 2 if queued.priority is Priority.PREMIUM else 1  # nothing overtakes premium: a seat may come
            queued.decide_s = queued.arrival_s + patience * self._refuse_within_s
        self._put(queued, is_ahead=False)

    def rejoin(self, queued: QueuedRequest) -> None:
        """Add a request that was preempted; it is never refused."""
        queued.decide_s = math.inf
        self._put(queued, is_ahead=True)

    def first(self, now_s: float) -> tuple[QueuedRequest, Priority] | None:
        """Return the request that starts next, and the class from which it may take room; None: nothing can start."""
        return self._policy.first(now_s)

    def take(self, queued: QueuedRequest) -> None:
        """Remove a request that starts."""
        self._policy.take(queued)
        self._forget(queued)

    def leave(self, key: int) -> QueuedRequest:
        """Remove a request that will not start, and return it."""
        queued = self._queued[key]
        self._policy.remove(queued)
        self._forget(queued)
        return queued

    def take_late(self, now_s: float) -> list[QueuedRequest]:
        """Remove and return the requests that are late.

        A request is late when its time has passed, when it could only start too late for the TTFT target, or when it
        has no room at the time when that is decided.
        """
        late = []
        while self._limits and self._limits[0][0] <= now_s:
            _, key = heapq.heappop(self._limits)
            queued = self._queued.get(key)
            if queued is None or _limit_s(queued) > now_s:
                continue
            if queued.decide_s <= now_s < _last_s(queued) and self._starts_next(queued):
                queued.decide_s = now_s + self._refuse_within_s  # the request waits for nothing but the end of a step
                heapq.heappush(self._limits, (_limit_s(queued), key))
            else:
                late.append(self.leave(key))
        return late

    def next_limit_s(self) -> float:
        """Return when `take_late` may have the next request, in seconds of the clock; math.inf: no request has a limit.

        Some of the requests with a limit may have gone meanwhile.
        """
        return self._limits[0][0] if self._limits else math.inf

    def _forget(self, queued: QueuedRequest) -> None:
        del self._queued[queued.key]
        self._estimate.note_waiting(queued, is_waiting=False)

    def _put(self, queued: QueuedRequest, *, is_ahead: bool) -> None:
        self._queued[queued.key] = queued
        self._policy.put(queued, is_ahead=is_ahead)
        self._estimate.note_waiting(queued, is_waiting=True)
        limit_s = _limit_s(queued)
        if limit_s < math.inf:
            heapq.heappush(self._limits, (limit_s, queued.key))
            if len(self._limits) > 2 * len(self._queued) + 64:  # entries of requests that have gone
                self._limits = [limit for limit in self._limits if limit[1] in self._queued]
                heapq.heapify(self._limits)

    def _refuse_beyond_bounds(self, queued: QueuedRequest) -> None:
        """Check the bounds of a class and, so that one tenant's flood leaves the others room, of a tenant in it.

        A tenant may have `_TENANT_SHARE` times as much waiting as is free, by weight: alone four fifths, and of n that
        flood each 4 / (4n + 1). Dynamic thresholds (Choudhury, Hahne 1998). What there is room for starts with the next
        step and does not count as waiting.

        Raises:
            QueueFull: a bound is reached.
        """
        spec, name = self._spec, queued.priority.name.lower()
        waiting = _without_starting(self._policy.waiting_of(queued.priority), self._estimate.room_for(queued))
        own, weight = self._policy.waiting_of_tenant(queued)
        for what, num_waiting, num_own, num_new, limit in (
            ("requests", waiting.num_requests, own.num_requests, 1, spec.max_requests),
            ("tokens", waiting.num_tokens, own.num_tokens, queued.num_queued_tokens, spec.max_tokens),
        ):
            if not num_waiting:
                continue  # one request always fits
            num_free = limit - num_waiting
            if num_new > num_free:
                full = f"{num_waiting} {what} of {name} requests wait"
            elif num_own and num_own + num_new > _TENANT_SHARE * weight * num_free:
                full = f"{num_own} {what} of tenant {queued.tenant!r}'s {name} requests wait"
            else:
                continue
            raise QueueFull(
                f"{full} already, of {limit} for all; come back after retry_after_ms, or send fewer at once",
                reason="queue_full",
                retry_after_ms=retry_after_ms(self._wait_s(queued), 0.0),
            )

    def _refuse_too_late(self, queued: QueuedRequest) -> None:
        allowed_s = min(
            queued.start_by_s - queued.arrival_s,
            queued.end_by_s - queued.arrival_s - self._estimate.service_s(queued),
            self._allowed_for_target_s() if _is_held_to_target(queued) else math.inf,
        )
        if allowed_s < math.inf and (wait_s := self._wait_s(queued)) > max(0.0, allowed_s):
            raise Unavailable(
                f"it would wait {1000 * wait_s:.0f} ms and may wait {max(0.0, 1000 * allowed_s):.0f}; come back after "
                "retry_after_ms",
                reason="overload",
                retry_after_ms=retry_after_ms(wait_s, max(0.0, allowed_s)),
            )

    def _allowed_for_target_s(self) -> float:
        """Return the seconds that a request may wait and still have its first token in time.

        At least half of the target: were it nothing once first tokens had been late, nothing would start any more that
        could show that they are not.
        """
        return self._first_token_s - min(self._estimate.first_token_s, self._first_token_s / 2)

    def true_up(self, queued: QueuedRequest, work: float) -> None:
        """Account for the work that a request took, once it is known."""
        self._policy.true_up(queued, work)

    def pass_over(self, queued: QueuedRequest) -> bool:
        """Return whether other requests may go before the next one, which does not fit."""
        return self._policy.pass_over(queued)

    def _starts_next(self, queued: QueuedRequest) -> bool:
        """Return whether there is room for a waiting request and all before it."""
        return self._estimate.fits_now(self._policy.ahead_of(queued), queued)

    def _wait_s(self, queued: QueuedRequest) -> float:
        estimate, ageing_s, ahead = self._estimate, self._spec.ageing_s, self._policy.ahead_of(queued)
        wait_s = estimate.wait_s(ahead, queued)
        if wait_s > ageing_s and (older := self._policy.num_aged_ahead_of(queued)) is not None:
            wait_s = min(wait_s, estimate.turn_s(*older, ageing_s=ageing_s))
        return max(wait_s, estimate.held_back_s(ahead, queued))


def _without_starting(waiting: Backlog, room: KvAmount) -> Backlog:
    """Return what waits and finds no room, counting all requests as if they were of one size."""
    if not waiting.num_requests:
        return waiting
    size = max(1.0, waiting.num_tokens / waiting.num_requests)
    num_starting = max(0, min(waiting.num_requests, room.num_seats, int(room.num_tokens / size)))
    return waiting + Backlog(-num_starting, -round(num_starting * size))


def late_error(queued: QueuedRequest, now_s: float) -> ServingError:
    """Return the error for the client of a request with a passed time limit."""
    waited_ms = round(1000 * (now_s - queued.arrival_s))
    if now_s < min(queued.start_by_s, queued.end_by_s):
        return Unavailable(
            f"it has waited {waited_ms} ms, and its first token would come too late; come back after retry_after_ms",
            reason="overload",
            retry_after_ms=max(1, waited_ms),
        )
    which = "deadline_ms" if queued.end_by_s <= now_s else "queue_timeout_ms"
    return RequestTimeout(f"its {which} passed after {waited_ms} ms; allow more, or send less", reason=which)


def _is_held_to_target(queued: QueuedRequest) -> bool:
    """Return whether the TTFT target counts for a request: not for batch with a time limit of its own."""
    return queued.priority is not Priority.BATCH or min(queued.start_by_s, queued.end_by_s) == math.inf


def _limit_s(queued: QueuedRequest) -> float:
    return min(_last_s(queued), queued.decide_s)


def _last_s(queued: QueuedRequest) -> float:
    """Return the time in seconds after which the request is pointless."""
    if queued.started_s is not None:
        return queued.end_by_s
    return min(queued.start_by_s, queued.end_by_s, queued.hopeless_s)
