# SPDX-License-Identifier: Apache-2.0
"""The guards, which end a rollout whatever the baseline does: shares that no user should bear.

Each wants more than chance explains, and that it goes on: an equal release that fails for a moment, as releases do, is
not to be rolled back, and meanwhile few users meet the candidate. All times are in `GateSpec.fade_s`.

A percentile over its target is no such guard: looked at every ten seconds, the TTFT p99 of most rollouts of a version
against itself is over a target that lies near it, sooner or later.
"""

import math

import numpy as np

from clients.rollout_gate.findings import over_keys
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import METRICS, guard_alpha
from clients.rollout_gate.sample import Sample, Truths
from clients.rollout_gate.statistics.count_test import log_evidence_over

LASTING_FADES = 3.75  # of an incident that is no passing one; by default 300 s
DEAD_FADES = 1.5  # in which every request of the candidate had the event
NEVER_ALIVE_FADES = 0.75  # the same, where no request of the candidate was ever without
_LEAST_OF_ANSWERS = 20  # requests, before a few wrong answers to one prompt say anything of all prompts
_LEAST_RUN = 20  # requests in a row: a run may begin anywhere, so that its chance is not that of one run


def is_over_guard(name: str, sample: Sample, spec: GateSpec) -> Truths:
    """Return whether [...] the candidate's share is over `spec.guard_share` by more than chance, for a good while.

    Wrong answers are of no outage: more than chance in twenty requests is enough, or all of late being wrong.
    Of errors it is one of these: every request of late had one; one incident has lasted; there were so many incidents
    that each counts once.
    """
    counts = sample.counts[name]
    events, num = counts.events[..., 0], counts.num[..., 0]
    enough = math.log(1 / guard_alpha(spec))
    evidence = log_evidence_over(events, num - events, np.full_like(events, spec.guard_share))
    evidence = over_keys(evidence, sample.spread(name))  # one key that always fails is one
    incidents, run = sample.incidents[name], sample.runs[name]
    last_s = incidents.last_s[..., 0]
    length, for_s = run.num[..., 0], last_s - run.began_s[..., 0]
    is_dead = (length >= _LEAST_RUN) & (for_s >= DEAD_FADES * spec.fade_s)
    if not METRICS[name].is_of_outages:
        return np.asarray((evidence >= enough) & (num >= _LEAST_OF_ANSWERS) | is_dead)
    is_lasting = last_s - incidents.began_s[..., 0] >= LASTING_FADES * spec.fade_s
    together = incidents.num[..., 0] / np.maximum(incidents.lasting[..., 0], 1.0)
    is_over = (evidence >= enough) & is_lasting | (evidence / np.maximum(together, 1.0) >= enough)
    is_never_alive = (events == num) & (evidence >= enough) & (for_s >= NEVER_ALIVE_FADES * spec.fade_s)
    return np.asarray(is_over | is_never_alive | is_dead)
