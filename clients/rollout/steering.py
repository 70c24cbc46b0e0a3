# SPDX-License-Identifier: Apache-2.0
"""The steering of requests by the phase of a rollout, as its controller sees it."""

import time
from collections.abc import Callable
from typing import Protocol

from clients.rollout.records.state import Rollout


class Steering(Protocol):
    """The steering of requests by whoever sends them."""

    def follow(self, rollout: Rollout) -> None:
        """Send requests by a phase.

        Raises:
            RouteTaken: somebody else sends them (`clients.rollout.weights.weights`).
            WeightsRefused: the router does not take the weights.
            Unavailable: it has not happened yet.
        """

    def holds(self, rollout: Rollout) -> bool:
        """Return whether every request goes by this phase; raise as `follow` does."""

    def let_go(self) -> None:
        """Leave the routes to others: the rollout is about to end."""


class Leases:
    """Requests that are sent by whoever asks the rollout, each for as long as a lease.

    Args:
        now: seconds since 1970.
    """

    def __init__(self, lease_s: float, now: Callable[[], float] = time.time) -> None:
        self._lease_s = lease_s
        self._now = now

    def follow(self, rollout: Rollout) -> None:
        """Do nothing: they ask by themselves."""

    def holds(self, rollout: Rollout) -> bool:
        """Return whether everybody knows this phase, or has lost its lease and goes to the stable release."""
        return self._now() >= rollout.phase_since + self._lease_s

    def let_go(self) -> None:
        """Do nothing: leases end."""
