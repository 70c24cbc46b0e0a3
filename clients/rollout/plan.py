# SPDX-License-Identifier: Apache-2.0
"""What a rollout was started with; it never changes afterwards."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from clients.rollout.gate.gate_spec import GateSpec
from ensemble_configs.errors import RequestError
from ensemble_configs.validation import validate


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rollout.

    Attributes:
        candidate: the release that is tried out; stable: the one it is compared with.
        release: the candidate's `ReleaseSpec` as JSON data, its paths absolute.
        shares: of the requests that the candidate gets, one after the other, 0 to 1.
        salt: of the split (`clients.rollout.split`).
        step_requests: that each arm must have answered at a share before the next one.
        gate: settings of it (`clients.rollout.gate.gate_spec.GateSpec`), as JSON data.
        lease_s: how long a client may go by what it was told of the split.
        drain_timeout_s: what streams of a release that goes may take.
        is_keeping_old: the old release stays loaded after a promotion, for clients that name it.
    """

    candidate: int
    stable: int
    release: dict[str, Any]
    shares: tuple[float, ...] = (0.01, 0.05, 0.25, 0.5, 1.0)
    salt: str
    step_requests: int = 100
    gate: dict[str, Any] = {}
    lease_s: float = 5.0
    drain_timeout_s: float = 600.0
    is_keeping_old: bool = False

    def text(self) -> str:
        """As JSON."""
        return msgspec.json.encode(self).decode()


def read_plan(text: str) -> Plan:
    """A plan from its JSON."""
    return msgspec.json.decode(text, type=Plan)


def gate_spec_of(plan: Plan) -> GateSpec:
    """The gate's settings at each step: its chance of a false alarm is that of the whole rollout, divided among them.

    Raises:
        SpecError: they are none.
    """
    spec = validate(GateSpec, plan.gate, source=Path("gate"))
    num_judged = max(len(plan.shares) - 1, 1)  # the last share is all: nothing is left to compare it with
    return spec.model_copy(update={"alpha": spec.alpha / num_judged})


def read_steps(text: str) -> tuple[float, ...]:
    """``1,5,25,50,100``: percentages as shares; they must grow, and end with 100.

    Raises:
        RequestError: they do not.
    """
    wrong = RequestError(
        f"steps must be growing percentages that end with 100, such as 1,5,25,50,100; got {text!r}",
        field="steps",
        value=text,
    )
    try:
        shares = tuple(float(part) / 100 for part in text.split(","))
    except ValueError:
        raise wrong from None
    is_growing = all(before < after for before, after in pairwise(shares))
    if not is_growing or not shares[0] > 0 or shares[-1] != 1.0:
        raise wrong
    return shares
