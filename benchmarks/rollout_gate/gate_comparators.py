# SPDX-License-Identifier: Apache-2.0
"""Other judges of the same traffic: fixed thresholds, Kayenta's judge, Argo Rollouts' count limits.

Each is given the figures that our gate has, as far as it can take them, and is described by its published defaults.
All are arrays over rollouts; what comes back is the look at which a rollout is rolled back, or -1.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks.rollout_gate.gate_traffic import Singles, Traffic
from benchmarks.rollout_gate.simulated_rollouts import LOOK_S, PER_LOOK

Looks = NDArray[np.int64]

_MINUTE = round(60 / LOOK_S)  # looks
_WINDOW = 5 * _MINUTE  # of the p99, as Prometheus' examples have it
_KAYENTA_TOLERANCE, _KAYENTA_CONFIDENCE, _KAYENTA_MIN_POINTS = 0.25, 0.98, 10


def p99_ratio(traffic: Traffic) -> Looks:
    """Judge every 10 s: the candidate's TTFT p99 of the last five minutes is over 1.1 times the baseline's."""
    p99 = _window_p99(traffic.log_ttft)
    return _first(p99[:, 0] > p99[:, 1] + math.log(1.1))


def p99_target(traffic: Traffic) -> Looks:
    """Judge every 10 s: TTFT p99 is over a target that lies 10 % above what the baseline has in the long run."""
    target = np.quantile(traffic.log_ttft[:, 1], 0.99) + math.log(1.1)
    return _first(_window_p99(traffic.log_ttft)[:, 0] > target)


def kayenta(traffic: Traffic) -> Looks:
    """Judge every minute from the tenth on, over all minutes so far: any metric is "High", or "Low" where that is bad.

    One point a minute and arm: mean TTFT, TPOT and output length, share of errors and of looping answers. Kayenta's
    NetflixACAJudge (defaults: tolerance 0.25, confidence 0.98, no effect size) calls a metric High where the lower end
    of the Mann-Whitney interval of the shift exceeds 0.25 times the shift's own Hodges-Lehmann estimate: the tolerance
    is of the estimate, not of the metric. One metric of five leaves a score of 80, below the usual pass score of 95.
    """
    answered = ~traffic.is_error
    metrics = [
        (np.exp(traffic.log_ttft), answered, 1),
        (np.exp(traffic.log_tpot), answered, 1),
        (traffic.num_tokens, answered, 0),
        (traffic.is_error.astype(np.float32), np.ones_like(answered), 1),
        (traffic.is_looping.astype(np.float32), answered, 1),
    ]
    points = [(_minutes(values, kept), direction) for values, kept, direction in metrics]
    num_minutes = points[0][0].shape[2]
    is_failed = np.zeros((traffic.stratum.shape[0], traffic.stratum.shape[2]), bool)
    for count in range(_KAYENTA_MIN_POINTS, num_minutes + 1):
        for values, direction in points:
            is_bad = _mann_whitney(values[:, 0, :count], values[:, 1, :count], direction)
            is_failed[:, count * _MINUTE - 1] |= is_bad
    return _first(is_failed)


def _mann_whitney(candidate: Singles, baseline: Singles, direction: int) -> NDArray[np.bool_]:
    # The interval's ends are order statistics of all differences, by the normal approximation of U.
    size = candidate.shape[-1]
    shifts = np.sort((candidate[:, :, np.newaxis] - baseline[:, np.newaxis, :]).reshape(len(candidate), -1), axis=1)
    z = norm.ppf((1 + _KAYENTA_CONFIDENCE) / 2)
    rank = math.floor(size * size / 2 - z * math.sqrt(size * size * (2 * size + 1) / 12))
    allowed = _KAYENTA_TOLERANCE * np.abs(np.median(shifts, axis=1))
    is_high = shifts[:, max(rank, 0)] > allowed
    return np.asarray(is_high if direction else is_high | (shifts[:, -1 - max(rank, 0)] < -allowed))


def argo(failure_limit: int) -> Callable[[Traffic], Looks]:
    """Return a judge of each minute: TTFT over 1.1 and TPOT over 1.05 times the baseline's mean, success below 0.95.

    A metric's measurement that breaks its condition has failed; more than `failure_limit` of one metric (default 0;
    3 in the examples of its documentation) roll back. It has no statistics: what a query says is taken for true.
    """

    def judge(traffic: Traffic) -> Looks:
        answered = ~traffic.is_error
        ttft = _minutes(np.exp(traffic.log_ttft), answered)
        tpot = _minutes(np.exp(traffic.log_tpot), answered)
        errors = _minutes(traffic.is_error.astype(np.float32), np.ones_like(answered))
        looping = _minutes(traffic.is_looping.astype(np.float32), answered)
        broken = (
            ttft[:, 0] > 1.1 * ttft[:, 1],
            tpot[:, 0] > 1.05 * tpot[:, 1],
            errors[:, 0] > 0.05,
            looping[:, 0] > 0.05,
        )
        is_failed = np.zeros((traffic.stratum.shape[0], traffic.stratum.shape[2]), bool)
        for each in broken:
            minutes = np.arange(1, each.shape[1] + 1) * _MINUTE - 1
            is_failed[:, minutes] |= each.cumsum(axis=1) > failure_limit
        return _first(is_failed)

    return judge


COMPARATORS: dict[str, Callable[[Traffic], Looks]] = {
    "TTFT p99 over 1.1 times the baseline's": p99_ratio,
    "TTFT p99 over a target": p99_target,
    "Kayenta": kayenta,
    "Argo Rollouts, failureLimit 0": argo(0),
    "Argo Rollouts, failureLimit 3": argo(3),
}


def _minutes(values: Singles, kept: NDArray[np.bool_]) -> Singles:
    """Return means of whole minutes, [rollouts, 2, minutes]."""
    rollouts, arms, looks, _ = values.shape
    whole = looks // _MINUTE * _MINUTE
    shape = (rollouts, arms, looks // _MINUTE, _MINUTE * PER_LOOK)
    total = np.where(kept, values, 0)[:, :, :whole].reshape(shape).sum(axis=3)
    return np.asarray(total / np.maximum(kept[:, :, :whole].reshape(shape).sum(axis=3), 1), np.float32)


def _window_p99(values: Singles) -> Singles:
    """Return p99 of the last five minutes, [rollouts, 2, looks]; before that it is unknown."""
    rollouts, arms, looks, _ = values.shape
    found = np.full((rollouts, arms, looks), np.nan, np.float32)
    at = math.ceil(0.99 * _WINDOW * PER_LOOK) - 1
    for look in range(_WINDOW - 1, looks):
        window = values[:, :, look + 1 - _WINDOW : look + 1].reshape(rollouts, arms, -1)
        found[:, :, look] = np.partition(window, at, axis=2)[:, :, at]
    return found


def _first(is_failed: NDArray[np.bool_]) -> Looks:
    return np.where(is_failed.any(axis=1), is_failed.argmax(axis=1), -1)
