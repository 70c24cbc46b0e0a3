# SPDX-License-Identifier: Apache-2.0
"""The guards, which end a rollout whatever the baseline does: shares that no user should bear.

A percentile over its target is no such guard: looked at every ten seconds, the TTFT p99 of most rollouts of a version
against itself is over a target that lies near it, sooner or later.
"""

import math

import numpy as np

from clients.rollout_gate.count_test import log_evidence_over
from clients.rollout_gate.findings import Counts, Truths
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import guard_alpha


def is_over_guard(counts: Counts, spec: GateSpec) -> Truths:
    """Return whether [...] the candidate's share is at any time farther over `spec.guard_share` than by chance."""
    events, num = counts.events[..., 0], counts.num[..., 0]
    evidence = log_evidence_over(events, num - events, np.full_like(events, spec.guard_share))
    return np.asarray(evidence >= math.log(1 / guard_alpha(spec)))
