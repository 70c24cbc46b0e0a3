# SPDX-License-Identifier: Apache-2.0
"""A mismatch of arms is found soon, and not where there is none, however often one looks."""

import math

import numpy as np
import pytest

from clients.rollout.judging.sample_ratio import log_evidence, mismatch

SHARES = {"a": 0.5, "b": 0.25, "c": 0.25}


def first_alarm(probabilities: list[float], num: int, seed: int) -> int | None:
    drawn = np.random.default_rng(seed).choice(3, size=num, p=probabilities)
    counts = np.zeros(3, dtype=int)
    for number, arm in enumerate(drawn, 1):
        counts[arm] += 1
        if number % 20 == 0 and mismatch(dict(zip(SHARES, counts.tolist(), strict=True)), SHARES):
            return number
    return None


def test_arms_as_they_should_be_hardly_ever_give_an_alarm_at_any_look() -> None:
    alarms = [first_alarm([0.5, 0.25, 0.25], 4000, seed) for seed in range(60)]
    assert sum(alarm is not None for alarm in alarms) <= 1  # of 60, each with a chance of 0.001


def test_a_lost_tenth_of_an_arm_is_found() -> None:
    found = [first_alarm([0.5, 0.275, 0.225], 40_000, seed) for seed in range(8)]
    assert all(number is not None and number < 20_000 for number in found), found


def test_it_is_the_mixture_that_it_says() -> None:
    # Two arms, Dirichlet(50, 50): B(50 + a, 50 + b) / B(50, 50) / (1/2)^(a + b), by another way.
    def log_beta(a: float, b: float) -> float:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    expected = log_beta(50 + 30, 50 + 10) - log_beta(50, 50) - 40 * math.log(0.5)
    assert log_evidence({"a": 30, "b": 10}, {"a": 0.5, "b": 0.5}) == pytest.approx(expected)
    assert log_evidence({}, SHARES) == pytest.approx(0)


def test_it_says_what_is_missing() -> None:
    assert mismatch({"a": 1000, "b": 500}, SHARES) == (
        "sample ratio mismatch: a 66.7% for 50.0%, b 33.3% for 25.0%, c 0.0% for 25.0% of 1500; what is missing is not "
        "so by chance, and no figure holds"
    )
