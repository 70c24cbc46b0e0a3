# SPDX-License-Identifier: Apache-2.0
"""The orders in which waiting requests start: one small class for each policy that a deployment can name."""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

from ensemble_configs.spec.admission_spec import QueueSpec
from serving.admission.fair_shares import Backlog, FairShares
from serving.admission.queued_request import QueuedRequest
from serving.engines.seam.scheduling import Priority

_IsOverShare = Callable[[str], bool]  # takes the name of a tenant
_MayBegin = Callable[[QueuedRequest], bool]

STARTS_FOR_AGED = 4  # one start of this many is for the oldest aged request
_MAX_PASSES = 64


class QueuePolicy(ABC):
    """The waiting requests and their order, which is not final before a request starts."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of waiting requests."""

    @abstractmethod
    def put(self, queued: QueuedRequest, *, is_ahead: bool = False) -> None:
        """Add a request; `is_ahead`: it was preempted, and goes before its equals."""

    @abstractmethod
    def first(self, now_s: float) -> tuple[QueuedRequest, Priority] | None:
        """Return the request that starts next, and the class from which it may take room; None: nothing can start.

        The class is the request's own, or a higher one if the request has waited long.
        """

    @abstractmethod
    def take(self, queued: QueuedRequest) -> None:
        """Remove a request that starts."""

    @abstractmethod
    def remove(self, queued: QueuedRequest) -> None:
        """Remove a request that leaves without having started."""

    def true_up(self, queued: QueuedRequest, work: float) -> None:
        """Account for the work of a request that has stopped running."""

    def pass_over(self, queued: QueuedRequest) -> bool:  # noqa: ARG002  most let nobody pass
        """Return whether other requests may go before the next one, which does not fit; `first` then names another."""
        return False

    @abstractmethod
    def ahead_of(self, queued: QueuedRequest) -> Backlog:
        """Return the most that would start before a request that comes now."""

    def num_aged_ahead_of(self, queued: QueuedRequest) -> tuple[int, int] | None:  # noqa: ARG002  most know no age
        """Return the waiting requests of the classes above and the other waiting ones, if aged requests have a turn.

        None: age gives no turn.
        """
        return None

    @abstractmethod
    def waiting_of(self, priority: Priority) -> Backlog:
        """Return what waits of a class."""

    @abstractmethod
    def waiting_of_tenant(self, queued: QueuedRequest) -> tuple[Backlog, float]:
        """Return what a request's tenant has waiting in its class, and the tenant's weight.

        The weight is math.inf where tenants are not told apart.
        """


class FirstComeFirstServed(QueuePolicy):
    """A single queue for all requests, as upstream has it; classes and tenants count for their bounds alone."""

    def __init__(self, spec: QueueSpec, is_over_share: _IsOverShare, may_begin: _MayBegin) -> None:
        del spec, is_over_share, may_begin
        self._classes = dict.fromkeys(Priority, Backlog())
        self._order: OrderedDict[int, QueuedRequest] = OrderedDict()
        self._ahead: list[QueuedRequest] = []  # preempted requests; the last goes first

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._order) + len(self._ahead)

    def put(self, queued: QueuedRequest, *, is_ahead: bool = False) -> None:
        """Add a request at the end of the queue, or at its front."""
        if is_ahead:
            self._ahead.append(queued)
        else:
            self._order[queued.key] = queued
        self._count(queued, 1)

    def first(self, now_s: float) -> tuple[QueuedRequest, Priority] | None:
        """Return the oldest request and its class."""
        del now_s
        queued = self._ahead[-1] if self._ahead else next(iter(self._order.values()), None)
        return None if queued is None else (queued, queued.priority)

    def take(self, queued: QueuedRequest) -> None:
        """Remove a request that starts."""
        self.remove(queued)

    def remove(self, queued: QueuedRequest) -> None:
        """Remove a request."""
        if self._order.pop(queued.key, None) is None:
            self._ahead.remove(queued)
        self._count(queued, -1)

    def ahead_of(self, queued: QueuedRequest) -> Backlog:
        """Return everything that waits."""
        del queued
        return sum(self._classes.values(), Backlog())

    def waiting_of(self, priority: Priority) -> Backlog:
        """Return what waits of a class."""
        return self._classes[priority]

    def waiting_of_tenant(self, queued: QueuedRequest) -> tuple[Backlog, float]:
        """Return what waits of a request's class, and math.inf: tenants are not told apart."""
        return self._classes[queued.priority], math.inf

    def _count(self, queued: QueuedRequest, sign: int) -> None:
        self._classes[queued.priority] += Backlog(sign, sign * queued.num_queued_tokens)


