# SPDX-License-Identifier: Apache-2.0
"""The weights of a router between the stable server and the candidate's, and the rule of who may set them.

Whoever sets the weights says so beside them. So a controller that was killed finds what it had set, and one that finds
other weights than it had set knows that somebody else moves them, and leaves them alone.
"""

from typing import NamedTuple, Protocol

from clients.rollout.export.definition import WEIGHT_SUM
from trireme.base.errors import RequestError, ServerError


class RouteTaken(RequestError):
    """A route that somebody else moves, or has taken away; nothing was changed."""


class WeightsRefused(ServerError):
    """Weights that the router has read and does not take."""


class Claim(NamedTuple):
    """The note of a rollout beside the weights: its name, and the candidate's weight that it set."""

    owner: str
    weight: int


class Present(NamedTuple):
    """The weights of a route as they are.

    Attributes:
        weight: the candidate's part of 10,000; a fraction where somebody else's weights have another sum.
        claim: what a rollout wrote beside them; None: nothing.
        moved_by: who changed the route last, for people; "": not known.
    """

    weight: float
    claim: Claim | None = None
    moved_by: str = ""


class Weights(Protocol):
    """The weights of one router."""

    def read(self) -> Present:
        """Return the present weights.

        Raises:
            Unavailable: nobody answers now.
            ServingError: there are no such weights, or they may not be read.
        """

    def check(self) -> None:
        """Check that a rollout may take the weights: the candidate has none, and they can be set; nothing is changed.

        Raises:
            RouteTaken: somebody else moves them.
            ServingError: they cannot be read or set.
        """

    def set(self, weight: int, owner: str) -> None:
        """Set the candidate's weight, of 10,000, and write who did; where both are so already, nothing happens.

        Raises:
            RouteTaken: somebody else moves them (`check_owner`).
            Unavailable: nobody answers now; the weight may have been set or not.
            ServingError: they may not be set.
        """

    def wait(self, weight: int, *, timeout_s: float) -> bool:
        """Return whether the router goes by a weight that was set, as far as that can be known, at the latest then.

        Raises:
            RouteTaken: the weights have become others meanwhile.
            WeightsRefused: the router says that it does not take them.
            Unavailable: nobody answers.
        """

    def let_go(self, owner: str) -> None:
        """Take a rollout's name away from the weights, which stay; of somebody else's nothing is changed."""


def check_weight(weight: int) -> None:
    """Raise a RequestError for what is no weight."""
    if not 0 <= weight <= WEIGHT_SUM:
        raise RequestError(
            f"weight must be 0 to {WEIGHT_SUM:,}, the candidate's part of {WEIGHT_SUM:,}, got {weight}",
            field="weight",
            value=weight,
        )


def check_owner(present: Present, weight: int, owner: str, *, where: str) -> None:
    """Check that a rollout may set the weights of a route: they are what it set last, or what it is about to set.

    Raises:
        RouteTaken: another rollout has them, or somebody has changed them.
    """
    claim = present.claim
    if claim is not None and claim.owner != owner:
        raise RouteTaken(
            f"{where} belongs to {claim.owner}; end that one, or take its mark away where it will not go on "
            "(docs/rollouts.md#weights-of-a-router)",
            field="weights",
            value=claim.owner,
            reason="taken",
        )
    if present.weight == weight or (claim is not None and claim.weight == present.weight):
        return
    set_by_us = "this rollout has set none" if claim is None else f"this rollout had set {claim.weight}"
    raise RouteTaken(
        f"{where} gives the candidate {present.weight:g} of {WEIGHT_SUM:,}, and {set_by_us}: somebody else moves it"
        f"{f' ({present.moved_by} was the last)' if present.moved_by else ''}; set {weight}, and the rollout goes on "
        "with it",
        field="weights",
        value=present.weight,
        reason="taken",
    )
