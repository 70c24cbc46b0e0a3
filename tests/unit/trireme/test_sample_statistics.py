# SPDX-License-Identifier: Apache-2.0
"""Percentiles and bootstrap intervals, held against scipy, closed forms and how often the truth is within."""

import random
import statistics

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import norm

from trireme.base.sample_statistics import Floats, block_bootstrap, bootstrap, interval, percentile

SEED = 7


def means(values: Floats, *, num_resamples: int = 2000, seed: int = SEED) -> Floats:
    return bootstrap(lambda chosen: values[chosen].mean(axis=1), len(values), num_resamples=num_resamples, seed=seed)


def test_a_percentile_is_between_two_values_or_one_of_them() -> None:
    values = [40.0, 10.0, 30.0, 20.0]  # the 50th is between the second and the third
    assert percentile(values, 50) == 25
    assert percentile(values, 50, method="higher") == 30
    assert percentile(values, 50, method="lower") == 20
    assert percentile(values, 90) == pytest.approx(statistics.quantiles(values, n=10, method="inclusive")[8])
    assert [percentile([3.0], percent) for percent in (0, 50, 100)] == [3, 3, 3]


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 1000])
def test_the_higher_99th_percentile_is_the_first_that_over_a_99th_of_all_do_not_exceed(count: int) -> None:
    assert percentile(range(count), 99, method="higher") == min(count - 1, int(0.99 * count))


def test_the_draws_are_those_of_the_standard_library() -> None:
    rng = random.Random(SEED)
    expected = [rng.choices(range(5), k=5) for _ in range(600)]
    assert bootstrap(lambda chosen: chosen, 5, num_resamples=600, seed=SEED).tolist() == expected


def test_the_interval_of_a_mean_is_scipys() -> None:
    values = np.random.default_rng(SEED).exponential(1.0, size=200)
    found = interval(means(values), confidence=0.95)
    theirs = scipy_bootstrap(
        (values,), np.mean, method="percentile", n_resamples=2000, random_state=np.random.default_rng(SEED)
    ).confidence_interval
    assert found == pytest.approx((theirs.low, theirs.high), abs=0.02)  # other draws: 0.28 wide


def test_the_interval_of_a_share_is_the_binomials() -> None:
    low, high = interval(means(np.array([1.0] * 30 + [0.0] * 70)), confidence=0.95)
    # 0.3 +- 1.96 sqrt(0.3 * 0.7 / 100) = 0.3 +- 0.0898
    assert (low, high) == pytest.approx((0.21, 0.39), abs=0.015)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_an_interval_holds_the_truth_about_as_often_as_it_says(confidence: float) -> None:
    # Beside the closed form on the same samples, z * s / sqrt(n), so that the luck of the samples is in neither.
    rng, held, expected = np.random.default_rng(SEED), [], []
    for trial in range(1000):
        values = rng.normal(1.0, 2.0, size=60)
        low, high = interval(means(values, num_resamples=400, seed=trial), confidence=confidence)
        held.append(low <= 1.0 <= high)
        expected.append(abs(values.mean() - 1.0) <= norm.ppf((1 + confidence) / 2) * values.std() / 60**0.5)
    assert np.mean(held) == pytest.approx(np.mean(expected), abs=0.015)
    assert np.mean(held) == pytest.approx(confidence, abs=0.05)


def test_an_interval_ends_at_the_outermost_figures_of_its_middle() -> None:
    assert interval(np.arange(1000.0), confidence=0.9) == (50, 949)


def test_a_seed_draws_the_same_each_time_and_another_one_does_not() -> None:
    values = np.arange(20.0)
    assert means(values, seed=1).tolist() == means(values, seed=1).tolist()
    assert means(values, seed=1).tolist() != means(values, seed=2).tolist()


def test_blocks_are_drawn_whole_and_their_values_pooled() -> None:
    blocks = [[1.0, 2.0], [10.0, 20.0, 30.0]]
    found = block_bootstrap(lambda pooled: [len(pooled), pooled.sum()], blocks, num_resamples=100)
    assert {tuple(row) for row in found.tolist()} == {(4, 6), (5, 63), (6, 120)}


def test_an_interval_of_blocks_holds_the_truth_where_one_of_single_values_is_too_narrow() -> None:
    # 30 blocks of 10 values that are the same: the mean of 300 is as uncertain as that of 30.
    rng, num_held = np.random.default_rng(SEED), {"blocks": 0, "values": 0}
    for trial in range(100):
        blocks = np.repeat(rng.normal(0.0, 1.0, size=(30, 1)), 10, axis=1)
        drawn = {
            "blocks": block_bootstrap(np.mean, [*blocks], num_resamples=200, seed=trial),
            "values": means(blocks.ravel(), num_resamples=200, seed=trial),
        }
        for name, resampled in drawn.items():
            low, high = interval(resampled, confidence=0.95)
            num_held[name] += low <= 0 <= high
    assert num_held["blocks"] >= 88
    assert num_held["values"] < 60


def test_the_same_seed_draws_two_sets_of_blocks_as_pairs() -> None:
    under = [[1.0], [20.0], [300.0]]
    over = [[2.0], [40.0], [600.0]]
    ratios = block_bootstrap(np.mean, over, num_resamples=50) / block_bootstrap(np.mean, under, num_resamples=50)
    assert ratios == pytest.approx(2)
