# SPDX-License-Identifier: Apache-2.0
"""What ends a rollout whatever the tests say: facts that cannot be chance, and shares that no user should bear.

A percentile over its target is no such fact: looked at every ten seconds, the TTFT p99 of most rollouts of a version
against itself is over a target that lies near it, sooner or later.
"""

import math

import msgspec
import numpy as np

from clients.rollout.gate.count_test import log_evidence_over
from clients.rollout.gate.findings import Counts, Truths
from clients.rollout.gate.gate_spec import GateSpec
from clients.rollout.gate.metrics import guard_alpha


class Fact(msgspec.Struct, frozen=True):
    """Something that happened to the candidate and that has no error bars; it fails the rollout.

    Attributes:
        name: such as "engine_restarts".
        text: for people: what happened, and when or how often.
    """

    name: str
    text: str


def engine_restarted(count: int) -> tuple[Fact, ...]:
    """The candidate's engine was started again so many times since the rollout began; none at 0."""
    times = "once" if count == 1 else f"{count} times"
    return (Fact("engine_restarts", f"the candidate's engine was restarted {times}"),) if count > 0 else ()


def not_ready(seconds: float) -> tuple[Fact, ...]:
    """The server said for so long that the candidate is not ready; none at 0."""
    return (Fact("not_ready", f"the candidate was not ready for {seconds:.0f} s"),) if seconds > 0 else ()


def is_over_guard(counts: Counts, spec: GateSpec) -> Truths:
    """[...] whether the candidate's share is over `spec.guard_share` at any time by more than chance allows."""
    events, num = counts.events[..., 0], counts.num[..., 0]
    evidence = log_evidence_over(events, num - events, np.full_like(events, spec.guard_share))
    return np.asarray(evidence >= math.log(1 / guard_alpha(spec)))
