# SPDX-License-Identifier: Apache-2.0
"""In which order waiting requests start: one small class for each policy that a deployment can name."""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

from ensemble_configs.spec.admission_spec import QueueSpec
from serving.admission.fair_shares import Backlog, FairShares
from serving.admission.queued_request import Ticket
from serving.engines.seam.scheduling import Priority

_IsOverShare = Callable[[str], bool]  # of a tenant
_MayBegin = Callable[[Ticket], bool]

STARTS_FOR_AGED = 4  # of so many, one
_MAX_PASSES = 64


class QueuePolicy(ABC):
    """Holds what waits. No order is final before a request starts."""

    @abstractmethod
    def __len__(self) -> int:
        """Requests that wait."""

    @abstractmethod
    def put(self, ticket: Ticket, *, is_ahead: bool = False) -> None:
        """Let it wait. Args: `is_ahead`: it was preempted, and goes before its equals."""

    @abstractmethod
    def first(self, now_s: float) -> tuple[Ticket, Priority] | None:
        """Whose turn it is, and the class whose room it may take: its own, or a higher one if it has waited long."""

    @abstractmethod
    def take(self, ticket: Ticket) -> None:
        """It starts."""

    @abstractmethod
    def remove(self, ticket: Ticket) -> None:
        """It leaves without having started."""

    def settle(self, ticket: Ticket, work: float) -> None:
        """A request that was taken runs no longer, and has taken so much."""

    def pass_over(self, ticket: Ticket) -> bool:  # noqa: ARG002  most let nobody pass
        """Whether others may go before the one whose turn it is and who does not fit; `first` names the next."""
        return False

    @abstractmethod
    def ahead_of(self, ticket: Ticket) -> Backlog:
        """What would start before a request that comes now, at most."""

    def num_aged_ahead_of(self, ticket: Ticket) -> tuple[int, int] | None:  # noqa: ARG002  most know no age
        """What waits and is of the classes above, and what else, if who is old enough has a turn; None: he has not."""
        return None

    @abstractmethod
    def waiting_of(self, priority: Priority) -> Backlog:
        """Of a class."""

    @abstractmethod
    def waiting_of_tenant(self, ticket: Ticket) -> tuple[Backlog, float]:
        """What the tenant of a request has waiting in its class, and its weight; infinite where all are one."""


class FirstComeFirstServed(QueuePolicy):
    """One line for all, as upstream has it; classes and tenants count for nothing but their bounds."""

    def __init__(self, spec: QueueSpec, is_over_share: _IsOverShare, may_begin: _MayBegin) -> None:
        del spec, is_over_share, may_begin
        self._classes = dict.fromkeys(Priority, Backlog())
        self._order: OrderedDict[int, Ticket] = OrderedDict()
        self._ahead: list[Ticket] = []  # preempted; the last goes first

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._order) + len(self._ahead)

    def put(self, ticket: Ticket, *, is_ahead: bool = False) -> None:
        """To the end of the line, or to its front."""
        if is_ahead:
            self._ahead.append(ticket)
        else:
            self._order[ticket.key] = ticket
        self._count(ticket, 1)

    def first(self, now_s: float) -> tuple[Ticket, Priority] | None:
        """The oldest."""
        del now_s
        ticket = self._ahead[-1] if self._ahead else next(iter(self._order.values()), None)
        return None if ticket is None else (ticket, ticket.priority)

    def take(self, ticket: Ticket) -> None:
        """It starts."""
        self.remove(ticket)

    def remove(self, ticket: Ticket) -> None:
        """It leaves."""
        if self._order.pop(ticket.key, None) is None:
            self._ahead.remove(ticket)
        self._count(ticket, -1)

    def ahead_of(self, ticket: Ticket) -> Backlog:
        """Everything."""
        del ticket
        return sum(self._classes.values(), Backlog())

    def waiting_of(self, priority: Priority) -> Backlog:
        """Of a class."""
        return self._classes[priority]

    def waiting_of_tenant(self, ticket: Ticket) -> tuple[Backlog, float]:
        """Tenants are not told apart."""
        return self._classes[ticket.priority], math.inf

    def _count(self, ticket: Ticket, sign: int) -> None:
        self._classes[ticket.priority] += Backlog(sign, sign * ticket.num_queued_tokens)


