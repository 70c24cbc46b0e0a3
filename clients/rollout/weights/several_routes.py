# SPDX-License-Identifier: Apache-2.0
"""The weights of several routes as those of one: a Gateway has one route for HTTP and one for gRPC."""

import time
from collections.abc import Sequence

from clients.rollout.weights.weights import Present, RouteTaken, Weights
from trireme.base.errors import ServingError


class SeveralRoutes:
    """Routes that are moved together; a `clients.rollout.weights.weights.Weights`.

    Each is set by itself, so one may be ahead of another for a moment, or until a controller that died is back.
    """

    def __init__(self, routes: Sequence[Weights]) -> None:
        self._routes = tuple(routes)

    def read(self) -> Present:
        """Return the weights of the route that gives the candidate most."""
        return max((route.read() for route in self._routes), key=lambda present: present.weight)

    def check(self) -> None:
        """Check that a rollout may take each route."""
        for route in self._routes:
            route.check()

    def set(self, weight: int, owner: str) -> None:
        """Set the candidate's weight in each route that can be set; then raise what kept one from it."""
        failed: list[ServingError] = []
        for route in self._routes:
            try:
                route.set(weight, owner)
            except ServingError as exc:
                failed.append(exc)
        if failed:  # what can still be done comes before what is left to others
            raise min(failed, key=lambda each: isinstance(each, RouteTaken))

    def wait(self, weight: int, *, timeout_s: float) -> bool:
        """Return whether all go by a weight; the time is for all together."""
        end_s = time.monotonic() + timeout_s
        return all(route.wait(weight, timeout_s=max(end_s - time.monotonic(), 0)) for route in self._routes)

    def let_go(self, owner: str) -> None:
        """Take a rollout's name away from each."""
        for route in self._routes:
            route.let_go(owner)
