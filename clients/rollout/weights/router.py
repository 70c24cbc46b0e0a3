# SPDX-License-Identifier: Apache-2.0
"""The steering of requests by a router's weights: they are set for each phase, known to be in force, and kept watch on.

A weight is set again by whoever drives the rollout next; the route itself says what had been set.
"""

import contextlib
import time
from collections.abc import Callable

from clients.rollout.export.definition import WEIGHT_SUM, share_outside, weights
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.weights.weights import RouteTaken, Weights
from trireme.base.errors import Unavailable

_WAIT_S = 2.0  # of one look of the controller, which has commands to take meanwhile
_PERIOD_S = 5.0  # until it is noticed that somebody else moves the weights


class Router:
    """The steering of one rollout; a `clients.rollout.steering.Steering`.

    Args:
        weights: the weights that are moved.
        plan: plan of the rollout; `lease_s` of it is how long a router may take to send by weights that it has taken.
        number: number of the rollout.
        now: a clock in seconds.
        tell: reporter of messages for people.
    """

    def __init__(
        self,
        weights: Weights,
        plan: Plan,
        number: int,
        *,
        now: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._weights = weights
        self._plan = plan
        self._now = now
        self._tell = tell
        self._owner = owner_of(plan, number)
        self._done: tuple[Phase, int] | None = None  # whose weights are in force
        self._since_s = self._looked_s = 0.0
        self._weight: int | None = None

    def follow(self, rollout: Rollout) -> None:
        """Set the weights of a phase and wait until they are in force; later look whether they are still there."""
        state, weight = (rollout.phase, rollout.step), weights(share_outside(rollout, self._plan))[0]
        if state == self._done and self._now() < self._looked_s + _PERIOD_S:
            return
        self._weights.set(weight, self._owner)
        if not self._weights.wait(weight, timeout_s=_WAIT_S):
            raise Unavailable(f"{self._plan.weights} does not go by {_share(weight)} yet", reason="pending")
        self._looked_s = self._now()
        if state != self._done:
            if weight != self._weight:
                self._tell(f"{self._plan.weights}: {_share(weight)}")
            self._done, self._weight, self._since_s = state, weight, self._looked_s

    def holds(self, rollout: Rollout) -> bool:
        """Return whether every request goes by this phase."""
        self.follow(rollout)
        return self._now() >= self._since_s + self._plan.lease_s

    def let_go(self) -> None:
        """Take the rollout's name away from the routes that are still its own."""
        with contextlib.suppress(RouteTaken):
            self._weights.let_go(self._owner)


def owner_of(plan: Plan, number: int) -> str:
    """Return the name that a rollout leaves beside weights: of two stores' rollouts the seeds differ."""
    return f"rollout {number} ({plan.salt})"


def _share(weight: int) -> str:
    return f"{100 * weight / WEIGHT_SUM:g} % to the candidate"