class FairClasses(QueuePolicy):
    """Higher classes first, tenants of a class by their shares.

    Who has waited `ageing_s` has every fourth start, whatever its class, the oldest first: so nothing starves, and the
    classes above lose no more than that. One that does not fit then is passed by, so often; then it is waited for.
    """

    def __init__(self, spec: QueueSpec, is_over_share: _IsOverShare, may_begin: _MayBegin) -> None:
        self._ageing_s = spec.ageing_s
        self._may_begin = may_begin
        self._num_starts_since_aged = 0
        self._aged: Ticket | None = None  # whose turn it is for its age
        self._num_passes = 0
        self._classes = {
            priority: FairShares(
                spec.tenant_weights, is_shortest_first=spec.is_shortest_first, is_over_share=is_over_share
            )
            for priority in Priority
        }

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(len(line) for line in self._classes.values())

    def put(self, ticket: Ticket, *, is_ahead: bool = False) -> None:
        """Into its class."""
        self._classes[ticket.priority].put(ticket, is_ahead=is_ahead)

    def first(self, now_s: float) -> tuple[Ticket, Priority] | None:
        """The next of the highest class, or who has waited too long."""
        for priority in Priority:
            ticket = self._classes[priority].first()
            if ticket is not None and self._may_begin(ticket):
                self._aged = self._find_aged(now_s) if self._num_starts_since_aged >= STARTS_FOR_AGED - 1 else None
                return self._aged or ticket, priority
        return None

    def _find_aged(self, now_s: float) -> Ticket | None:
        if not self._ageing_s:
            return None
        oldest = [ticket for line in self._classes.values() if (ticket := line.oldest()) is not None]
        aged = [one for one in oldest if now_s - one.arrival_s >= self._ageing_s and self._may_begin(one)]
        return min(aged, key=lambda ticket: (ticket.arrival_s, -ticket.priority), default=None)

    def take(self, ticket: Ticket) -> None:
        """It starts."""
        if ticket is self._aged:
            self._num_starts_since_aged = self._num_passes = 0
        else:
            self._num_starts_since_aged += 1
        self._aged = None
        self._classes[ticket.priority].take(ticket)

    def settle(self, ticket: Ticket, work: float) -> None:
        """To its tenant."""
        self._classes[ticket.priority].settle(ticket, work)

    def pass_over(self, ticket: Ticket) -> bool:
        """The aged one, `_MAX_PASSES` times."""
        if ticket is not self._aged or self._num_passes >= _MAX_PASSES:
            return False
        self._num_passes += 1
        self._num_starts_since_aged = 0
        return True

    def remove(self, ticket: Ticket) -> None:
        """It leaves."""
        self._classes[ticket.priority].remove(ticket)

    def ahead_of(self, ticket: Ticket) -> Backlog:
        """The classes above, and of its own what the tenants' shares let go first."""
        above = (line.backlog for priority, line in self._classes.items() if priority < ticket.priority)
        return sum(above, self._classes[ticket.priority].ahead_of(ticket.tenant))

    def num_aged_ahead_of(self, ticket: Ticket) -> tuple[int, int] | None:
        """Everything that waits is older."""
        if not self._ageing_s:
            return None
        num_above = sum(len(line) for priority, line in self._classes.items() if priority < ticket.priority)
        return num_above, len(self) - num_above

    def waiting_of(self, priority: Priority) -> Backlog:
        """Of a class."""
        return self._classes[priority].backlog

    def waiting_of_tenant(self, ticket: Ticket) -> tuple[Backlog, float]:
        """Of a request's tenant in its class."""
        return self._classes[ticket.priority].waiting_of(ticket.tenant)


POLICIES: dict[str, Callable[[QueueSpec, _IsOverShare, _MayBegin], QueuePolicy]] = {
    "fifo": FirstComeFirstServed,
    "fair_classes": FairClasses,
}
