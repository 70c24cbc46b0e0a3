# SPDX-License-Identifier: Apache-2.0
"""A rollout with held-out prompts asks them before the candidate's first request, and ends by them where it must."""

import itertools
from pathlib import Path

import pytest
from rollout_world import Killed, World

from clients.rollout.records.held_out import HeldOut
from clients.rollout.records.state import Event, OperatorCommand, Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.traffic import share_now

HELD_OUT = HeldOut(file="/prompts.jsonl", sha256="0", num_prompts=40, num_at_a_time=2)


def world_of(folder: Path) -> World:
    return World(folder, held_out=HELD_OUT)


def events(world: World) -> list[Event]:
    with Store(world.path) as store:
        return store.events(world.number)


def ends_without_a_request(world: World, why: str) -> Rollout:
    """Assert that the rollout is rolled back, and that no client ever heard of a share."""
    for _ in range(60):
        found = world.live(1)
        assert share_now(found, world.plan) == 0
        if found.phase.is_over:
            break
    assert found.phase is Phase.ROLLED_BACK
    assert why in found.reason
    assert "running" not in [event.what for event in events(world)]
    assert (world.stable, world.loaded, world.canary) == (1, {1}, None)
    return found


def test_the_prompts_are_asked_before_the_first_request_and_their_judgement_is_in_the_log(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.verdict = "pass"
    assert world.live().phase is Phase.PROMOTED
    assert world.actions == ["add", "try_out", "replay", "promote", "settle", "remove"]
    found = events(world)
    assert [event.what for event in found[:3]] == ["start", "replayed", "running"]
    assert "1.000 on average, the stable release 1.000, 40 of 40 compared" in found[1].why
    assert isinstance(found[1].evidence, dict)
    assert (found[1].evidence["n"], found[1].evidence["held_out"]["num_compared"]) == (2, 40)


def test_a_candidate_that_fails_by_the_prompts_is_rolled_back_before_any_request(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.verdict, world.prompts_verdict = "pass", "fail"
    ends_without_a_request(world, "garbage; held-out prompts: 1.000 on average")
    found = next(event for event in events(world) if event.what == "rolling_back")
    assert isinstance(found.evidence, dict)
    assert found.evidence["held_out"]["num_compared"] == 20, "it need not hear the rest"


def test_prompts_that_cannot_be_compared_let_no_candidate_through(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.verdict, world.num_compared = "pass", 18
    ends_without_a_request(world, "only 18 of 40 held-out prompts could be compared")


def test_a_file_that_has_changed_ends_the_rollout_with_the_reason(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.verdict, world.fails = "pass", {"replay": "/prompts.jsonl has changed"}
    ends_without_a_request(world, "the held-out prompts could not be replayed: /prompts.jsonl has changed")


def test_an_engine_that_dies_of_a_prompt_is_the_reason_and_not_its_scores(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.verdict, world.prompts_verdict = "pass", "fail"

    def die() -> None:
        world.engine += 1

    world.during_replay = die
    ends_without_a_request(world, "started again while it answered the held-out prompts")


def test_abort_is_heard_while_the_prompts_are_asked(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.verdict = "pass"

    def abort() -> None:
        with Store(world.path) as store:
            store.queue_command(world.number, OperatorCommand.ABORT, why="enough")

    world.during_replay = abort
    ends_without_a_request(world, "enough")
    assert "replayed" not in [event.what for event in events(world)]


def test_a_server_that_goes_away_meanwhile_is_waited_for_and_all_prompts_are_asked_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.verdict = "pass"

    def leave() -> None:
        world.is_away, world.during_replay = True, lambda: None

    world.during_replay = leave
    assert world.live(5).phase is Phase.STARTING
    world.is_away = False
    assert world.live().phase is Phase.PROMOTED
    assert world.actions.count("replay") == 2
    replayed = [event for event in events(world) if event.what == "replayed"]
    assert len(replayed) == 1
    assert "40 of 40 compared" in replayed[0].why


@pytest.mark.parametrize("prompts_verdict", ["no data", "fail"])
def test_killed_at_any_moment_it_goes_on_and_counts_nothing_half(tmp_path: Path, prompts_verdict: str) -> None:
    for moment in itertools.count():
        world = world_of(tmp_path / str(moment))
        world.verdict, world.kill_at = "pass", moment
        world.prompts_verdict = prompts_verdict  # type: ignore[assignment]
        try:
            world.live()
            break  # it was over before
        except Killed:
            end = world.live()
        is_promoted = prompts_verdict == "no data"
        served = 2 if is_promoted else 1
        assert end.phase is (Phase.PROMOTED if is_promoted else Phase.ROLLED_BACK)
        assert (world.stable, world.loaded, world.canary) == (served, {served}, None)
        found = events(world)
        judged = [event for event in found if event.what == ("replayed" if is_promoted else "rolling_back")]
        assert len(judged) == 1
        assert isinstance(judged[0].evidence, dict)
        assert judged[0].evidence["held_out"]["num_compared"] == (40 if is_promoted else 20)
    assert moment == {"no data": 13, "fail": 8}[prompts_verdict]
