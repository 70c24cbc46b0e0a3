# SPDX-License-Identifier: Apache-2.0
"""The sequential tests of events, against integration and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta, binom

from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import alpha_of
from clients.rollout_gate.statistics.count_test import excess_bound, log_evidence_over, rate_bound

pytestmark = pytest.mark.slow


def evidence(events: float, others: float, share: float) -> float:
    return float(log_evidence_over(np.array(events), np.array(others), np.array(share)))


@pytest.mark.parametrize(("events", "others", "share"), [(3, 1, 0.5), (0, 4, 0.5), (12, 0, 0.5), (5, 9, 0.1)])
def test_the_evidence_is_the_mixture_of_all_larger_probabilities(events: int, others: int, share: float) -> None:
    # With chance = sin^2(angle), Beta(1/2, 1/2) is the uniform distribution of the angle.
    def likelihood_ratio(angle: float) -> float:
        chance = math.sin(angle) ** 2
        return (chance / share) ** events * ((1 - chance) / (1 - share)) ** others

    cut = math.asin(math.sqrt(share))
    whole, _ = quad(likelihood_ratio, cut, math.pi / 2)
    assert evidence(events, others, share) == pytest.approx(math.log(whole / (math.pi / 2 - cut)), abs=1e-6)


def test_twelve_errors_against_none_are_proof_at_one_in_a_thousand() -> None:
    assert evidence(11, 0, 0.5) < math.log(1000) < evidence(12, 0, 0.5)


def test_an_arm_that_has_all_requests_or_none_proves_nothing() -> None:
    assert evidence(50, 0, 1.0) == 0
    assert evidence(50, 0, 0.0) == 0


@given(st.integers(0, 5000), st.integers(0, 5000), st.floats(0.001, 0.999))
def test_the_evidence_is_a_number_and_grows_with_events(events: int, others: int, share: float) -> None:
    found = evidence(events, others, share)
    assert math.isfinite(found)
    if events / (events + others + 1) > share:
        assert evidence(events + 1, others, share) >= found - 1e-9


@pytest.mark.parametrize(("events", "others", "share"), [(0, 20_000, 0.05), (600, 1e6, 0.05), (5, 300, 1.0 - 1e-9)])
def test_many_requests_without_an_event_prove_no_more_than_few(events: float, others: float, share: float) -> None:
    assert evidence(events, others, share) <= 0


@pytest.mark.parametrize("rollouts", [800, pytest.param(4000, marks=pytest.mark.soak)])
def test_looking_after_every_event_leaves_the_false_alarms_at_alpha(rollouts: int) -> None:
    rng, alpha = np.random.default_rng(4), 0.05
    for share in (0.5, 0.1):
        events = (rng.random((rollouts, 300)) < share).cumsum(axis=1).astype(float)
        found = log_evidence_over(events, np.arange(1, 301) - events, np.full(events.shape, share))
        alarms = int((found >= math.log(1 / alpha)).any(axis=1).sum())
        assert 0 < alarms <= binom.ppf(0.999, rollouts, alpha)


@pytest.mark.parametrize("rate", [0.01, 0.3], ids=["rare", "common"])
@pytest.mark.parametrize("share", [0.5, 0.1], ids=["half", "a tenth"])
@pytest.mark.parametrize("rollouts", [500, pytest.param(1500, marks=pytest.mark.soak)])
def test_a_split_by_chance_leaves_the_false_alarms_at_alpha(rate: float, share: float, rollouts: int) -> None:
    # The share of the requests is the one that was seen, at each look.
    rng, alpha = np.random.default_rng(9), 0.05
    candidate = rng.random((rollouts, 1500)) < share
    event = rng.random((rollouts, 1500)) < rate
    seen = candidate.cumsum(axis=1) / np.arange(1, 1501)
    found = log_evidence_over(
        (event & candidate).cumsum(axis=1)[:, 9::10], (event & ~candidate).cumsum(axis=1)[:, 9::10], seen[:, 9::10]
    )
    alarms = int((found >= math.log(1 / alpha)).any(axis=1).sum())
    assert alarms <= binom.ppf(0.999, rollouts, alpha)


def test_the_rate_bound_is_where_robbins_mixture_is_one_over_alpha() -> None:
    events, num, alpha = 7, 400, 0.05
    upper = float(rate_bound(np.array(float(events)), np.array(float(num)), alpha, is_upper=True))
    lower = float(rate_bound(np.array(float(events)), np.array(float(num)), alpha, is_upper=False))
    assert lower < events / num < upper
    for rate in (lower, upper):
        evidence_against, _ = quad(
            lambda x, rate=rate: (
                (x / rate) ** events * ((1 - x) / (1 - rate)) ** (num - events) * beta.pdf(x, 0.5, 0.5)
            ),
            0,
            0.2,
            points=[events / num],
            limit=500,
        )
        assert evidence_against == pytest.approx(1 / alpha, rel=1e-3)


def test_the_rate_bounds_of_no_request_are_zero_and_one() -> None:
    nothing = np.array(0.0)
    assert float(rate_bound(nothing, nothing, 0.05, is_upper=True)) == 1
    assert float(rate_bound(nothing, nothing, 0.05, is_upper=False)) == 0


def test_many_rates_at_once_are_bounded_as_each_is() -> None:
    events, num = np.array([[1.0, 2.0], [1.0, 1.0]]), np.array([[10.0, 20.0], [10.0, 30.0]])
    found = rate_bound(events, num, 0.05, is_upper=True)
    each = [[float(rate_bound(events[i, j], num[i, j], 0.05, is_upper=True)) for j in (0, 1)] for i in (0, 1)]
    assert found == pytest.approx(np.array(each))


@pytest.mark.parametrize("rate", [0.002, 0.2], ids=["few events", "many"])
def test_the_excess_is_below_its_bound_at_all_looks(rate: float) -> None:
    rng, alpha, rollouts, excess = np.random.default_rng(5), 0.05, 1000, 0.05
    rates = np.array([rate + excess, rate])
    num = np.broadcast_to(np.arange(20, 2001.0, 20)[:, np.newaxis], (100, 2))
    events = rng.binomial(20, rates, (rollouts, 100, 2)).cumsum(axis=1).astype(float)
    bound = excess_bound(events, np.broadcast_to(num, events.shape), 0.05, alpha)
    missed = int((bound[:, 5:] < excess).any(axis=1).sum())  # from 120 requests on, as the gate
    assert missed <= binom.ppf(0.999, rollouts, alpha)
    assert np.median(bound[:, -1]) < excess + 0.05  # and it is narrow enough to tell something


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("rate", [0.002, 0.01, 0.03])
def test_a_candidate_with_too_many_events_is_seldom_let_through_however_small_its_share(
    rate: float, share: float
) -> None:
    # A hundred requests of the candidate between two looks, and as many of the baseline as the share makes.
    rng, alpha, rollouts, excess = np.random.default_rng(6), 0.05, 1000, 0.01
    portion = np.array([100.0, 100 * (1 - share) / share])
    num = np.broadcast_to(np.arange(1, 41.0)[:, np.newaxis] * portion, (rollouts, 40, 2))
    rates = np.array([rate + excess, rate])
    events = rng.binomial(portion.astype(int), rates, (rollouts, 40, 2)).cumsum(axis=1).astype(float)
    let_through = int((excess_bound(events, num, excess, alpha) < excess).any(axis=1).sum())
    assert let_through <= binom.ppf(0.999, rollouts, alpha)


def test_no_test_of_the_arms_finds_errors_over_others_in_nineteen_rollouts_of_twenty() -> None:
    # The bound that docs/rollout_gate.md names: 2,000 requests of each arm, errors 1.1 % against 0.1 %, judged once at
    # the end by the uniformly most powerful unbiased test of their arms, with randomisation.
    alpha, power = alpha_of("errors", GateSpec()), 0.0
    for num in range(1, 80):
        events, left = np.arange(num + 1), alpha
        chance = binom.pmf(events, 2000, 0.011) * binom.pmf(num - events, 2000, 0.001)
        for count in events[::-1]:
            share = min(1.0, left / binom.pmf(count, num, 0.5))
            power, left = power + share * chance[count], left - share * binom.pmf(count, num, 0.5)
            if share < 1:
                break
    assert power == pytest.approx(0.9414, abs=0.0005)
