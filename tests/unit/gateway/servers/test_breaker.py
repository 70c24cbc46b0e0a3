# SPDX-License-Identifier: Apache-2.0
"""The breaker of a server: when it keeps requests away, and how it finds out that the server is well again."""

import pytest
from manual_clock import ManualClock

from gateway.servers.breaker import Breaker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> Breaker:
    return Breaker(clock)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.fail(is_trial=breaker.begin())


def test_three_failures_in_a_row_open_it(breaker: Breaker) -> None:
    fail(breaker, 2)
    breaker.succeed()
    fail(breaker, 2)
    assert breaker.is_closed
    fail(breaker, 1)
    assert not breaker.is_closed


def test_one_request_tries_the_server_after_a_while(breaker: Breaker, clock: ManualClock) -> None:
    fail(breaker, 3)
    clock.now_s += 0.9
    assert not breaker.is_closed
    clock.now_s += 0.2
    assert breaker.is_closed
    assert breaker.begin()
    assert not breaker.is_closed  # while it is tried
    breaker.succeed()
    fail(breaker, 2)
    assert breaker.is_closed


def test_a_server_that_stays_bad_is_tried_ever_less_often(breaker: Breaker, clock: ManualClock) -> None:
    fail(breaker, 3)
    waits = []
    for _ in range(8):
        begun_s = clock.now_s
        while not breaker.is_closed:
            clock.now_s += 0.25
        waits.append(clock.now_s - begun_s)
        fail(breaker, 1)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_trial_whose_caller_left_is_followed_by_another(breaker: Breaker, clock: ManualClock) -> None:
    fail(breaker, 3)
    clock.now_s += 2
    breaker.leave(is_trial=breaker.begin())
    assert breaker.is_closed


def test_what_began_before_says_nothing_of_the_trial(breaker: Breaker, clock: ManualClock) -> None:
    before = [breaker.begin() for _ in range(2)]
    fail(breaker, 3)
    clock.now_s += 1
    assert breaker.begin()
    breaker.leave(is_trial=before[0])
    breaker.fail(is_trial=before[1])
    assert not breaker.is_closed
    breaker.fail(is_trial=True)
    clock.now_s += 1.9
    assert not breaker.is_closed
    clock.now_s += 0.2
    assert breaker.is_closed
