# SPDX-License-Identifier: Apache-2.0
"""The sequential test of means, against integration, least squares and simulation."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import binom, norm

from clients.rollout.gate.mean_test import Floats, Moments, boundary, difference_of_means, tuning


def moments(values: Floats, strata: NDArray[np.int64], count: int) -> Moments:
    own = [values[strata == stratum] for stratum in range(count)]
    return Moments(
        np.array([float(len(one)) for one in own]),
        np.array([one.mean() if len(one) else 0.0 for one in own]),
        np.array([((one - one.mean()) ** 2).sum() if len(one) else 0.0 for one in own]),
    )


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


def test_the_difference_is_that_of_a_regression_on_arm_and_stratum() -> None:
    rng = np.random.default_rng(1)
    strata, arm = rng.integers(0, 3, 400), rng.random(400) < 0.3
    values = strata * 2.0 + 0.25 * arm + rng.normal(size=400)
    found = difference_of_means(moments(values[arm], strata[arm], 3), moments(values[~arm], strata[~arm], 3))
    columns = np.column_stack([arm, *(strata == stratum for stratum in range(3))]).astype(float)
    fitted, residuals, _, _ = np.linalg.lstsq(columns, values, rcond=None)
    assert float(found.estimate) == pytest.approx(fitted[0], rel=1e-9)
    variance = residuals[0] / (400 - 4) * np.linalg.inv(columns.T @ columns)[0, 0]
    assert 1 / float(found.information) == pytest.approx(variance, rel=0.1)  # ours lets the strata's spreads differ


def test_a_longer_prompt_mix_of_the_candidate_is_no_difference() -> None:
    rng = np.random.default_rng(2)
    short, long = rng.normal(4, 0.1, 300), rng.normal(6, 0.1, 300)
    strata = np.repeat([0, 1], 150)
    candidate = np.concatenate([short[:20], long[:280]])
    mixed = moments(candidate, np.repeat([0, 1], [20, 280]), 2)
    found = difference_of_means(mixed, moments(np.concatenate([short[150:], long[150:]]), strata, 2))
    assert abs(float(found.estimate)) < 0.05


def test_a_stratum_with_one_value_of_an_arm_says_nothing() -> None:
    one = Moments(np.array([1.0, 50.0]), np.array([9.0, 1.0]), np.array([0.0, 50.0]))
    two = Moments(np.array([50.0, 50.0]), np.array([0.0, 1.0]), np.array([50.0, 50.0]))
    assert float(difference_of_means(one, two).estimate) == 0
    nothing = Moments(np.zeros(2), np.zeros(2), np.zeros(2))
    found = difference_of_means(nothing, two)
    assert float(found.information) == 0
    assert float(boundary(found.information, 1.0, 0.01)) == np.inf


def test_values_that_are_all_alike_are_no_endless_evidence() -> None:
    same = Moments(np.array([5.0]), np.array([1.0]), np.array([0.0]))
    assert np.isfinite(difference_of_means(same, same).information)


def test_looking_after_every_request_leaves_the_false_alarms_at_alpha() -> None:
    # A/A with a normal and with a skewed distribution, looked at 1,000 times each, from 100 requests of each arm on.
    rng, alpha, rollouts = np.random.default_rng(3), 0.05, 1000
    shape = (rollouts, 2, 1100)
    for values in (rng.standard_normal(shape), rng.standard_exponential(shape)):
        num = np.arange(1, 1101.0)
        total, squares = values.cumsum(axis=2), (values**2).cumsum(axis=2)
        arms = Moments(np.broadcast_to(num, total.shape), total / num, squares - total**2 / num)
        candidate, baseline = (Moments(*(one[:, arm, 100:, np.newaxis] for one in arms)) for arm in (0, 1))
        found = difference_of_means(candidate, baseline)
        alarms = int((found.estimate > boundary(found.information, tuning(0.2, alpha), alpha)).any(axis=1).sum())
        assert 0 < alarms <= binom.ppf(0.999, rollouts, alpha)
