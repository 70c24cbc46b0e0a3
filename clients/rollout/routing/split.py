# SPDX-License-Identifier: Apache-2.0
"""The split of requests among the arms of a rollout, as clients are told it: slices of [0, 1), each with its model.

A client needs nothing but the slices (`clients.rollout.traffic`) and a request's place
(`ensemble_configs.split.places`).
"""

from collections.abc import Sequence

import msgspec

CANDIDATE, BASELINE, STABLE = "candidate", "baseline", "stable"


class Slice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of [0, 1) that one model answers: the places below `upto`, from the end of the slice before.

    Attributes:
        arm: arm that the requests count for.
        model: model that answers the requests.
        release: release that the requests name; None: none.
        url: ``host:port`` of the server that answers; "": the client's own.
        is_compared: the rollout hears how they end.
        has_fallback: the stable release answers what this one cannot take.
    """

    upto: float
    arm: str
    model: str
    release: int | None = None
    url: str = ""
    is_compared: bool = False
    has_fallback: bool = False


def slice_at(slices: Sequence[Slice], place: float) -> Slice:
    """Return the slice that a place in [0, 1) lies in."""
    return next((each for each in slices if place < each.upto), slices[-1])