class FairClasses(QueuePolicy):
    """Higher classes first, and the tenants of a class by their shares.

    A request that has waited `ageing_s` has every fourth start, whatever its class, the oldest first: so nothing
    starves, and the classes above lose no more than that. An aged request that does not fit is passed by `_MAX_PASSES`
    times; then the queue waits for it.
    """

    def __init__(self, spec: QueueSpec, is_over_share: _IsOverShare, may_begin: _MayBegin) -> None:
        self._ageing_s = spec.ageing_s
        self._may_begin = may_begin
        self._num_starts_since_aged = 0
        self._aged: QueuedRequest | None = None  # the request that has the next start for its age
        self._num_passes = 0
        self._classes = {
            priority: FairShares(
                spec.tenant_weights, is_shortest_first=spec.is_shortest_first, is_over_share=is_over_share
            )
            for priority in Priority
        }

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(len(line) for line in self._classes.values())

    def put(self, queued: QueuedRequest, *, is_ahead: bool = False) -> None:
        """Add a request to the queue of its class."""
        self._classes[queued.priority].put(queued, is_ahead=is_ahead)

    def first(self, now_s: float) -> tuple[QueuedRequest, Priority] | None:
        """Return the next request of the highest class, or one that has waited too long."""
        for priority in Priority:
            queued = self._classes[priority].first()
            if queued is not None and self._may_begin(queued):
                self._aged = self._find_aged(now_s) if self._num_starts_since_aged >= STARTS_FOR_AGED - 1 else None
                return self._aged or queued, priority
        return None

    def _find_aged(self, now_s: float) -> QueuedRequest | None:
        if not self._ageing_s:
            return None
        oldest = [queued for line in self._classes.values() if (queued := line.oldest()) is not None]
        aged = [one for one in oldest if now_s - one.arrival_s >= self._ageing_s and self._may_begin(one)]
        return min(aged, key=lambda queued: (queued.arrival_s, -queued.priority), default=None)

    def take(self, queued: QueuedRequest) -> None:
        """Remove a request that starts, and count its start."""
        if queued is self._aged:
            self._num_starts_since_aged = self._num_passes = 0
        else:
            self._num_starts_since_aged += 1
        self._aged = None
        self._classes[queued.priority].take(queued)

    def true_up(self, queued: QueuedRequest, work: float) -> None:
        """Pass the work of a request on to its tenant's share."""
        self._classes[queued.priority].true_up(queued, work)

    def pass_over(self, queued: QueuedRequest) -> bool:
        """Return whether the next request is an aged one that may be passed by, at most `_MAX_PASSES` times."""
        if queued is not self._aged or self._num_passes >= _MAX_PASSES:
            return False
        self._num_passes += 1
        self._num_starts_since_aged = 0
        return True

    def remove(self, queued: QueuedRequest) -> None:
        """Remove a request."""
        self._classes[queued.priority].remove(queued)

    def ahead_of(self, queued: QueuedRequest) -> Backlog:
        """Return what waits of the classes above, and what tenants' shares put before a request in its own class."""
        above = (line.backlog for priority, line in self._classes.items() if priority < queued.priority)
        return sum(above, self._classes[queued.priority].ahead_of(queued.tenant))

    def num_aged_ahead_of(self, queued: QueuedRequest) -> tuple[int, int] | None:
        """Return the waiting requests of the classes above and the other waiting ones: all are older than a new one."""
        if not self._ageing_s:
            return None
        num_above = sum(len(line) for priority, line in self._classes.items() if priority < queued.priority)
        return num_above, len(self) - num_above

    def waiting_of(self, priority: Priority) -> Backlog:
        """Return what waits of a class."""
        return self._classes[priority].backlog

    def waiting_of_tenant(self, queued: QueuedRequest) -> tuple[Backlog, float]:
        """Return what a request's tenant has waiting in its class, and its weight."""
        return self._classes[queued.priority].waiting_of(queued.tenant)


POLICIES: dict[str, Callable[[QueueSpec, _IsOverShare, _MayBegin], QueuePolicy]] = {
    "fifo": FirstComeFirstServed,
    "fair_classes": FairClasses,
}
