# SPDX-License-Identifier: Apache-2.0
"""The verdict on findings and guards: what is proven worse fails, and only what is proven fine passes.

Failing takes one metric, so their chances of a false alarm add up to `GateSpec.alpha`. Passing takes them all, so
each may use the whole of `GateSpec.pass_alpha` (an intersection-union test: Berger, "Multiparameter hypothesis
testing and acceptance sampling", Technometrics 24(4), 1982).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from clients.rollout_gate.findings import Finding, findings_of
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.guards import is_over_guard
from clients.rollout_gate.metrics import GUARDED, METRICS
from clients.rollout_gate.sample import Sample, Truths
from clients.rollout_gate.statistics.fading import FADES

Verdict = Literal["pass", "fail", "undecided", "no data"]


class Look(NamedTuple):
    """The results of one look, or of many at once.

    Attributes:
        findings: by metric.
        guards: [...] by share that is guarded.
        is_failed: [...] something is proven worse.
        is_passed: [...] everything that a pass waits for is proven fine, and nothing is worse.
        has_data: [...] there are requests of both arms.
    """

    findings: Mapping[str, Finding]
    guards: Mapping[str, Truths]
    is_failed: Truths
    is_passed: Truths
    has_data: Truths


def look_at(sample: Sample, spec: GateSpec) -> Look:
    """Judge the requests that have been seen so far."""
    findings = findings_of(sample, spec)
    guards = {name: is_over_guard(name, sample, spec) for name in GUARDED if name in sample.counts}
    shape = sample.num_requests.shape[:-1]
    is_failed, is_passed = np.zeros(shape, bool), np.ones(shape, bool)
    for found in findings.values():
        is_failed = is_failed | found.is_worse
    for is_over in guards.values():
        is_failed = is_failed | is_over
    for name, metric in METRICS.items():
        if not metric.is_optional:
            is_passed = is_passed & (findings[name].is_fine if name in findings else False)
    has_data = sample.num_requests.min(axis=-1) > 0
    return Look(findings, guards, is_failed, is_passed & ~is_failed & has_data, has_data)


def is_at_end(sample: Sample, spec: GateSpec) -> bool:
    """Return whether a single look comes after `max_requests` and as long as a proof may take.

    Undecided is hold then.
    """
    is_late = float(sample.times.elapsed_s) >= FADES * spec.fade_s
    return is_late and float(sample.num_requests.min()) >= spec.max_requests


def verdict_of(look: Look) -> Verdict:
    """Return the verdict of a single look, with arrays without dimensions."""
    if look.is_failed:
        return "fail"
    if not look.has_data:
        return "no data"
    return "pass" if look.is_passed else "undecided"
