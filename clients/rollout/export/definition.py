# SPDX-License-Identifier: Apache-2.0
"""The definition that is exported: a rollout's shares, the share that holds now, and what else its plan says.

It comes from the store or from a command line. The module of each format writes it down.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from clients.rollout.records.rollout_plan import Mode, Plan, read_plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.traffic import share_now
from trireme.base.errors import RequestError

WEIGHT_SUM = 10_000  # a weight of 1 is 0.01 % of the requests


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of one rollout.

    Attributes:
        source: what it was made of, for people.
        shares: parts of the requests that the candidate gets, one after the other, 0 to 1; empty: not said.
        share: the part that holds now; None: not said.
        salt: hash seed of the keys' places.
        gate: the gate's settings, as JSON data.
        rollout: its number; None: it is in no store.
        model: by its name in the deployment; None: not said.
        candidate: the number of its release; None: not said.
    """

    source: str
    shares: tuple[float, ...] = ()
    share: float | None = None
    salt: str = ""
    gate: Mapping[str, Any] = {}
    rollout: int | None = None
    model: str | None = None
    candidate: int | None = None


def definition_of(rollout: Rollout, *, share: float | None = None) -> Definition:
    """Return the definition of a rollout of the store, at the share that holds now or at another one.

    Raises:
        RequestError: its candidate answers no users, or there are several.
    """
    plan = read_plan(rollout.plan)
    if plan.mode is not Mode.CANARY:
        raise RequestError(
            f"rollout {rollout.id} is of mode {plan.mode}, and only a canary has a share that a router could send to "
            "its candidate; name another with --rollout",
            field="rollout",
            value=rollout.id,
        )
    return Definition(
        source=f"rollout {rollout.id} of {rollout.model}, release {plan.candidate} beside {plan.stable}",
        shares=plan.shares,
        share=share_outside(rollout, plan) if share is None else share,
        salt=plan.salt,
        gate=plan.gate,
        rollout=rollout.id,
        model=rollout.model,
        candidate=plan.candidate,
    )


def share_outside(rollout: Rollout, plan: Plan) -> float:
    """Return the candidate's share where it has an endpoint of its own; after a promotion it stays at all.

    Not with a second server of the rollout's own: the first one serves the candidate in the end.
    """
    if plan.second_server:
        return share_now(rollout, plan)
    match rollout.phase:
        case Phase.RUNNING | Phase.PAUSED | Phase.HELD:
            return plan.shares[rollout.step]
        case Phase.PROMOTING | Phase.SETTLING | Phase.PROMOTED:
            return 1.0
    return 0.0


def last_judged_step(shares: tuple[float, ...]) -> int:
    """Return the number of the last share that is judged, at which a pass promotes: the last but one.

    At the last share nothing is left to compare the candidate with.
    """
    return max(len(shares) - 2, 0)


def weights(share: float, *, out_of: int = WEIGHT_SUM) -> tuple[int, int]:
    """Return the weights of the candidate and the stable release, whole numbers that add up to `out_of`.

    Raises:
        RequestError: the share is no whole number of parts.
    """
    candidate = round(share * out_of)
    if abs(share * out_of - candidate) > 1e-6:
        raise RequestError(
            f"share {100 * share:g} % cannot be written as a weight: weights are whole numbers out of {out_of:,}, so "
            f"shares must be multiples of {100 / out_of:g} %; round it",
            field="share",
            value=share,
        )
    return candidate, out_of - candidate


def percent(shares: tuple[float, ...]) -> str:
    """Return shares as text for people, such as `1, 5, 25, 50, 100 %`."""
    return ", ".join(f"{100 * share:g}" for share in shares) + " %"
