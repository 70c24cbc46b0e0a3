# SPDX-License-Identifier: Apache-2.0
"""The guards: what ends a rollout whatever the baseline does, and what passes by."""

import numpy as np
import pytest
from gate_rows import rows_of

from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.guards import is_over_guard
from clients.rollout_gate.sample import Counts, Run, Sample
from clients.rollout_gate.statistics.fading import Times
from clients.rollout_gate.sums.event_sums import EventSums

SPEC = GateSpec()


def seconds_until_fail(
    candidate: str, *, baseline: str = ".", every_s: float = 1.0, name: str = "errors"
) -> float | None:
    """Return when a candidate of such requests is over the guard, one every second by default; None: it never is.

    Args:
        candidate: a letter for each request, "x" of one that fails.
        baseline: the same of the baseline, over and over.
    """
    sums = EventSums((), SPEC.fade_s)
    for number, letter in enumerate(candidate):
        happened = np.array([letter == "x", baseline[number % len(baseline)] == "x"], float)
        sums.add(rows_of(happened, [True, False]), happened, np.full(2, number * every_s))
        sample = Sample(
            num_requests=sums.num,
            times=Times(np.array(number * every_s), np.array(1.0)),
            counts={name: Counts(sums.events, sums.num)},
            incidents={name: sums.incidents},
            runs={name: Run(sums.run, sums.run_began_s)},
        )
        if is_over_guard(name, sample, SPEC):
            return number * every_s
    return None


def test_a_candidate_that_was_never_alive_fails_after_a_minute() -> None:
    assert seconds_until_fail("x" * 70) == 60
    assert seconds_until_fail("x" * 70, baseline="x") == 60


def test_a_candidate_that_dies_fails_after_two_minutes() -> None:
    assert seconds_until_fail("." * 10 + "x" * 125) == 10 + 120


def test_a_candidate_of_few_requests_is_dead_only_after_twenty() -> None:
    assert seconds_until_fail("." * 40 + "x" * 19, every_s=10.0) is None
    assert seconds_until_fail("." * 40 + "x" * 21, every_s=10.0) == (40 + 19) * 10


@pytest.mark.parametrize("burst", ["x" * 45, "x." * 50])
def test_a_candidate_that_fails_for_a_moment_does_not_fail(burst: str) -> None:
    assert seconds_until_fail("." * 100 + burst + "." * 100) is None


@pytest.mark.parametrize("name", ["empty", "looping"])
def test_wrong_answers_fail_a_candidate_as_soon_as_they_are_no_chance(name: str) -> None:
    assert seconds_until_fail("x" * 30, name=name) == 19, "of the twentieth request"
    assert seconds_until_fail("..." * 10 + "xxx" * 20, name=name) is not None
    assert seconds_until_fail("." * 20 + ("x" + "." * 24) * 10, name=name) is None, "4 % are under the guard"


@pytest.mark.parametrize("name", ["empty", "looping"])
def test_a_candidate_that_answers_wrong_after_a_long_time_of_good_answers_is_dead_after_two_minutes(name: str) -> None:
    assert seconds_until_fail("." * 3000 + "x" * 130, name=name) == 3000 + 120, "4 % of all are under the guard"


def test_half_of_the_requests_for_five_minutes_fail_a_candidate() -> None:
    assert seconds_until_fail("." * 20 + "x." * 170) == pytest.approx(20 + 300, abs=3)
