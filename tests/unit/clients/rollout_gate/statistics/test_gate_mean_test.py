# SPDX-License-Identifier: Apache-2.0
"""The sequential test of means, against integration and simulation."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from clients.rollout_gate.statistics.mean_test import boundary, log_evidence, tuning


def test_the_boundary_lies_just_above_the_one_where_the_mixture_is_one_over_alpha() -> None:
    rho, alpha, information = 40.0, 0.01, 500.0
    crossed = float(boundary(np.array(information), rho, alpha)) * information  # the motion itself

    def mixed(drift: float) -> float:  # half-normal of variance 1 / rho over drifts that are positive
        density = 2 * norm.pdf(drift, scale=rho**-0.5)
        return float(np.exp(drift * crossed - drift**2 * information / 2) * density)

    evidence, _ = quad(mixed, 0, 2, limit=200)
    assert 1 / alpha <= evidence <= 1.03 / alpha  # the closed form is an upper bound, and a close one


def test_the_tuning_makes_the_boundary_lowest_where_the_effect_is_four_standard_errors() -> None:
    effect, alpha = 0.1, 0.002
    information = np.array((4 / effect) ** 2)
    best = float(boundary(information, tuning(effect, alpha), alpha))
    others = [float(boundary(information, factor * tuning(effect, alpha), alpha)) for factor in (0.5, 0.8, 1.25, 2)]
    assert best < min(others)
    assert best * float(information) ** 0.5 == pytest.approx(3.84, abs=0.01)  # standard errors


def test_the_evidence_is_the_mixture_and_nine_tenths_of_it_reach_one_over_alpha_just_below_the_boundary() -> None:
    rho, information, estimate = 40.0, 500.0, 0.1

    def likelihood_ratio(drift: float) -> float:
        density = 2 * (0.9 * norm.pdf(drift, scale=rho**-0.5) + 0.1 * norm.pdf(drift, scale=5 * rho**-0.5))
        return float(np.exp(drift * estimate * information - drift**2 * information / 2) * density)

    whole, _ = quad(likelihood_ratio, 0, 2, limit=200)
    assert float(log_evidence(np.array(estimate), np.array(information), rho)) == pytest.approx(np.log(whole), abs=1e-6)
    crossed = boundary(np.array(information), rho, 0.01)
    assert np.log(90) <= float(log_evidence(crossed, np.array(information), rho)) <= np.log(103)


def test_little_information_on_a_large_difference_is_evidence() -> None:
    # 0.8 with a standard error of 0.16 is five of them, where the boundary is tuned to differences of 0.1.
    rho = tuning(0.1, 0.002)
    assert float(log_evidence(np.array(0.8), np.array(0.16**-2), rho)) > np.log(1000)


def test_nothing_known_is_no_evidence() -> None:
    nothing = np.array(0.0)
    assert float(log_evidence(nothing, nothing, 1.0)) == pytest.approx(0)
    assert float(boundary(nothing, 1.0, 0.01)) == np.inf


def test_looking_after_every_request_leaves_the_false_alarms_at_alpha() -> None:
    # A/A with a normal and with a skewed distribution, looked at 1,000 times each, from 100 requests of each arm on.
    rng, alpha, rollouts = np.random.default_rng(3), 0.05, 1000
    shape = (rollouts, 2, 1100)
    for values in (rng.standard_normal(shape), rng.standard_exponential(shape)):
        num = np.arange(1, 1101.0)
        total, squares = values.cumsum(axis=2), (values**2).cumsum(axis=2)
        variance = (squares - total**2 / num) / np.maximum(num - 1, 1) / num
        estimate, information = (total[:, 0] - total[:, 1]) / num, 1 / np.maximum(variance.sum(axis=1), 1e-9)
        found = log_evidence(estimate[:, 100:], information[:, 100:], tuning(0.2, alpha))
        alarms = int((found >= np.log(1 / alpha)).any(axis=1).sum())
        assert 0 < alarms <= binom.ppf(0.999, rollouts, alpha)
