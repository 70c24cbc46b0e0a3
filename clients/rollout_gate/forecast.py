# SPDX-License-Identifier: Apache-2.0
"""The number of requests that a verdict takes at the spread that is seen, by the gate's own tests on future samples.

Of each metric two figures, of a typical rollout (half take fewer): until a candidate that is worse by just the effect
size fails, and until one that is no worse passes.
"""

import math
from typing import NamedTuple

import numpy as np

from clients.rollout_gate.findings import Alike, alike_of, alpha_of_side, chance_of_more, effective
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import METRICS, alpha_of, effect_of
from clients.rollout_gate.sample import Counts, Sample, Truths
from clients.rollout_gate.statistics.clusters import Spread
from clients.rollout_gate.statistics.count_test import excess_bound, log_evidence_over
from clients.rollout_gate.statistics.fading import MIN_BLOCKS, Differences, Times, allowed, chance, squares_expected
from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.score_test import BETS

_SIZES: Floats = np.unique(np.round(np.geomspace(10, 1e7, 600)))
_SCALES = 24  # doublings of the time: 5 years of blocks of 10 s


class Needed(NamedTuple):
    """Requests of the candidate's arm (pairs, of a score); None: more than ten million, or too little is known.

    `keys`: keys of both arms together with which requests can prove a pass; None: those that there are will do.
    """

    until_fail: int | None
    until_pass: int | None
    keys: int | None = None


def needed(name: str, sample: Sample, spec: GateSpec) -> Needed:
    """Return the requests that a verdict on one metric takes, at the split of the traffic that the sample has.

    Args:
        sample: without leading dimensions.
    """
    if METRICS[name].kind == "log_mean":
        return _of_means(name, sample, spec)
    if name in sample.counts:
        return _of_counts(name, sample, spec)
    if name in sample.groups:
        return Needed(None, None)  # a group is no part of a plan: none, and as much as all, may come
    return _of_scores(name, sample, spec)


def _of_means(name: str, sample: Sample, spec: GateSpec) -> Needed:
    differences, num = sample.differences[name], float(sample.levels[name][0].num)
    if float(differences.information) == 0:
        return Needed(None, None)
    alike, times = _future(name, sample, spec, _SIZES / num)
    known, effect, alpha = _SIZES / num * differences.information, effect_of(name, spec), alpha_of_side(name, spec)
    is_enough = (spec.min_requests <= _SIZES) & (times.num_blocks >= MIN_BLOCKS)
    estimate = np.full_like(_SIZES, effect)
    spread = _grown(sample.spread(name), _SIZES / num)
    fails = chance_of_more(estimate, known, alike, effect, alpha, spread) < allowed(alpha, times, spec.fade_s)
    passes = chance_of_more(estimate, known, alike, effect, spec.pass_alpha, spread) < allowed(
        spec.pass_alpha, times, spec.fade_s
    )
    until_pass = _first(passes & is_enough)
    keys = None if until_pass is not None else _keys_until_pass(name, sample, spec)
    return Needed(_first(fails & is_enough), until_pass, keys)


def _grown(spread: Spread, growth: Floats) -> Spread:
    """Return the spread after `growth` times the requests of the same keys: each key's part grows with them."""
    return Spread(1 + (spread.inflation - 1) * growth, np.broadcast_to(spread.freedom, growth.shape))


def _keys_until_pass(name: str, sample: Sample, spec: GateSpec) -> int | None:
    """Return the keys of both arms together that can prove a pass; None: no keys are known.

    Requests may be any number. More keys are more of what there is now.
    """
    spread, effect = sample.spread(name), effect_of(name, spec)
    if not np.isfinite(spread.freedom):
        return None
    growth = np.geomspace(1, 1e4, 400)
    known = sample.differences[name].information / spread.inflation * growth
    alike = Alike(np.ones((growth.size, 1)), np.ones((growth.size, 1)))
    found = chance_of_more(
        np.full_like(growth, effect), known, alike, effect, spec.pass_alpha,
        Spread(np.ones_like(growth), spread.freedom * growth),
    )  # fmt: skip
    enough = np.flatnonzero(found < spec.pass_alpha)
    return None if not enough.size else math.ceil(2 * float(spread.freedom + 1) * growth[enough[0]])


def _future(name: str, sample: Sample, spec: GateSpec, growth: Floats) -> tuple[Alike, Times]:
    """Return what blocks would tell after `growth` times the time, if the likeliest excess by now is the true one."""
    times = Times(growth * sample.times.elapsed_s, growth * sample.times.num_blocks)
    likeliest = int(alike_of(name, sample, spec).weights.argmax())
    num_pairs = np.floor(times.num_blocks[:, np.newaxis] / 2.0 ** (np.arange(_SCALES) + 1))
    squares = num_pairs * squares_expected(times, spec.fade_s, _SCALES)[..., likeliest]
    unknown = np.zeros_like(growth)
    future = Differences(unknown, unknown, num_pairs, squares)
    return alike_of(name, Sample(sample.num_requests, times, differences={name: future}), spec), times


def _of_counts(name: str, sample: Sample, spec: GateSpec) -> Needed:
    counts, effect = sample.counts[name], effect_of(name, spec)
    if counts.num.min() == 0:
        return Needed(None, None)
    rate = float(counts.events[1] / counts.num[1])
    alpha, growth = alpha_of_side(name, spec), _SIZES / counts.num[0]
    num = np.stack([_SIZES, _SIZES * counts.num[1] / counts.num[0]], axis=-1)
    share = np.full_like(_SIZES, counts.num[0] / counts.num.sum())
    evidence = log_evidence_over(min(1.0, rate + effect) * num[..., 0], rate * num[..., 1], share)
    times = Times(growth * sample.times.elapsed_s, growth * sample.times.num_blocks)
    is_enough = (spec.min_requests <= _SIZES) & (times.num_blocks >= MIN_BLOCKS)
    # What is shared by keys, by time or by incidents stays as it is now.
    inflation = float(counts.num[0] / max(effective(name, sample, spec).num[0], 1e-9))
    if name in sample.differences:
        alike, _ = _future(name, sample, spec, growth)
        explained = chance(alike.weights, evidence[:, np.newaxis] / alike.inflations)
        by = np.maximum(inflation, (alike.weights * alike.inflations).sum(axis=-1))[:, np.newaxis]
    else:
        explained, by = np.exp(-np.maximum(evidence / inflation, 0.0)), np.full((growth.size, 1), inflation)
    independent = Counts(rate * num / by, num / by)
    is_fine = excess_bound(independent.events, independent.num, effect, spec.pass_alpha) < effect
    if METRICS[name].is_two_sided:
        turned = excess_bound(independent.events[:, ::-1], independent.num[:, ::-1], effect, spec.pass_alpha)
        is_fine &= turned < effect
    return Needed(_first(explained < allowed(alpha, times, spec.fade_s)), _first(is_fine & is_enough))


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
