# SPDX-License-Identifier: Apache-2.0
"""The sequential test of paired scores."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from clients.rollout_gate.statistics.score_test import BETS, gains, log_evidence

MANY = [1000, pytest.param(3000, marks=pytest.mark.soak)]


def test_a_pair_wins_each_bet_its_own_share() -> None:
    no_worse, worse = gains(np.array(-0.5), 0.05)
    assert no_worse == pytest.approx(np.log(1 + 0.5 * BETS))  # half a point lower: money on "it is worse" grows
    assert worse == pytest.approx(np.log(1 - 0.45 * BETS))


def test_the_evidence_is_the_mean_of_the_bets_money() -> None:
    won = np.log(np.arange(1.0, BETS.size + 1))
    assert float(log_evidence(won)) == pytest.approx(math.log(np.arange(1.0, BETS.size + 1).mean()))


@pytest.mark.parametrize("rollouts", MANY)
def test_looking_after_every_pair_leaves_the_false_alarms_at_alpha(rollouts: int) -> None:
    # Mostly alike, now and then worlds apart either way: the hardest for a test that thinks of normal distributions.
    rng, alpha = np.random.default_rng(6), 0.05
    differences = rng.choice([-1.0, 0.0, 1.0], (rollouts, 300), p=[0.02, 0.96, 0.02])
    no_worse, _ = gains(differences, 0.05)
    alarms = int((log_evidence(no_worse.cumsum(axis=1)) >= math.log(1 / alpha)).any(axis=1).sum())
    assert 0 < alarms <= binom.ppf(0.999, rollouts, alpha)


@pytest.mark.parametrize("rollouts", MANY)
def test_a_candidate_at_the_effect_size_passes_no_more_often_than_alpha(rollouts: int) -> None:
    rng, alpha = np.random.default_rng(7), 0.05
    differences = np.clip(rng.normal(-0.05, 0.2, (rollouts, 300)), -1, 1)
    _, worse = gains(differences, 0.05)
    passed = int((log_evidence(worse.cumsum(axis=1)) >= math.log(1 / alpha)).any(axis=1).sum())
    assert 0 < passed <= binom.ppf(0.999, rollouts, alpha)


def test_a_drop_of_a_tenth_is_found_within_two_hundred_pairs() -> None:
    rng = np.random.default_rng(8)
    differences = np.clip(rng.normal(-0.1, 0.2, (200, 200)), -1, 1)
    no_worse, _ = gains(differences, 0.05)
    assert (log_evidence(no_worse.sum(axis=1)) >= math.log(1000)).mean() > 0.9
