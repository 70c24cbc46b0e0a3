# SPDX-License-Identifier: Apache-2.0
"""Shadow and A/B rollouts: where requests go, what ends a rollout, and what a person can still decide."""

from pathlib import Path

import pytest
from rollout_world import Killed, World

from clients.rollout.records.held_out import HeldOut
from clients.rollout.records.rollout_plan import Mode, Plan, read_shares
from clients.rollout.records.state import OperatorCommand, Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.routing.split import BASELINE, STABLE, slice_at
from clients.rollout.traffic import mirror_now, slices_now
from trireme.base.errors import RequestError

AB = {
    "mode": Mode.AB,
    "more_releases": ({"release": 3},),
    "shares": (1.0,),
    "arm_shares": (0.5, 0.25, 0.25),
    "gpus_per_seat": (1 / 8, 1 / 8, 1 / 8),
}
SHADOW = {"mode": Mode.SHADOW, "shares": (0.1, 1.0), "max_copies": 3}


def rollout(phase: Phase, step: int = 0) -> Rollout:
    return Rollout(
        id=1, model="chat", plan="", phase=phase, step=step, phase_since=0, reason="", begun_at=0, ended_at=None
    )


def plan(**more: object) -> Plan:
    return Plan(candidate=2, stable=1, release={"release": 2}, salt="s", **more)  # type: ignore[arg-type]


def ask(world: World, command: OperatorCommand, release: int | None = None) -> None:
    with Store(world.path, world.now) as store:
        store.queue_command(world.number, command, why="a person said so", release=release)


def log(world: World) -> list[tuple[str, str]]:
    with Store(world.path, world.now) as store:
        return [(event.what, event.why) for event in store.events(world.number)]


def test_arms_have_their_shares_and_name_their_release() -> None:
    slices = slices_now(rollout(Phase.RUNNING), plan(**AB), "chat_")
    found = [slice_at(slices, place) for place in (0.0, 0.49, 0.5, 0.74, 0.75, 0.999)]
    assert [each.release for each in found] == [1, 1, 2, 2, 3, 3]
    assert {each.model for each in found} == {"chat_tensorrt_llm_bls"}
    assert [each.has_fallback for each in found] == [False, False, True, True, True, True]
    assert slices[-1].upto == 1


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.SETTLING, Phase.ROLLING_BACK, Phase.ENDING])
@pytest.mark.parametrize("more", [AB, SHADOW, {}], ids=["ab", "shadow", "canary"])
def test_before_and_after_all_go_to_the_stable_name(phase: Phase, more: dict[str, object]) -> None:
    found = slices_now(rollout(phase), plan(**more), "")
    assert [(each.arm, each.model, each.upto) for each in found] == [(STABLE, "ensemble", 1.0)]
    assert mirror_now(rollout(phase), plan(**more), "") is None


def test_in_the_shadow_users_get_the_stable_release_and_the_candidate_copies() -> None:
    slices = slices_now(rollout(Phase.RUNNING), plan(**SHADOW), "")
    assert {each.model for each in slices} == {"ensemble"}
    assert [slice_at(slices, place).arm for place in (0.05, 0.5)] == [BASELINE, STABLE]
    mirror = mirror_now(rollout(Phase.RUNNING, step=1), plan(**SHADOW), "")
    assert mirror is not None
    assert (mirror.share, mirror.model, mirror.max_in_flight) == (1.0, "ensemble_canary", 3)


def test_a_second_server_gets_the_candidates_requests() -> None:
    apart = plan(second_server="/b", second_url="localhost:9001")
    slices = slices_now(rollout(Phase.RUNNING, step=2), apart, "")
    assert [(each.model, each.url) for each in slices if each.arm == "candidate"] == [("ensemble", "localhost:9001")]
    assert {each.url for each in slices if each.arm != "candidate"} == {""}


@pytest.mark.parametrize("mode", [{}, SHADOW], ids=["canary", "shadow"])
def test_while_the_first_of_two_servers_is_loaded_anew_all_go_to_the_second(mode: dict[str, object]) -> None:
    apart = plan(**mode, second_server="/b", second_url="b:8001")
    [found] = slices_now(rollout(Phase.PROMOTING), apart, "")
    assert (found.model, found.url, found.upto) == ("ensemble", "b:8001", 1.0)
    assert mirror_now(rollout(Phase.PROMOTING), apart, "") is None


def test_a_release_that_was_loaded_before_is_loaded_after_a_rollback(tmp_path: Path) -> None:
    world = World(tmp_path, loaded_before=(2,))
    world.loaded = {1, 2}
    world.live(2)
    ask(world, OperatorCommand.ABORT)
    assert world.live().phase is Phase.ROLLED_BACK
    assert (world.loaded, world.stable, world.canary) == ({1, 2}, 1, None)


