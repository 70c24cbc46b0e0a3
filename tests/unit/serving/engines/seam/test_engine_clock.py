# SPDX-License-Identifier: Apache-2.0
"""The time that simulated work takes."""

import time

import pytest

from serving.engines.seam.clock import Pace, VirtualClock, WallClock


def test_a_virtual_clock_moves_only_when_somebody_sleeps() -> None:
    clock = VirtualClock(100.0)
    clock.sleep_s(5.0)
    assert clock.now_s() == 105.0


def test_a_busy_engine_takes_the_sum_of_its_steps_whatever_its_caller_does_between() -> None:
    clock = VirtualClock()
    pace = Pace(clock)
    for _ in range(10):
        pace.spend_s(0.004)
        clock.sleep_s(0.001)  # the caller hands out the tokens
    assert clock.now_s() == pytest.approx(10 * 0.004 + 0.001)


def test_a_caller_slower_than_the_engine_sets_the_pace_itself() -> None:
    clock = VirtualClock()
    pace = Pace(clock)
    for _ in range(10):
        pace.spend_s(0.001)
        clock.sleep_s(0.005)
    assert clock.now_s() == pytest.approx(0.001 + 10 * 0.005)


def test_a_long_pause_is_not_made_up_for() -> None:
    clock = VirtualClock()
    pace = Pace(clock)
    clock.sleep_s(100.0)
    for _ in range(50):
        pace.spend_s(0.001)
    assert clock.now_s() == pytest.approx(100.0 - 0.010 + 50 * 0.001)  # but for the last 10 ms


def test_an_engine_that_was_idle_begins_when_work_comes() -> None:
    clock = VirtualClock()
    pace = Pace(clock)
    clock.sleep_s(0.005)
    pace.restart()
    pace.spend_s(0.004)
    assert clock.now_s() == pytest.approx(0.009)


def test_a_step_without_a_duration_does_not_sleep() -> None:
    class NeverClock(VirtualClock):
        def sleep_s(self, duration_s: float) -> None:
            raise AssertionError(f"slept {duration_s} s")

    Pace(NeverClock()).spend_s(0.0)


def test_late_wake_ups_do_not_add_up() -> None:
    class LateClock(VirtualClock):
        def sleep_s(self, duration_s: float) -> None:
            super().sleep_s(duration_s + 0.0001)

    clock = LateClock()
    pace = Pace(clock)
    for _ in range(50):
        pace.spend_s(0.002)
    assert clock.now_s() == pytest.approx(50 * 0.002 + 0.0001)


def test_the_wall_clock_sleeps_in_real_time() -> None:
    clock = WallClock()
    start_s = time.monotonic()
    clock.sleep_s(0.002)
    assert time.monotonic() - start_s >= 0.002
