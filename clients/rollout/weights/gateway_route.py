# SPDX-License-Identifier: Apache-2.0
"""The weights in an HTTPRoute or GRPCRoute, set with optimistic concurrency, and watched until a Gateway takes them."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from clients.rollout.weights.route_weights import (
    Route,
    is_refusal,
    name_of,
    present_in,
    why_not_taken,
    with_weight,
    without_claim,
)
from clients.rollout.weights.weights import Present, RouteTaken, WeightsRefused, check_owner, check_weight
from trireme.base.errors import ServerError, Unavailable

_MAX_CONFLICTS = 10  # a Gateway's controller writes the status of the same object
_LONGEST_WATCH_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class Conflict(ServerError):
    """A change to an object that is another one by now."""


class Expired(ServerError):
    """A version from which the API server can no longer say what has changed."""


class Listed(NamedTuple):
    """A route, and the version of the list that it was in: from there changes are watched."""

    route: Route
    version: str


class RouteApi(Protocol):
    """A route in the Kubernetes API (`clients.rollout.weights.route_api.KubernetesRoute`).

    Each call raises Unavailable where nobody answers, and AccessDenied or RequestError where it may not be done.
    """

    def read(self) -> Listed:
        """Return the route as it is."""

    def patch(self, change: Mapping[str, Any], *, is_trial: bool = False) -> Route:
        """Apply a JSON merge patch, or only try it. Raises: Conflict: the route is another one by now."""

    def watch(self, version: str, *, timeout_s: float) -> Iterator[Listed]:
        """Yield the route whenever it changes, until the time is over. Raises: Expired: the version is too old."""


class GatewayRoute:
    """The weights of one route; a `clients.rollout.weights.weights.Weights`.

    Args:
        stable, candidate: names of the backends, as the route's `backendRefs` have them.
        pause: waits for so many seconds, between attempts.
    """

    def __init__(
        self, api: RouteApi, *, stable: str, candidate: str, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._api = api
        self._names = {"stable": stable, "candidate": candidate}
        self._pause = pause

    def read(self) -> Present:
        """Return the present weights."""
        return present_in(self._api.read().route, **self._names)

    def check(self) -> None:
        """Check that a rollout may take the route, by a patch that the API server does all but store."""
        self._change(lambda route: self._taken(route, 0, owner=""), is_trial=True)

    def _taken(self, route: Route, weight: int, owner: str) -> dict[str, Any]:
        check_owner(present_in(route, **self._names), weight, owner, where=name_of(route))
        return with_weight(route, weight, owner, **self._names)

    def set(self, weight: int, owner: str) -> None:
        """Set the candidate's weight and write who did, unless both are so."""
        check_weight(weight)

        def change(route: Route) -> dict[str, Any] | None:
            change = self._taken(route, weight, owner)
            present = present_in(route, **self._names)
            is_so = present.claim is not None and present.claim.weight == present.weight == weight
            return None if is_so else change

        self._change(change)

    def let_go(self, owner: str) -> None:
        """Take a rollout's name away from the route."""

        def change(route: Route) -> dict[str, Any] | None:
            claim = present_in(route, **self._names).claim
            return without_claim(route) if claim is not None and claim.owner == owner else None

        self._change(change)

    def _change(self, change_of: Callable[[Route], dict[str, Any] | None], *, is_trial: bool = False) -> None:
        for _ in range(_MAX_CONFLICTS):
            route = self._api.read().route
            change = change_of(route)
            if change is None:
                return
            try:
                self._api.patch(change, is_trial=is_trial)
            except Conflict:
                continue  # it is read again: only the status may have changed, or the weights
            return
        raise Unavailable(f"{name_of(route)} changes too often to be set; it is tried again", reason="conflict")

    def wait(self, weight: int, *, timeout_s: float) -> bool:
        """Return whether every Gateway of the route has taken the weight."""
        why_not = ""
        for route in self._states(time.monotonic() + timeout_s):
            present = present_in(route, **self._names)
            if present.weight != weight:
                raise RouteTaken(
                    f"{name_of(route)} gives the candidate {present.weight:g} and not the {weight} that was set"
                    f"{f' ({present.moved_by} was the last)' if present.moved_by else ''}",
                    field="weights",
                    value=present.weight,
                    reason="taken",
                )
            why_not = why_not_taken(route)
            if not why_not:
                return True
        if is_refusal(why_not):  # and has stayed so: a Service that was just made may take a moment to be seen
            raise WeightsRefused(f"the weights are not taken: {why_not}", reason="refused")
        return False

    def _states(self, end_s: float) -> Iterator[Route]:
        """Yield the route as it is and whenever it changes, until a time; whatever breaks meanwhile is begun again.

        Raises:
            Unavailable: nobody answered at all.
        """
        version, pause_s, failed = "", _FIRST_PAUSE_S, None
        is_answered = False
        while True:
            left_s = end_s - time.monotonic()
            if left_s <= 0 and (is_answered or failed):
                break
            try:
                if not version:
                    listed = self._api.read()
                    version, is_answered, pause_s = listed.version, True, _FIRST_PAUSE_S
                    yield listed.route
                    continue
                for listed in self._api.watch(version, timeout_s=min(left_s, _LONGEST_WATCH_S)):
                    version, pause_s = listed.version, _FIRST_PAUSE_S
                    if listed.route:
                        yield listed.route
            except Expired:  # what is kept of the past is minutes long: a new list has a version that is known
                version = ""
            except Unavailable as exc:
                failed, version = exc, ""
                self._pause(min(pause_s, max(end_s - time.monotonic(), 0)))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if failed is not None and not is_answered:
            raise failed
