# SPDX-License-Identifier: Apache-2.0
"""A rollout of two servers on machines of their own: both tell how requests end, each once, and one rollout steers."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from remote_machine import LosingControl, Machine, num_counted
from rollout_world import World
from text_bench import wait_until

from clients.remote_control import RemoteControl
from clients.rollout.local_server import Control, LocalServer
from clients.rollout.records.rollout_plan import Plan, SplitBy
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.server_controls import ServerControls, one_control
from clients.rollout.server_split import ServerSplit
from clients.rollout.steering_lease import steering, steering_all
from clients.rollout.weights.part_of_two import PartOfTwo
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import GateSpec
from clients.server_control import ServerControl
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalPart, JournalWriter
from trireme.base.errors import RequestError, Unavailable
from trireme.base.unix_rpc import RpcServer

PLAN = Plan(candidate=2, stable=1, release={"release": 2}, salt="s")
OTHER = Plan(candidate=3, stable=1, release={"release": 3}, salt="another one")
NAME = "chat-1-01234567-89abcdef"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    with contextlib.ExitStack() as held:
        yield [held.enter_context(contextlib.closing(Machine(tmp_path / name))) for name in ("gpu-3", "gpu-4")]


def world_of(folder: Path) -> World:
    router = {"split_by": SplitBy.ROUTER, "weights": "envoy:r.yaml", "second_server": "https://b:1"}
    world = World(folder, second_url="b:1", shares=(0.5, 1.0), **router)
    with Store(world.path) as store:
        store.enter(world.number, Phase.RUNNING, why="a test", step=0)
    return world


def journal_of(machine: Machine) -> Path:
    wait_until(lambda: bool(list((machine.folder / "outcomes").glob("chat-*"))))
    [folder] = (machine.folder / "outcomes").glob("chat-*")
    return folder


def keeper(world: World, *controls: Control) -> ServerSplit:
    servers = [PartOfTwo(LocalServer(control, None), number) for number, control in enumerate(controls, 1)]
    return ServerSplit(world.path, world.number, servers, Gate(GateSpec()))


@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "remote"])
def test_a_journal_that_a_server_does_not_have_has_no_lines_and_is_not_made(
    machines: list[Machine], is_remote: bool
) -> None:
    machine = machines[0]
    with contextlib.closing(RpcServer(machine.folder / "control.sock", machine.handlers)):
        control = machine.control() if is_remote else ServerControl(machine.folder / "control.sock")
        before = sorted(machine.folder.rglob("*"))
        for cursor in ({}, {"ensemble-1-0a0b.jsonl": 100}):
            assert control.journal(NAME).read(cursor) == JournalPart([], {})
        assert sorted(machine.folder.rglob("*")) == before


def test_outcomes_of_both_are_counted_once_over_lost_answers_and_restarts(
    machines: list[Machine], tmp_path: Path
) -> None:
    world, num_written = world_of(tmp_path / "controller"), 0
    controls: list[LosingControl] = [machine.control(LosingControl) for machine in machines]  # type: ignore[misc]
    writers: list[JournalWriter] = []
    for life in range(4):
        split = keeper(world, *controls)
        folders = [journal_of(machine) for machine in machines]
        writers = writers or [JournalWriter(folder, "ensemble-1") for folder in folders]
        for writer, arm in zip(writers, ("baseline", "candidate"), strict=True):
            for _ in range(200):
                writer.write(rollout=world.number, step=0, release=1, outcome=Outcome(arm=arm, ttft_ms=5.0))
                num_written += 1
        wait_until(lambda: num_counted(world, 0) >= num_written)  # noqa: B023
        if life == 1:  # the second server's process ends; what it had written is there
            machines[1].end()
        split.close()
        if life == 1:
            machines[1].begin()
        with Store(world.path) as store:
            assert {name for name, _ in cursors_in(store, world)} == {folder.name for folder in folders}
            assert all(cursor for _, cursor in cursors_in(store, world)), "the other server's reader changed nothing"
    assert num_counted(world, 0) == num_written == 1600
    assert sum(control.num_lost for control in controls) > 2
    for writer in writers:
        writer.close()


def cursors_in(store: Store, world: World) -> list[tuple[str, dict[str, int]]]:
    return [(name, store.cursor(world.number, name)) for name in store.journals(world.number)]


def test_outcomes_of_a_server_that_is_reached_are_counted_while_the_other_is_away(
    machines: list[Machine], tmp_path: Path
) -> None:
    world = world_of(tmp_path / "controller")
    machines[1].end()
    split = keeper(world, *(machine.control() for machine in machines))
    writer = JournalWriter(journal_of(machines[0]), "ensemble-1")
    writer.write(rollout=world.number, step=0, release=1, outcome=Outcome(arm="baseline", ttft_ms=5.0))
    wait_until(lambda: num_counted(world, 0) == 1)
    machines[1].begin()
    journal_of(machines[1])
    split.close()
    writer.close()


def test_outcomes_of_one_server_are_counted_while_the_other_one_is_silent(
    machines: list[Machine], tmp_path: Path
) -> None:
    world, speaks = world_of(tmp_path / "controller"), threading.Event()

    class SilentControl(RemoteControl):
        def ask(self, operation: str, **question: object) -> Mapping[str, object]:
            if operation == "journal":
                assert speaks.wait(30)
            return super().ask(operation, **question)

    split = keeper(world, machines[0].control(SilentControl), machines[1].control())
    writers = [JournalWriter(journal_of(machine), "ensemble-1") for machine in machines]
    for writer, arm in zip(writers, ("baseline", "candidate"), strict=True):
        writer.write(rollout=world.number, step=0, release=1, outcome=Outcome(arm=arm, ttft_ms=5.0))
    wait_until(lambda: num_counted(world, 0) == 1)
    speaks.set()
    wait_until(lambda: num_counted(world, 0) == 2)
    split.close()
    for writer in writers:
        writer.close()


def test_one_rollout_steers_both_or_none(machines: list[Machine]) -> None:
    ours = [one_control(machine.control()) for machine in machines]
    theirs = [machine.control() for machine in machines]
    told: list[str] = []
    with steering_all(ours, PLAN, tell=told.append):
        for control in theirs:
            with pytest.raises(Unavailable, match="steered by a rollout of release 2"):
                control.ask("split")
    with steering(theirs[1], OTHER, tell=told.append):
        with (
            pytest.raises(RequestError, match="the second server: this server is steered by a rollout of release 3"),
            steering_all(ours, PLAN, tell=told.append),
        ):
            pass
        with pytest.raises(RequestError, match="the split cannot be read"):  # it is given back
            theirs[0].ask("split")
    assert told == []


def test_one_rollout_steers_all_replicas_or_none(machines: list[Machine]) -> None:
    by_name = dict(zip(("gpu-3", "gpu-4"), machines, strict=True))
    ours = ServerControls(lambda: sorted(by_name), lambda name: by_name[name].control())
    theirs = [machine.control() for machine in machines]
    told: list[str] = []
    with steering_all([ours], PLAN, tell=told.append):
        for control in theirs:
            with pytest.raises(Unavailable, match="steered by a rollout of release 2"):
                control.ask("split")
        for own in ours.all().values():
            with pytest.raises(RequestError, match="the split cannot be read"):
                own.ask("split")
    with (
        steering(theirs[1], OTHER, tell=told.append),
        pytest.raises(RequestError, match="the server gpu-4: this server is steered by a rollout of release 3"),
        steering_all([ours], PLAN, tell=told.append),
    ):
        pass
    assert told == []
