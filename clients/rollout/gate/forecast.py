# SPDX-License-Identifier: Apache-2.0
"""How many requests a verdict takes at the spread that is seen: the gate's own tests, asked about samples to come.

Of each metric two figures, of a typical rollout (half take fewer): until a candidate that is worse by just the effect
size fails, and until one that is no worse passes.
"""

import math
from typing import NamedTuple

import numpy as np

from clients.rollout.gate.count_test import excess_bound, log_evidence_over
from clients.rollout.gate.findings import Sample, Truths
from clients.rollout.gate.gate_spec import GateSpec
from clients.rollout.gate.mean_test import Floats, boundary, difference_of_means, tuning
from clients.rollout.gate.metrics import METRICS, alpha_of, effect_of
from clients.rollout.gate.score_test import BETS

_SIZES: Floats = np.unique(np.round(np.geomspace(10, 1e7, 600)))


class Needed(NamedTuple):
    """Requests of the candidate's arm (pairs, of a score); None: more than ten million, or too little is known."""

    until_fail: int | None
    until_pass: int | None


def needed(name: str, sample: Sample, spec: GateSpec) -> Needed:
    """Of one metric of a sample without leading dimensions, at the split of the traffic that it has."""
    if name in sample.means:
        return _of_means(name, sample, spec)
    if name in sample.counts:
        return _of_counts(name, sample, spec)
    return _of_scores(name, sample, spec)


def _of_means(name: str, sample: Sample, spec: GateSpec) -> Needed:
    candidate, baseline = sample.means[name]
    information = float(difference_of_means(candidate, baseline).information)
    if information == 0:
        return Needed(None, None)
    growing = _SIZES * information / float(candidate.num.sum())
    effect = effect_of(name, spec)
    alpha = alpha_of(name, spec) / (2 if METRICS[name].is_two_sided else 1)
    is_enough = spec.min_requests <= _SIZES
    fails = effect > boundary(growing, tuning(effect, alpha), alpha)
    passes = effect > boundary(growing, tuning(effect, spec.pass_alpha), spec.pass_alpha)
    return Needed(_first(fails & is_enough), _first(passes & is_enough))


def _of_counts(name: str, sample: Sample, spec: GateSpec) -> Needed:
    counts, effect = sample.counts[name], effect_of(name, spec)
    if counts.num.min() == 0:
        return Needed(None, None)
    rate = float(counts.events[1] / counts.num[1])
    alpha = alpha_of(name, spec) / (2 if METRICS[name].is_two_sided else 1)
    num = np.stack([_SIZES, _SIZES * counts.num[1] / counts.num[0]], axis=-1)
    share = np.full_like(_SIZES, counts.num[0] / counts.num.sum())
    worse = log_evidence_over(min(1.0, rate + effect) * num[..., 0], rate * num[..., 1], share)
    is_fine = excess_bound(rate * num, num, effect, spec.pass_alpha) < effect
    return Needed(_first(worse >= math.log(1 / alpha)), _first(is_fine & (spec.min_requests <= _SIZES)))


def _of_scores(name: str, sample: Sample, spec: GateSpec) -> Needed:
    scores, effect = sample.scores[name], effect_of(name, spec)
    if scores.num < 2:
        return Needed(None, None)
    # log(1 + x) is about x - x^2 / 2: what the best bet wins on a pair, with a drop of the effect size, or with none.
    variance = max(0.0, float(scores.squares / scores.num - (scores.total / scores.num) ** 2))
    won = float((BETS * effect - BETS**2 * (variance + effect**2) / 2).max())
    pairs = [(math.log(1 / alpha) + math.log(BETS.size)) / won for alpha in (alpha_of(name, spec), spec.pass_alpha)]
    return Needed(math.ceil(pairs[0]), math.ceil(pairs[1]))


def _first(decides: Truths) -> int | None:
    # From where on it does so for good: of few requests, a bound may hold by the rounding of counts.
    if not decides[-1]:
        return None
    undecided = np.flatnonzero(~decides)
    return int(_SIZES[undecided[-1] + 1 if undecided.size else 0])
