# SPDX-License-Identifier: Apache-2.0
"""The findings of each metric at one look: estimate, whether it is worse, whether it is fine.

Arrays have any leading dimensions: one rollout, or all looks of ten thousand simulated ones.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import METRICS, alpha_of, effect_of
from clients.rollout_gate.sample import Counts, Sample, Scores, Truths
from clients.rollout_gate.statistics.clusters import Spread
from clients.rollout_gate.statistics.count_test import excess_bound, log_evidence_over
from clients.rollout_gate.statistics.fading import (
    MIN_BLOCKS,
    PRIOR_OF_MEANS,
    PRIOR_OF_SHARES,
    allowed,
    chance,
    inflations,
    sizes,
)
from clients.rollout_gate.statistics.groups import NUM_GROUPS
from clients.rollout_gate.statistics.incidents import PRIORS_OF_OUTAGES, PRIORS_OF_QUEUES
from clients.rollout_gate.statistics.mean_test import Floats, as_normal, student_quantile, tuning
from clients.rollout_gate.statistics.mean_test import log_evidence as log_evidence_of_mean
from clients.rollout_gate.statistics.score_test import log_evidence

_CONTRADICTION = 2.0  # standard errors
_LEAST_OF_GROUP = 30  # requests of each arm: a mean of fewer bounded figures is not normal


class Finding(NamedTuple):
    """The finding of one metric; its bounds are in `clients.rollout_gate.bounds`.

    Attributes:
        estimate: [...] candidate less baseline, positive is more; of `log_mean` in logarithms.
        is_worse: [...] proven, and by at least half the effect size.
        is_fine: [...] proven to be worse by less than the effect size.
        has_data: [...] both arms have data.
    """

    estimate: Floats
    is_worse: Truths
    is_fine: Truths
    has_data: Truths


class Alike(NamedTuple):
    """The correlation of requests near in time in a metric; both fields are [..., excesses].

    Attributes:
        weights: posterior weight of each of `clients.rollout_gate.statistics.fading.EXCESSES`.
        inflations: growth of the variance with each excess.
    """

    weights: Floats
    inflations: Floats


def alike_of(name: str, sample: Sample, spec: GateSpec) -> Alike:
    """Return how alike requests near in time are in a metric, by the blocks so far."""
    is_of_queue = METRICS[name].kind == "log_mean" and METRICS[name].is_of_queue
    prior = PRIOR_OF_MEANS if is_of_queue else PRIOR_OF_SHARES
    weights = sizes(sample.differences[name], sample.times, spec.fade_s, prior)
    return Alike(weights, inflations(sample.times, spec.fade_s))


def findings_of(sample: Sample, spec: GateSpec) -> dict[str, Finding]:
    """Return a finding for each metric that the sample has."""
    is_enough = is_enough_of(sample, spec)
    found = {}
    for name, metric in METRICS.items():
        if metric.kind == "log_mean" and name in sample.differences:
            found[name] = of_difference(name, sample, is_enough, spec)
        elif name in sample.groups:
            found[name] = of_groups(name, sample, is_enough, spec)
        elif name in sample.counts:
            found[name] = of_counts(name, sample, is_enough, spec)
        elif name in sample.scores:
            found[name] = of_scores(name, sample.scores[name], spec)
    return found


def is_enough_of(sample: Sample, spec: GateSpec) -> Truths:
    """Return whether [...] there are requests and blocks enough for a test that is one for large samples."""
    is_many = sample.num_requests.min(axis=-1) >= spec.min_requests
    return np.asarray(is_many & (sample.times.num_blocks >= MIN_BLOCKS))


def alpha_of_side(name: str, spec: GateSpec) -> float:
    """Return the alpha of one side of the metric's test, or of the whole of a one-sided test."""
    return alpha_of(name, spec) / (2 if METRICS[name].is_two_sided else 1)


def chance_of_more(
    estimate: Floats, information: Floats, alike: Alike, effect: float, alpha: float, spread: Spread | None = None
) -> Floats:
    """Return the [...] chance that explains an estimate so far over zero.

    The boundary is tuned to `effect` and `alpha`.

    Args:
        information: [...] for independent requests.
        spread: over keys; None: requests are independent, or what they share fades.
    """
    known, freedom = information[..., np.newaxis] / alike.inflations, None
    if spread is not None:
        known, freedom = known / spread.inflation[..., np.newaxis], spread.freedom[..., np.newaxis]
    return chance(alike.weights, log_evidence_of_mean(estimate[..., np.newaxis], known, tuning(effect, alpha), freedom))


