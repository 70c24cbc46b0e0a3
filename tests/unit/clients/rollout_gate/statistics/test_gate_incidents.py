# SPDX-License-Identifier: Apache-2.0
"""Events that come together are one incident; those that come by themselves are not."""

import numpy as np
import pytest

from clients.rollout_gate.statistics.incidents import LENGTHS, PRIORS_OF_OUTAGES, Incidents

FADE_S = 80.0  # so that the lengths are 10, 60 and 300 s
CANDIDATE, BASELINE = 0, 1
OBSERVED_S = 2000.0


def incidents_of(*events: tuple[float, int], portion_s: float = 1.0) -> Incidents:
    """Return the incidents of events at times, each of an arm, which are told in portions."""
    found = Incidents.none((), FADE_S)
    found.tell(np.array([True, True]), np.array([0.0, OBSERVED_S]))
    times = np.array([at_s for at_s, _ in events])
    arms = np.array([arm for _, arm in events])
    for begin_s in np.unique(times // portion_s) * portion_s:
        inside = (times >= begin_s) & (times < begin_s + portion_s)
        found.add(np.stack([arms[inside] == CANDIDATE, arms[inside] == BASELINE]), times[inside])
    return found


def test_lengths_are_of_ten_and_sixty_and_three_hundred_seconds() -> None:
    assert [FADE_S * length for length in LENGTHS] == [10, 60, 300]


def test_events_within_a_length_are_one_incident() -> None:
    found = incidents_of((0, 0), (5, 0), (20, 0), (400, 0), (500, 0))
    assert found.incidents[CANDIDATE].tolist() == [4, 3, 2]
    assert found.short[CANDIDATE].tolist() == [1, 2, 3]
    assert found.incidents[BASELINE].tolist() == [0, 0, 0]


@pytest.mark.parametrize("portion_s", [1.0, 7.0])
def test_an_event_of_the_other_arm_ends_an_incident(portion_s: float) -> None:
    found = incidents_of((0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (8, 0), (9, 1), portion_s=portion_s)
    assert found.incidents[CANDIDATE].tolist() == [2, 2, 2]
    assert found.incidents[BASELINE].tolist() == [2, 2, 2]
    assert found.lasting.tolist() == [1, 1]


def at_random(num: int, arm: int, seed: int) -> list[tuple[float, int]]:
    return [(at_s, arm) for at_s in np.random.default_rng(seed).random(num) * 2000]


def in_bursts(num: int, arm: int, seed: int, size: int = 10) -> list[tuple[float, int]]:
    rng = np.random.default_rng(seed)
    return [(begin_s + rng.random() * 4, arm) for begin_s in rng.random(num) * 2000 for _ in range(size)]


def told(events: list[tuple[float, int]]) -> Incidents:
    return incidents_of(*sorted(events))


def test_events_by_chance_are_taken_for_such() -> None:
    weights = [told(at_random(20, CANDIDATE, seed)).weights(PRIORS_OF_OUTAGES)[0] for seed in range(20)]
    assert np.median(weights) > 0.95


def test_events_in_bursts_are_seen_to_be() -> None:
    found = told(in_bursts(4, CANDIDATE, 1) + in_bursts(4, BASELINE, 2))
    assert float(found.weights(PRIORS_OF_OUTAGES)[0]) < 1e-6
    assert float(found.clumping(PRIORS_OF_OUTAGES)) == pytest.approx(10, rel=0.2)


def test_what_strikes_both_arms_is_no_incident_of_one() -> None:
    rng = np.random.default_rng(3)
    shared = [(begin_s + rng.random() * 4, int(rng.integers(2))) for begin_s in rng.random(6) * 2000 for _ in range(20)]
    assert float(told(shared).clumping(PRIORS_OF_OUTAGES)) < 3


def chance(events: list[tuple[float, int]]) -> float:
    return float(told(events).chance(np.array(0.5), PRIORS_OF_OUTAGES))


def test_one_burst_is_chance_and_twenty_errors_by_themselves_are_not() -> None:
    assert chance(in_bursts(2, CANDIDATE, 4)) > 0.05
    assert chance(at_random(20, CANDIDATE, 4)) < 1e-3


def test_an_arm_that_fails_in_many_bursts_beside_one_that_does_not_is_found() -> None:
    assert chance(in_bursts(25, CANDIDATE, 5)) < 1e-3
    assert chance(in_bursts(25, CANDIDATE, 5) + in_bursts(25, BASELINE, 6)) > 0.1


@pytest.mark.parametrize("every_s", [0.5, 3.0, 9.0, 40.0])
@pytest.mark.parametrize("jitter", [0.0, 1.0])
def test_an_arm_that_fails_all_the_time_is_found_however_evenly(every_s: float, jitter: float) -> None:
    # As one request in 33 of a busy arm, counted off: no gap between them is ever long.
    rng = np.random.default_rng(7)
    failing = [(at_s + jitter * every_s * rng.random(), CANDIDATE) for at_s in np.arange(0, 2000, every_s)]
    assert chance(failing) < 1e-4


@pytest.mark.parametrize("from_s", [0.0, 50.0, 300.0])
def test_what_nobody_could_see_before_is_not_taken_for_an_outage_that_began_late(from_s: float) -> None:
    # As of slow requests, of which nothing is known before a hundred of the baseline's are.
    found = Incidents.none((), FADE_S)
    rng = np.random.default_rng(8)
    at_s = np.sort(from_s + rng.random(150) * 600)
    found.tell(np.ones(150, bool), at_s)
    for each in at_s:
        found.add(np.array([[True], [False]]), np.array([each]))
    assert float(found.weights(PRIORS_OF_OUTAGES)[0]) > 0.9


def test_errors_of_one_arm_all_the_time_need_no_ten_minutes() -> None:
    # A hundred and thirty in five minutes, and none of the other arm: an outage would have to last as long as was seen.
    found = Incidents.none((), FADE_S)
    at_s = np.sort(np.random.default_rng(9).random(130) * 290)
    found.tell(np.ones(130, bool), at_s)
    for each in at_s:
        found.add(np.array([[True], [False]]), np.array([each]))
    assert float(found.chance(np.array(0.5), PRIORS_OF_OUTAGES)) < 1e-4
