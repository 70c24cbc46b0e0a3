# SPDX-License-Identifier: Apache-2.0
"""The bounds of a metric's true change at one look: the changes that the tests in `findings` do not exclude."""

import math

import numpy as np

from clients.rollout_gate.findings import alike_of, alpha_of_side, chance_of_more, effective
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import METRICS, effect_of
from clients.rollout_gate.sample import Sample
from clients.rollout_gate.statistics.count_test import excess_bound
from clients.rollout_gate.statistics.fading import allowed

_LARGEST = 64.0  # as a logarithm: nothing is as many times as large
_BISECTIONS = 40


def bounds_of(name: str, sample: Sample, spec: GateSpec) -> tuple[float | None, float | None]:
    """Return the lower bound, at the metric's part of alpha, and the upper one, at `pass_alpha`.

    None: there is no such bound. A `log_mean` is bounded in logarithms.

    Args:
        sample: without leading dimensions.
    """
    if METRICS[name].kind == "log_mean":
        differences = sample.differences[name]
        found = float(differences.estimate)
        estimate = found if differences.change is None else float(differences.change)
        # Of a change beyond the bounds of figures, as of the estimate: in proportion.
        times = 1.0 if estimate == found else estimate / found
        slacks = (_slack(name, sample, spec, alpha) for alpha in (alpha_of_side(name, spec), spec.pass_alpha))
        below, above = (None if each is None else each * times for each in slacks)
        return (None if below is None else estimate - below, None if above is None else estimate + above)
    if name in sample.counts:
        independent = effective(name, sample, spec)
        effect = effect_of(name, spec)
        upper = float(excess_bound(independent.events, independent.num, effect, spec.pass_alpha))
        return None, upper if math.isfinite(upper) else None
    return None, None


def _slack(name: str, sample: Sample, spec: GateSpec, alpha: float) -> float | None:
    # By how much an estimate must exceed a true difference so that chance does not explain it.
    differences, effect, spread = sample.differences[name], effect_of(name, spec), sample.spread(name)
    alike = alike_of(name, sample, spec)
    limit = float(allowed(alpha, sample.times, spec.fade_s))

    def is_excluded(by: float) -> bool:
        return float(chance_of_more(np.array(by), differences.information, alike, effect, alpha, spread)) < limit

    if not is_excluded(_LARGEST):
        return None
    inside, outside = 0.0, _LARGEST
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if is_excluded(middle) else (middle, outside)
    return outside
