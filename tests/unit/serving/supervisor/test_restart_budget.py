# SPDX-License-Identifier: Apache-2.0
"""The number of restarts of a server and the waits before them, on a clock of the test's."""

import pytest
from manual_clock import ManualClock

from ensemble_configs.spec.triton_spec import TritonSpec
from serving.supervisor.supervision import RestartBudget
from trireme.base.errors import ServerError


def test_each_further_restart_waits_twice_as_long_up_to_a_minute() -> None:
    budget = RestartBudget(TritonSpec(max_restarts=9, restart_backoff_s=1), ManualClock())
    assert [budget.spend() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_when_all_restarts_are_spent_it_is_given_up() -> None:
    budget = RestartBudget(TritonSpec(max_restarts=2), ManualClock())
    budget.spend(), budget.spend()
    with pytest.raises(ServerError, match=r"given up after 2 restarts in 600 s \(triton.max_restarts\)"):
        budget.spend()


def test_restarts_of_long_ago_are_forgotten() -> None:
    clock = ManualClock()
    budget = RestartBudget(TritonSpec(max_restarts=2, restart_window_s=60, restart_backoff_s=3), clock)
    assert [budget.spend(), budget.spend()] == [0, 3]
    clock.now_s += 59
    with pytest.raises(ServerError):
        budget.spend()
    clock.now_s += 1
    assert budget.spend() == 0
