# SPDX-License-Identifier: Apache-2.0
"""A rollout whose server is on another machine: each outcome counts once, whoever is away when, and one steers."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from remote_machine import LosingControl, Machine, num_counted
from rollout_world import World
from text_bench import wait_until

from clients.rollout.local_server import Control, LocalServer
from clients.rollout.records.rollout_plan import Plan, SplitBy
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.server_split import ServerSplit
from clients.rollout.steering_lease import steering
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import GateSpec
from clients.server_control import ServerControl
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalWriter
from trireme.base.errors import RequestError, Unavailable
from trireme.base.unix_rpc import RpcServer

PLAN = Plan(candidate=2, stable=1, release={"release": 2}, salt="s")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "gpu-3")
    with contextlib.closing(machine):
        yield machine


def test_outcomes_are_counted_once_over_lost_answers_and_restarts_of_everything(
    machine: Machine, tmp_path: Path
) -> None:
    world = World(tmp_path / "controller", split_by=SplitBy.SERVER)
    with Store(world.path) as store:
        store.enter(world.number, Phase.RUNNING, why="a test", step=1)
    control: LosingControl = machine.control(LosingControl)  # type: ignore[assignment]
    num_written, num_lost = 0, 0
    writer: JournalWriter | None = None
    for life in range(6):
        split = ServerSplit(world.path, world.number, [LocalServer(control, None)], Gate(GateSpec()))
        journals = list((machine.folder / "outcomes").glob("chat-*"))
        wait_until(lambda: bool(list((machine.folder / "outcomes").glob("chat-*"))))
        [folder] = journals or (machine.folder / "outcomes").glob("chat-*")
        for part in range(3):
            if writer is None or part == 1:  # its model's process is started anew
                if writer is not None:
                    writer.close()
                writer = JournalWriter(folder, f"ensemble-{life}")
            for number in range(300):
                arm = ("candidate", "baseline")[number % 2]
                writer.write(rollout=world.number, step=1, release=2, outcome=Outcome(arm=arm, ttft_ms=5.0))
                num_written += 1
        if life % 2:
            machine.end()
            machine.begin()
        if life == 3:  # it ends while the server is away, and says so to nobody
            machine.end()
            split.close()
            machine.begin()
        else:
            before = num_counted(world, 1)
            wait_until(lambda before=before: num_counted(world, 1) > before)  # type: ignore[misc]
            split.close()
        num_lost = control.num_lost
    assert num_lost > 3
    split = ServerSplit(world.path, world.number, [LocalServer(machine.control(), None)], Gate(GateSpec()))
    wait_until(lambda: num_counted(world, 1) >= num_written)
    split.close()
    assert num_counted(world, 1) == num_written
    assert writer is not None
    writer.close()


def test_a_rollout_counts_on_from_the_server_s_own_machine(machine: Machine, tmp_path: Path) -> None:
    world = World(tmp_path / "controller", split_by=SplitBy.SERVER)
    with Store(world.path) as store:
        store.enter(world.number, Phase.RUNNING, why="a test", step=1)
    with contextlib.closing(RpcServer(machine.folder / "control.sock", machine.handlers)):
        here = ServerControl(machine.folder / "control.sock")
        writer: JournalWriter | None = None
        controls: list[Control] = [machine.control(), here, machine.control()]
        for number, control in enumerate(controls, 1):
            split = ServerSplit(world.path, world.number, [LocalServer(control, None)], Gate(GateSpec()))
            wait_until(lambda: bool(list((machine.folder / "outcomes").glob("chat-*"))))
            [folder] = (machine.folder / "outcomes").glob("chat-*")
            writer = writer or JournalWriter(folder, "ensemble-1")
            writer.write(rollout=world.number, step=1, release=2, outcome=Outcome(arm="candidate", ttft_ms=5.0))
            wait_until(lambda number=number: num_counted(world, 1) >= number)  # type: ignore[misc]
            split.close()
            assert num_counted(world, 1) == number


def test_the_second_of_two_machines_is_told_of_the_first(machine: Machine) -> None:
    first, second = machine.control(), machine.control()
    other = msgspec.structs.replace(PLAN, salt="another one", candidate=3)
    told: list[str] = []
    with steering(first, PLAN, tell=told.append):
        with (
            pytest.raises(RequestError, match=r"steered by a rollout of release 2 \(process \d+ on .*\), heard of"),
            steering(second, other, tell=told.append),
        ):
            pass
        with pytest.raises(Unavailable, match="steered by a rollout of release 2"):
            second.ask("split")
        with pytest.raises(RequestError, match="the split cannot be read"):  # it is let in
            first.ask("split")
    with steering(second, other, tell=told.append), pytest.raises(Unavailable, match="steered by"):
        first.ask("split")
    assert told == []


def test_a_server_that_is_started_anew_is_steered_again(machine: Machine) -> None:
    first, second = machine.control(), machine.control()
    told: list[str] = []
    with steering(first, PLAN, tell=told.append, renew_s=0.05):
        machine.end()
        wait_until(lambda: bool(told))
        machine.begin()

        def is_refused() -> bool:
            try:
                second.ask("split")
            except Unavailable as exc:
                return exc.facts["reason"] == "steered"
            except RequestError:
                return False
            return False

        wait_until(is_refused)
    assert any("the server is not steered" in text for text in told)


def test_a_rollout_that_begins_while_the_server_is_away_steers_it_later(machine: Machine) -> None:
    machine.end()
    told: list[str] = []
    with steering(machine.control(), PLAN, tell=told.append, renew_s=0.05):
        assert told[0].startswith("waiting for the server")
        threading.Timer(0.2, machine.begin).start()

        def is_refused() -> bool:
            try:
                machine.control().ask("split")
            except Unavailable as exc:
                return exc.facts["reason"] == "steered"
            except RequestError:
                return False
            return False

        wait_until(is_refused)
