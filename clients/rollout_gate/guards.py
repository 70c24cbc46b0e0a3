# SPDX-License-Identifier: Apache-2.0
"""The guards, which end a rollout whatever the baseline does: shares that no user should bear.

A percentile over its target is no such guard: looked at every ten seconds, the TTFT p99 of most rollouts of a version
against itself is over a target that lies near it, sooner or later.
"""

import math

import numpy as np

from clients.rollout_gate.count_test import log_evidence_over
from clients.rollout_gate.findings import Sample, Truths
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.incidents import LASTING
from clients.rollout_gate.metrics import guard_alpha


LASTING_S = 300.0  # of an incident that is no passing one, and in which few users meet the candidate


def is_over_guard(name: str, sample: Sample, spec: GateSpec) -> Truths:
    """Return whether [...] the candidate's share is farther over `spec.guard_share` than by chance, for a good while.

    Either one incident has lasted for `LASTING_S`, or there have been enough of them: of events that come together each
    incident counts once.
    """
    counts, incidents = sample.counts[name], sample.incidents[name]
    events, num = counts.events[..., 0], counts.num[..., 0]
    evidence = log_evidence_over(events, num - events, np.full_like(events, spec.guard_share))
    is_lasting = incidents.last_s[..., 0] - incidents.began_s[..., 0] >= LASTING_S
    is_over = (evidence >= math.log(1 / guard_alpha(spec))) & is_lasting
    together = incidents.num[..., 0] / np.maximum(incidents.incidents[..., 0, LASTING], 1.0)
    return np.asarray(is_over | (evidence / np.maximum(together, 1.0) >= math.log(1 / guard_alpha(spec))))
