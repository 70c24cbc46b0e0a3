# SPDX-License-Identifier: Apache-2.0
"""A rollout ends promoted or rolled back, whatever dies on the way, and no client is sent to what is not there."""

import itertools
from pathlib import Path

import pytest
from rollout_world import Killed, World

from clients.rollout.records.state import OperatorCommand, Phase
from clients.rollout.records.store import Store
from clients.rollout.traffic import share_now


def phases(world: World) -> list[str]:
    with Store(world.path) as store:
        return [event.what for event in store.events(world.number)]


def command(world: World, what: OperatorCommand) -> None:
    with Store(world.path) as store:
        store.queue_command(world.number, what, why="a person said so")


def test_a_candidate_that_passes_is_promoted_share_by_share(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.verdict = "pass"
    assert world.live().phase is Phase.PROMOTED
    assert world.actions == ["add", "try_out", "promote", "settle", "remove"]
    assert phases(world) == ["start", *["running"] * 4, "promoting", "settling", "promoted"]
    assert (world.stable, world.loaded, world.canary) == (2, {2}, None)


def test_a_pass_is_not_enough_before_the_last_share_but_one(tmp_path: Path) -> None:
    world = World(tmp_path, shares=(0.1, 0.5, 1.0))
    world.verdict = "pass"
    world.live(2, requests_per_tick=0)
    assert world.live(20, requests_per_tick=0).step == 0, "no requests, no growth"


def test_without_a_verdict_it_is_held_and_never_promoted(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.live().phase is Phase.HELD
    assert world.live(200).phase is Phase.HELD
    assert world.stable == 1
    command(world, OperatorCommand.PROMOTE)
    assert world.live().phase is Phase.PROMOTED


@pytest.mark.parametrize("at", ["add", "try_out", "promote"])
def test_a_candidate_that_cannot_be_served_is_rolled_back_with_the_reason(tmp_path: Path, at: str) -> None:
    world = World(tmp_path)
    world.verdict, world.fails = "pass", {at: "the engine is corrupt"}
    end = world.live()
    assert end.phase is Phase.ROLLED_BACK
    assert "the engine is corrupt" in end.reason
    assert (world.stable, world.loaded) == (1, {1})


def test_a_failing_candidate_is_rolled_back_once_the_leases_are_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.live(3)
    world.verdict = "fail"
    found = world.live(1)
    assert found.phase is Phase.ROLLING_BACK
    assert share_now(found, world.plan) == 0
    world.live(4)
    assert "remove" not in world.actions, "clients may still go by an older answer"
    world.live(3)
    assert world.loaded == {1}
    assert "so it is" in world.live().reason


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.PAUSED, Phase.HELD])
def test_an_engine_that_was_started_again_is_rolled_back(tmp_path: Path, phase: Phase) -> None:
    world = World(tmp_path)
    world.live(3)
    if phase is Phase.PAUSED:
        command(world, OperatorCommand.PAUSE)
    assert world.live(3 if phase is not Phase.HELD else 60).phase is phase
    world.engine += 1
    end = world.live()
    assert end.phase is Phase.ROLLED_BACK
    assert "started again" in end.reason


def test_a_paused_rollout_keeps_its_share_until_it_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.live(3)
    command(world, OperatorCommand.PAUSE)
    before = world.live(1)
    world.verdict = "pass"
    after = world.live(30)
    assert (after.phase, after.step) == (Phase.PAUSED, before.step)
    command(world, OperatorCommand.RESUME)
    assert world.live().phase is Phase.PROMOTED


@pytest.mark.parametrize("num_ticks", [0, 1, 4, 8])
def test_abort_at_any_time_ends_with_the_stable_release_alone(tmp_path: Path, num_ticks: int) -> None:
    world = World(tmp_path)
    world.live(num_ticks)
    command(world, OperatorCommand.ABORT)
    assert world.live().phase is Phase.ROLLED_BACK
    assert (world.stable, world.loaded, world.canary) == (1, {1}, None)


def test_a_command_that_comes_too_late_is_noted_and_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.verdict = "pass"
    for _ in range(40):
        found = world.live(1)
        if found.phase is Phase.SETTLING:
            break
    command(world, OperatorCommand.ABORT)
    assert world.live().phase is Phase.PROMOTED
    assert "abort refused" in phases(world)


def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.verdict, world.is_away = "pass", True
    assert world.live(5).phase is Phase.STARTING
    world.is_away = False
    world.live(3)
    world.is_away = True
    assert world.live(5).phase is Phase.RUNNING
    world.is_away = False
    assert world.live().phase is Phase.PROMOTED


@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_killed_at_any_moment_it_goes_on_and_leaves_no_half_state(tmp_path: Path, verdict: str) -> None:
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        world = World(folder)
        world.verdict, world.kill_at = verdict, moment  # type: ignore[assignment]
        try:
            world.live()
            break  # it was over before
        except Killed:
            end = world.live()
        assert end.phase is (Phase.PROMOTED if verdict == "pass" else Phase.ROLLED_BACK)
        served = {"pass": 2, "fail": 1}[verdict]
        assert (world.stable, world.loaded, world.canary) == (served, {served}, None)
    assert moment == {"pass": 10, "fail": 6}[verdict]