def of_difference(name: str, sample: Sample, is_enough: Truths, spec: GateSpec) -> Finding:
    """Return the finding of a `log_mean`; without `min_requests` and `MIN_BLOCKS` neither worse nor fine."""
    alike = alike_of(name, sample, spec)
    estimate, information = sample.differences[name].estimate, sample.differences[name].information
    effect, alpha, spread = effect_of(name, spec), alpha_of_side(name, spec), sample.spread(name)
    fails = allowed(alpha, sample.times, spec.fade_s)
    passes = allowed(spec.pass_alpha, sample.times, spec.fade_s)
    levels = sample.levels[name]
    is_enough = is_enough & (np.minimum(levels[0].num, levels[1].num) >= spec.min_requests)
    is_worse = chance_of_more(estimate, information, alike, effect, alpha, spread) < fails
    is_worse &= estimate >= effect / 2
    is_fine = chance_of_more(effect - estimate, information, alike, effect, spec.pass_alpha, spread) < passes
    if METRICS[name].is_two_sided:
        is_less = chance_of_more(-estimate, information, alike, effect, alpha, spread) < fails
        is_worse |= is_less & (estimate <= -effect / 2)
        is_fine &= chance_of_more(effect + estimate, information, alike, effect, spec.pass_alpha, spread) < passes
    is_fine &= ~is_contradicted(name, sample, spec)
    return Finding(estimate, is_worse & is_enough, is_fine & is_enough, information > 0)


def is_contradicted(name: str, sample: Sample, spec: GateSpec) -> Truths:
    """Return whether [...] the plain mean of a `log_mean` is worse by half the effect size, beyond its own error.

    Bounded figures show little of what happens to a part of the requests. The plain mean decides nothing, for a tail
    may be all of it; yet while it speaks against the candidate, that is no pass.
    """
    if name not in sample.plain:
        return np.zeros(sample.num_requests.shape[:-1], bool)
    alike, (estimate, information) = alike_of(name, sample, spec), sample.plain[name]
    grown = (alike.weights * alike.inflations).sum(axis=-1) * sample.spread(name).inflation
    worse = np.abs(estimate) if METRICS[name].is_two_sided else estimate
    is_much = worse >= effect_of(name, spec) / 2
    return np.asarray(is_much & (worse * np.sqrt(information / grown) >= _CONTRADICTION))


def of_groups(name: str, sample: Sample, is_enough: Truths, spec: GateSpec) -> Finding:
    """Return the finding of the group that is likeliest worse; no pass waits for it."""
    groups = sample.groups[name]
    is_worse = worse_groups(name, sample, spec)
    chances = chances_of_groups(name, sample, spec)
    worst = chances.argmin(axis=-1)[..., np.newaxis]
    estimate = np.take_along_axis(groups.estimate, worst, axis=-1)[..., 0]
    has_data = groups.information.max(axis=-1) > 0
    return Finding(estimate, is_worse.any(axis=-1) & is_enough, np.zeros_like(has_data), has_data)


def worse_groups(name: str, sample: Sample, spec: GateSpec) -> Truths:
    """Return which groups are worse: [..., groups]. The chance of a false alarm is split over all that there may be."""
    groups = sample.groups[name]
    limit = allowed(alpha_of(name, spec) / NUM_GROUPS, sample.times, spec.fade_s)[..., np.newaxis]
    is_many = groups.num.min(axis=-1) >= _LEAST_OF_GROUP
    is_much = groups.estimate >= effect_of(name, spec) / 2
    return np.asarray(is_many & is_much & (chances_of_groups(name, sample, spec) < limit))


def chances_of_groups(name: str, sample: Sample, spec: GateSpec) -> Floats:
    """Return the chance that explains that a group is worse: [..., groups].

    What requests near in time share makes up the less of a group's variance, the fewer of them are the group's.
    """
    groups, alike = sample.groups[name], alike_of(name.removesuffix("_of_some"), sample, spec)
    levels = sample.levels[name.removesuffix("_of_some")]
    part = groups.num.sum(axis=-1) / np.maximum(levels[0].num + levels[1].num, 1.0)[..., np.newaxis]
    inflation = 1 + (alike.inflations[..., np.newaxis, :] - 1) * np.minimum(part, 1.0)[..., np.newaxis]
    own = Alike(alike.weights[..., np.newaxis, :], inflation)
    alpha = alpha_of(name, spec) / NUM_GROUPS
    return chance_of_more(groups.estimate, groups.information, own, effect_of(name, spec), alpha, groups.spread)


