# SPDX-License-Identifier: Apache-2.0
"""The waiting requests of one class, by tenant: each tenant gets its weighted share of the work.

Start-time fair queueing (Goyal, Vin, Cheng 1996): a tenant's virtual time goes on by work / weight with each of its
requests, the tenant that is furthest behind is next, and a tenant that comes back starts where the others are now. So
does a tenant that holds no more than its share of what runs: else one large request, long over, would cost it its next
turns while others fill the engine. A decision takes O(log tenants + log requests of the tenant).
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from serving.admission.queued_request import QueuedRequest

_FIRST = -1.0  # before every order that a queued request may have
_MAX_IDLE_TENANTS = 10_000
_MAX_GONE = 64  # entries that are kept beside as many as wait


@dataclass(slots=True, eq=False)
class _Entry:
    queued: QueuedRequest
    is_gone: bool = False  # heaps and queues drop the entry when it comes to the front


@dataclass(slots=True, eq=False)
class _Tenant:
    weight: float
    virtual_s: float = 0.0
    waiting: list[tuple[float, int, _Entry]] = field(default_factory=list)  # a heap
    num_requests: int = 0
    num_tokens: int = 0
    turn: int | None = None  # number in the heap of turns, where the tenant may stand too early


class Backlog(msgspec.Struct, frozen=True, gc=False):
    """The size of a queue: its requests and their tokens."""

    num_requests: int = 0
    num_tokens: int = 0  # prompts and expected outputs

    def __add__(self, other: "Backlog") -> "Backlog":
        return Backlog(self.num_requests + other.num_requests, self.num_tokens + other.num_tokens)


class FairShares:
    """The queues of the tenants of one class.

    Args:
        weights: of tenants; a tenant that is not named has 1.
        is_shortest_first: a tenant's request with the least expected work goes first, not the oldest.
        is_over_share: returns whether a tenant holds more than its share of what runs.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        *,
        is_shortest_first: bool,
        is_over_share: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._is_over_share = is_over_share
        self._weights = weights
        self._is_shortest_first = is_shortest_first
        self._tenants: dict[str, _Tenant] = {}
        self._turns: list[tuple[float, int, _Tenant]] = []  # a heap: each tenant with work once, when its turn comes
        self._entries: dict[int, _Entry] = {}  # by the request's key
        self._by_arrival: deque[_Entry] = deque()
        self._numbers = itertools.count()
        self._virtual_now = 0.0
        self._waiting_weight = 0.0  # of the tenants with work
        self._num_tokens = 0
        self._max_tenants = _MAX_IDLE_TENANTS

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._entries)

    @property
    def backlog(self) -> Backlog:
        """Return the requests and tokens that wait."""
        return Backlog(len(self._entries), self._num_tokens)

    def put(self, queued: QueuedRequest, *, is_ahead: bool = False) -> None:
        """Add a request to its tenant's queue; `is_ahead`: before the tenant's requests that have not run yet."""
        tenant = self._tenant(queued.tenant)
        entry = self._entries[queued.key] = _Entry(queued)
        order = _FIRST if is_ahead else float(queued.num_queued_tokens) if self._is_shortest_first else 0.0
        heapq.heappush(tenant.waiting, (order, next(self._numbers), entry))
        (self._by_arrival.appendleft if is_ahead else self._by_arrival.append)(entry)
        if tenant.num_requests == 0:
            self._waiting_weight += tenant.weight
            tenant.virtual_s = max(tenant.virtual_s, self._virtual_now)
            if tenant.turn is None:
                self._schedule(tenant)
        self._count(tenant, queued, 1)

    def first(self) -> QueuedRequest | None:
        """Return the request that starts next; None: nothing waits."""
        while self._turns:
            turn_s, turn, tenant = self._turns[0]
            if turn != tenant.turn:
                heapq.heappop(self._turns)
            elif tenant.num_requests == 0:
                heapq.heappop(self._turns)
                tenant.turn = None
            elif turn_s < tenant.virtual_s:
                heapq.heappop(self._turns)
                self._schedule(tenant)
            else:
                while tenant.waiting[0][2].is_gone:
                    heapq.heappop(tenant.waiting)
                return tenant.waiting[0][2].queued
        return None

    def oldest(self) -> QueuedRequest | None:
        """Return the request that has waited longest; None: nothing waits."""
        while self._by_arrival and self._by_arrival[0].is_gone:
            self._by_arrival.popleft()
        return self._by_arrival[0].queued if self._by_arrival else None

    def take(self, queued: QueuedRequest) -> None:
        """Start a request: charge its expected work to its tenant, and remove it."""
        tenant = self._tenants[queued.tenant]
        if queued is self.first():  # not a request taken for its age: other tenants are not as far
            self._virtual_now = max(self._virtual_now, tenant.virtual_s)
        queued.is_charged = self._is_over_share(queued.tenant)
        if queued.is_charged:
            tenant.virtual_s += queued.expected_work / tenant.weight
        else:
            self._join_others(tenant)
        self.remove(queued)

    def true_up(self, queued: QueuedRequest, work: float) -> None:
        """Replace the expected work of a request that has stopped running by the work it took."""
        tenant = self._tenants.get(queued.tenant)
        if tenant is None:  # forgotten meanwhile
            return
        if not self._is_over_share(queued.tenant):
            self._join_others(tenant)
        elif queued.is_charged:
            tenant.virtual_s = max(0.0, tenant.virtual_s + (work - queued.expected_work) / tenant.weight)
            if tenant.num_requests:
                self._schedule(tenant)  # its turn may be earlier now; its old entry in the heap is void
        queued.expected_work = 0.0

    def remove(self, queued: QueuedRequest) -> None:
        """Remove a request from its tenant's queue."""
        self._entries.pop(queued.key).is_gone = True
        tenant = self._tenants[queued.tenant]
        self._count(tenant, queued, -1)
        if tenant.num_requests == 0:
            self._waiting_weight -= tenant.weight
            self._forget_idle()
        if len(tenant.waiting) > 2 * tenant.num_requests + _MAX_GONE:
            tenant.waiting = [waiting for waiting in tenant.waiting if not waiting[2].is_gone]
            heapq.heapify(tenant.waiting)
        if len(self._by_arrival) > 2 * len(self._entries) + _MAX_GONE:
            self._by_arrival = deque(entry for entry in self._by_arrival if not entry.is_gone)
        if not self._entries:
            self._waiting_weight = 0.0  # exactly

    def ahead_of(self, name: str) -> Backlog:
        """Return the most that goes before a new request of a tenant.

        These are the tenant's own queue and, of other tenants, what their shares allow.
        """
        own, own_weight = self.waiting_of(name)
        weight = self._waiting_weight + (0.0 if own.num_requests else own_weight)
        shares = weight / own_weight
        return Backlog(
            min(len(self._entries), round(own.num_requests * shares + shares - 1)),
            min(self._num_tokens, round(own.num_tokens * shares)),
        )

    def waiting_of(self, name: str) -> tuple[Backlog, float]:
        """Return what a tenant has waiting, and its weight."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return Backlog(), self._weights.get(name, 1.0)
        return Backlog(tenant.num_requests, tenant.num_tokens), tenant.weight

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(self._weights.get(name, 1.0))
        return tenant

    def _join_others(self, tenant: _Tenant) -> None:
        """Move a tenant within its share to the current virtual time.

        What it held before does not count, and its equals go before it.
        """
        tenant.virtual_s = self._virtual_now
        if tenant.num_requests:
            self._schedule(tenant)

    def _schedule(self, tenant: _Tenant) -> None:
        tenant.turn = next(self._numbers)
        heapq.heappush(self._turns, (tenant.virtual_s, tenant.turn, tenant))
        if len(self._turns) > 2 * len(self._tenants) + _MAX_GONE:
            self._turns = [turn for turn in self._turns if turn[1] == turn[2].turn]
            heapq.heapify(self._turns)

    def _count(self, tenant: _Tenant, queued: QueuedRequest, sign: int) -> None:
        num_tokens = sign * queued.num_queued_tokens
        tenant.num_requests += sign
        tenant.num_tokens += num_tokens
        self._num_tokens += num_tokens

    def _forget_idle(self) -> None:
        """Forget tenants with nothing waiting that are not ahead of the others: they are like new ones."""
        if len(self._tenants) <= self._max_tenants:
            return
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if tenant.num_requests or tenant.virtual_s > self._virtual_now
        }
        self._max_tenants = max(_MAX_IDLE_TENANTS, 2 * len(self._tenants))
