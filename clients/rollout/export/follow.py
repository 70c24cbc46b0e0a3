# SPDX-License-Identifier: Apache-2.0
"""The writer of a file that says a rollout's share for as long as the rollout goes on.

The file is to a router what `clients.rollout.routing.routed_client` is to a client: it has a lease. Where nobody drives
the rollout for so long, or its store is away, the candidate gets nothing, until that is over.
"""

import math
import time
from collections.abc import Callable

from clients.rollout.export.definition import share_outside
from clients.rollout.records.rollout_plan import Plan, read_plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.records.store_place import StorePlace
from trireme.base.errors import RequestError, Unavailable

LOOK_S = 0.5
SHORTEST_LEASE_S = 2.0  # two looks, the writing, and the router's reading of it
_DRIVEN = (Phase.RUNNING, Phase.PAUSED, Phase.HELD, Phase.PROMOTING)  # what a rollout has a share by its process


class Follower:
    """The writer of one rollout's file.

    Args:
        check: called with each share of the plan; raises where one cannot be written down.
        write: called with the share and the reason whenever the share changes.
    """

    def __init__(
        self, store: StorePlace, number: int, *, check: Callable[[float], object], write: Callable[[float, str], None]
    ) -> None:
        self._place = store
        self._number = number
        self._check = check
        self._write = write
        self._written: float | None = None
        self._phase: Phase | None = None
        self._driven_at_s = self._asked_at_s = -math.inf

    def run(self) -> None:
        """Write the share whenever it changes, until the rollout is over.

        Raises:
            RequestError: its leases are shorter than a follower can keep, or a share cannot be written down.
        """
        with Store(self._place, patience_s=0.0) as kept:  # a store that is away for longer than a lease is told
            plan = read_plan(kept.get(self._number).plan)
            if plan.lease_s < SHORTEST_LEASE_S:
                raise RequestError(
                    f"lease_s of rollout {self._number} is {plan.lease_s:g}, and a follower needs {SHORTEST_LEASE_S:g} "
                    "at least; start rollouts with a longer --lease-s",
                    field="lease_s",
                    value=plan.lease_s,
                )
            for share in plan.shares:
                self._check(share)  # what cannot be written is told before anything is
            while not self._look(kept, plan):
                time.sleep(LOOK_S)

    def _look(self, kept: Store, plan: Plan) -> bool:
        """Write the share that holds now, if it is new, and return whether the rollout is over."""
        try:
            rollout = kept.get(self._number)
            share, why = share_outside(rollout, plan), str(rollout.phase)
            if rollout.phase in _DRIVEN and not self._is_driven(kept, plan.lease_s):
                share, why = 0.0, "nobody drives the rollout: `trireme rollout run`"
        except Unavailable as exc:
            if self._phase in _DRIVEN and not self._has_lease(plan.lease_s):
                self._write_new(0.0, exc.message)
            return False
        self._phase = rollout.phase
        self._write_new(share, why)
        return rollout.phase.is_over

    def _write_new(self, share: float, why: str) -> None:
        if share != self._written:
            self._write(share, why)
            self._written = share

    def _is_driven(self, kept: Store, lease_s: float) -> bool:
        now_s = time.monotonic()
        if now_s - self._asked_at_s >= lease_s / 4:  # seldom: it takes the lock for a moment
            self._asked_at_s = now_s
            if kept.is_driven():
                self._driven_at_s = now_s
        return self._has_lease(lease_s)

    def _has_lease(self, lease_s: float) -> bool:
        return time.monotonic() - self._driven_at_s < lease_s