def of_counts(name: str, sample: Sample, is_enough: Truths, spec: GateSpec) -> Finding:
    """Return the finding of a `share`."""
    counts, effect = sample.counts[name], effect_of(name, spec)
    events, num = counts
    has_data = num.min(axis=-1) > 0
    share = num[..., 0] / np.maximum(num.sum(axis=-1), 1.0)
    rates = events / np.maximum(num, 1.0)
    estimate = np.where(has_data, rates[..., 0] - rates[..., 1], 0.0)
    is_worse = is_proof(name, share, sample, spec, of_candidate=True) & (estimate >= effect / 2)
    independent = effective(name, sample, spec)
    is_fine = has_data & (excess_bound(independent.events, independent.num, effect, spec.pass_alpha) < effect)
    if METRICS[name].is_two_sided:
        is_worse |= is_proof(name, share, sample, spec, of_candidate=False) & (estimate <= -effect / 2)
        turned = excess_bound(independent.events[..., ::-1], independent.num[..., ::-1], effect, spec.pass_alpha)
        is_fine &= turned < effect
    return Finding(estimate, is_worse & has_data, is_fine & is_enough, has_data)


def is_proof(name: str, share: Floats, sample: Sample, spec: GateSpec, *, of_candidate: bool) -> Truths:
    """Return whether [...] one arm has proven more events, also where these come together or share their keys.

    Args:
        share: [...] the candidate's share of requests.
        of_candidate: False: of the baseline.
    """
    arm, other, part = (0, 1, share) if of_candidate else (1, 0, 1 - share)
    events = sample.counts[name].events
    evidence = log_evidence_over(events[..., arm], events[..., other], part)
    found = np.exp(-over_keys(evidence, sample.spread(name)))
    if METRICS[name].is_of_outages and name in sample.incidents:
        incidents = sample.incidents[name].chance(share, _priors_of(name), of_candidate=of_candidate)
        found = np.maximum(found, incidents)
    if name in sample.differences:
        alike = alike_of(name, sample, spec)
        found = np.maximum(found, chance(alike.weights, evidence[..., np.newaxis] / alike.inflations))
    return np.asarray(found < allowed(alpha_of_side(name, spec), sample.times, spec.fade_s))


def _priors_of(name: str) -> Floats:
    """Return how likely the events of a share come together, before any is seen."""
    return PRIORS_OF_QUEUES if METRICS[name].is_of_queue or METRICS[name].far_over else PRIORS_OF_OUTAGES


def over_keys(evidence: Floats, spread: Spread) -> Floats:
    """Return the evidence that is left where requests share their keys; at least 0.

    Evidence is about half of the square of a normal deviation, which few keys make one of Student's t.
    """
    deviation = np.sqrt(2 * np.maximum(evidence, 0.0) / spread.inflation)
    return np.asarray(as_normal(deviation, np.broadcast_to(spread.freedom, deviation.shape)) ** 2 / 2)


def effective(name: str, sample: Sample, spec: GateSpec) -> Counts:
    """Return the counts of independent requests that would tell as much.

    These are all counts over the mean inflation of the variance.

    Source: Rao and Scott, "A simple method for the analysis of clustered binary data", Biometrics 48(2), 1992.
    """
    counts, spread = sample.counts[name], sample.spread(name)
    tail = 1 - spec.pass_alpha / 2
    # Few keys: as much as a normal quantile is less than that of Student's t.
    inflation = spread.inflation * (student_quantile(tail, spread.freedom) / ndtri(tail)) ** 2
    if METRICS[name].is_of_outages and name in sample.incidents:
        inflation = np.maximum(inflation, sample.incidents[name].clumping(_priors_of(name)))
    if name in sample.differences:
        alike = alike_of(name, sample, spec)
        inflation = np.maximum(inflation, (alike.weights * alike.inflations).sum(axis=-1))
    return Counts(counts.events / inflation[..., np.newaxis], counts.num / inflation[..., np.newaxis])


def of_scores(name: str, scores: Scores, spec: GateSpec) -> Finding:
    """Return the finding of a `score`; the estimate is negated, so that positive is worse here too."""
    effect = effect_of(name, spec)
    estimate = -scores.total / np.maximum(scores.num, 1.0)
    is_worse = log_evidence(scores.against_no_worse) >= math.log(1 / alpha_of(name, spec))
    is_fine = log_evidence(scores.against_worse) >= math.log(1 / spec.pass_alpha)
    return Finding(estimate, is_worse & (estimate >= effect / 2), is_fine, scores.num > 0)
