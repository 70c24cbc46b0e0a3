# SPDX-License-Identifier: Apache-2.0
"""What is found of each metric at one look: estimate, bounds, whether it is worse, whether it is fine.

Arrays have any leading dimensions: one rollout, or all looks of ten thousand simulated ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.rollout.gate.count_test import excess_bound, log_evidence_over
from clients.rollout.gate.gate_spec import GateSpec
from clients.rollout.gate.mean_test import Difference, Floats, Moments, boundary, difference_of_means, tuning
from clients.rollout.gate.metrics import METRICS, alpha_of, effect_of
from clients.rollout.gate.score_test import log_evidence

Truths = NDArray[np.bool_]


class Counts(NamedTuple):
    """[..., 2] of the candidate and the baseline: events, and requests that could have been one."""

    events: Floats
    num: Floats


class Scores(NamedTuple):
    """Pairs, [...] how many, the sum of their differences and of their squares; [..., bets] what was won by bets."""

    num: Floats
    total: Floats
    squares: Floats
    against_no_worse: Floats
    against_worse: Floats


@dataclass(frozen=True)
class Sample:
    """Sums over all requests so far, by metric; a metric that is in none of the tables has no data.

    Attributes:
        num_requests: [..., 2] of the candidate and the baseline.
        means: of each arm.
    """

    num_requests: Floats
    means: Mapping[str, tuple[Moments, Moments]] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)


class Finding(NamedTuple):
    """Of one metric; candidate less baseline, positive is more.

    Attributes:
        estimate: [...] of `log_mean` in logarithms.
        lower: [...] bound at the metric's part of alpha; NaN where the test has no such bound.
        upper: [...] bound at `pass_alpha`; NaN likewise.
        is_worse: [...] proven, and by at least half the effect size.
        is_fine: [...] proven to be worse by less than the effect size.
        has_data: [...] of both arms.
    """

    estimate: Floats
    lower: Floats
    upper: Floats
    is_worse: Truths
    is_fine: Truths
    has_data: Truths


def findings_of(sample: Sample, spec: GateSpec) -> dict[str, Finding]:
    """One for each metric that the sample has."""
    is_enough = sample.num_requests.min(axis=-1) >= spec.min_requests
    found = {}
    for name in METRICS:
        if name in sample.means:
            found[name] = of_difference(name, difference_of_means(*sample.means[name]), is_enough, spec)
        elif name in sample.counts:
            found[name] = of_counts(name, sample.counts[name], is_enough, spec)
        elif name in sample.scores:
            found[name] = of_scores(name, sample.scores[name], spec)
    return found


def of_difference(name: str, difference: Difference, is_enough: Truths, spec: GateSpec) -> Finding:
    """Of a `log_mean`; below `min_requests` it is neither worse nor fine, as the bound is one for large samples."""
    estimate, information = difference
    effect, is_two_sided = effect_of(name, spec), METRICS[name].is_two_sided
    alpha = alpha_of(name, spec) / (2 if is_two_sided else 1)
    away = boundary(information, tuning(effect, alpha), alpha)
    slack = boundary(information, tuning(effect, spec.pass_alpha), spec.pass_alpha)
    is_worse, is_fine = (estimate > away) & (estimate >= effect / 2), estimate + slack < effect
    if is_two_sided:
        is_worse |= (estimate < -away) & (estimate <= -effect / 2)
        is_fine &= estimate - slack > -effect
    return Finding(
        estimate, estimate - away, estimate + slack, is_worse & is_enough, is_fine & is_enough, information > 0
    )


def of_counts(name: str, counts: Counts, is_enough: Truths, spec: GateSpec) -> Finding:
    """Of a `share`; it can be worse after any number of requests, as the test is exact."""
    effect, is_two_sided = effect_of(name, spec), METRICS[name].is_two_sided
    alpha = alpha_of(name, spec) / (2 if is_two_sided else 1)
    events, num = counts
    has_data = num.min(axis=-1) > 0
    share = num[..., 0] / np.maximum(num.sum(axis=-1), 1.0)
    rates = events / np.maximum(num, 1.0)
    estimate = np.where(has_data, rates[..., 0] - rates[..., 1], 0.0)
    evidence = log_evidence_over(events[..., 0], events[..., 1], share)
    upper = excess_bound(events, num, effect, spec.pass_alpha)
    is_worse = (evidence >= math.log(1 / alpha)) & (estimate >= effect / 2)
    is_fine = has_data & (upper < effect)
    if is_two_sided:
        fewer = log_evidence_over(events[..., 1], events[..., 0], 1 - share)
        is_worse |= (fewer >= math.log(1 / alpha)) & (estimate <= -effect / 2)
        is_fine &= excess_bound(events[..., ::-1], num[..., ::-1], effect, spec.pass_alpha) < effect
    return Finding(estimate, np.full_like(estimate, np.nan), upper, is_worse & has_data, is_fine & is_enough, has_data)


def of_scores(name: str, scores: Scores, spec: GateSpec) -> Finding:
    """Of a `score`, where less is worse; the estimate is turned round, so that positive is worse here too."""
    effect = effect_of(name, spec)
    estimate = -scores.total / np.maximum(scores.num, 1.0)
    is_worse = log_evidence(scores.against_no_worse) >= math.log(1 / alpha_of(name, spec))
    is_fine = log_evidence(scores.against_worse) >= math.log(1 / spec.pass_alpha)
    unknown = np.full_like(estimate, np.nan)
    return Finding(estimate, unknown, unknown, is_worse & (estimate >= effect / 2), is_fine, scores.num > 0)