def test_a_server_that_goes_away_while_it_promotes_is_asked_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.live(2)
    ask(world, OperatorCommand.PROMOTE)
    world.is_away = True
    assert world.live(5).phase is Phase.PROMOTING
    world.is_away = False
    assert world.live().phase is Phase.PROMOTED
    assert world.stable == 2


def test_a_shadow_that_passes_ends_with_its_candidate_gone_and_nothing_promoted(tmp_path: Path) -> None:
    world = World(tmp_path, **SHADOW)
    world.verdict = "pass"
    end = world.live()
    assert end.phase is Phase.ENDED
    assert "passed in the shadow" in end.reason
    assert world.actions == ["add", "try_out", "remove"]
    assert (world.stable, world.loaded) == (1, {1})
    assert [why for what, why in log(world) if what == "running"] == [
        "copies of 10 % of the requests to release 2",
        "copies of 100 % of the requests to release 2",
    ]


def test_a_shadow_that_fails_is_rolled_back(tmp_path: Path) -> None:
    world = World(tmp_path, **SHADOW)
    world.live(3)
    world.verdict = "fail"
    assert world.live().phase is Phase.ROLLED_BACK


def test_a_test_of_arms_goes_on_until_a_person_names_the_release(tmp_path: Path) -> None:
    world = World(tmp_path, **AB)
    held = world.live()
    assert held.phase is Phase.HELD
    ask(world, OperatorCommand.PROMOTE)
    assert world.live(2).phase is Phase.HELD
    ask(world, OperatorCommand.PROMOTE, release=7)
    assert world.live(2).phase is Phase.HELD
    refusals = [why for what, why in log(world) if what == "promote refused"]
    assert refusals == [
        "of an A/B test name the release with --release: 2, 3",
        "release 7 is not on trial; there are: 2, 3",
    ]
    ask(world, OperatorCommand.PROMOTE, release=3)
    end = world.live()
    assert (end.phase, end.chosen, world.stable, world.loaded) == (Phase.PROMOTED, 3, 3, {3})


def test_each_arm_answers_the_held_out_prompts(tmp_path: Path) -> None:
    held_out = HeldOut(file="/prompts.jsonl", sha256="", num_prompts=40, num_at_a_time=2)
    world = World(tmp_path, **AB, held_out=held_out)
    world.live(2)
    assert world.actions == ["add", "try_out", "add", "try_out", "replay", "replay"]
    world = World(tmp_path / "failing", **AB, held_out=held_out)
    world.prompts_verdict = "fail"
    assert world.live().phase is Phase.ROLLED_BACK
    assert world.loaded == {1}


def test_a_test_of_arms_that_is_aborted_leaves_the_stable_release_alone(tmp_path: Path) -> None:
    world = World(tmp_path, **AB)
    world.live(3)
    ask(world, OperatorCommand.ABORT)
    assert world.live().phase is Phase.ROLLED_BACK
    assert (world.stable, world.loaded) == (1, {1})


@pytest.mark.parametrize("kill_at", range(14))
@pytest.mark.parametrize("more", [AB, SHADOW], ids=["ab", "shadow"])
def test_killed_at_any_deed_it_ends_with_one_release(tmp_path: Path, kill_at: int, more: dict[str, object]) -> None:
    world = World(tmp_path, **more)
    world.verdict = "pass"
    world.kill_at = kill_at
    for _ in range(3):
        try:
            if world.live().phase is Phase.HELD:
                ask(world, OperatorCommand.PROMOTE, release=3)
            elif world.live(1).phase.is_over:
                break
        except Killed:
            continue
    end = world.live()
    assert end.phase in (Phase.PROMOTED, Phase.ENDED)
    assert world.loaded == {world.stable}
    assert world.stable == (3 if end.phase is Phase.PROMOTED else 1)


def test_arms_that_do_not_get_what_they_were_meant_to_hold_the_test(tmp_path: Path) -> None:
    world = World(tmp_path, **AB)
    world.live(2)
    units = [("release 1", f"a{n}") for n in range(500)] + [("release 2", f"b{n}") for n in range(250)]
    with Store(world.path, world.now) as store:
        store.add_evidence(world.number, 0, "batch", lambda _: {}, assigned=units)
    world.now_s += 10
    held = world.live(1)
    assert held.phase is Phase.HELD
    assert "sample ratio mismatch: release 1 66.7% for 50.0%, release 2 33.3% for 25.0%, release 3 0.0%" in held.reason


def test_shares_of_arms_add_up() -> None:
    assert read_shares("50,25,25", num_arms=3) == (0.5, 0.25, 0.25)
    assert read_shares("", num_arms=4) == (0.25,) * 4
    for text in ("50,50", "50,25,26", "a,b,c", "100,0,0", "nan,50,50"):
        with pytest.raises(RequestError, match="3 percentages that add up to 100"):
            read_shares(text, num_arms=3)
