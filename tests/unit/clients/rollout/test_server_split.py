# SPDX-License-Identifier: Apache-2.0
"""The split that a server makes follows the phase, and what the server tells is counted once, over restarts of all."""

import multiprocessing
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rollout_world import World
from text_bench import wait_until

from clients.rollout.records.rollout_plan import Plan, SplitBy
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.server_split import ServerSplit
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import GateSpec
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalPart, JournalReader, JournalWriter
from ensemble_configs.split.release_split import ReleaseShare
from trireme.base.errors import Unavailable


class Server:
    """A server that is told splits, and may be away."""

    def __init__(self, journal: Path) -> None:
        self.folder = journal
        self.told: list[tuple[int, tuple[tuple[float, int, str], ...]]] = []
        self.is_away = False

    def split(self, rollout: Rollout, plan: Plan, shares: Sequence[ReleaseShare]) -> str:
        del plan
        if self.is_away:
            raise Unavailable("it is being started", reason="starting")
        self.told.append((rollout.step, tuple((each.upto, each.release, each.arm) for each in shares)))
        return str(self.folder)

    def journal(self, name: str) -> JournalReader:
        return JournalReader(Path(name))


def keeper(world: World, server: Server) -> ServerSplit:
    return ServerSplit(world.path, world.number, [server], Gate(GateSpec()))


def enter(world: World, phase: Phase, *, step: int | None = None) -> None:
    with Store(world.path) as store:
        store.enter(world.number, phase, why="a test", step=step)


def num_counted(world: World, step: int) -> int:
    with Store(world.path) as store:
        evidence = store.evidence(world.number, step)
    found = msgspec.convert(evidence or {}, dict[str, Any])
    return int(sum(found.get("num_requests", (0, 0))))


def wait_for_more(world: World) -> None:
    before = num_counted(world, 1)
    wait_until(lambda: num_counted(world, 1) > before)


CANARY = ((0.05, 2, "candidate"), (0.95, 1, ""), (1.0, 1, "baseline"))


def test_a_server_is_told_each_phase_as_it_begins(tmp_path: Path) -> None:
    world, server = World(tmp_path, split_by=SplitBy.SERVER), Server(tmp_path / "journal")
    split = keeper(world, server)
    try:
        wait_until(lambda: bool(server.told))
        assert server.told[-1] == (0, ((1.0, 1, ""),)), "before it runs, all is the stable release's"
        enter(world, Phase.RUNNING, step=1)
        wait_until(lambda: server.told[-1] == (1, CANARY))
        enter(world, Phase.PROMOTING)
        wait_until(lambda: server.told[-1] == (1, ((1.0, 2, ""),)))
        enter(world, Phase.ROLLING_BACK)
        wait_until(lambda: server.told[-1] == (1, ((1.0, 1, ""),)))
        told = len(server.told)
        wait_until(lambda: len(server.told) > told)  # the end of its lease is put off
    finally:
        split.close()


def test_nobody_is_sent_back_while_the_old_release_goes(tmp_path: Path) -> None:
    world, server = World(tmp_path, split_by=SplitBy.SERVER), Server(tmp_path / "journal")
    enter(world, Phase.PROMOTING)
    split = keeper(world, server)
    try:
        wait_until(lambda: bool(server.told))
        enter(world, Phase.SETTLING)
        time.sleep(1.5)  # longer than a split is told again
        assert {shares for _, shares in server.told} == {((1.0, 2, ""),)}
    finally:
        split.close()


def test_a_server_that_comes_back_is_told_again(tmp_path: Path) -> None:
    world, server = World(tmp_path, split_by=SplitBy.SERVER), Server(tmp_path / "journal")
    server.is_away = True
    enter(world, Phase.RUNNING, step=1)
    split = keeper(world, server)
    try:
        time.sleep(0.3)
        server.is_away = False
        wait_until(lambda: bool(server.told))
    finally:
        split.close()


def test_outcomes_are_counted_for_their_step_and_once_over_restarts(tmp_path: Path) -> None:
    world, server = World(tmp_path, split_by=SplitBy.SERVER), Server(tmp_path / "journal")
    enter(world, Phase.RUNNING, step=1)
    writer = JournalWriter(server.folder, "ensemble-1")
    num_written = 0
    for life in range(4):
        server.told.clear()
        split = keeper(world, server)
        wait_until(lambda: bool(server.told))
        for _ in range(50):
            step = num_written % 2
            writer.write(rollout=world.number, step=step, release=2, outcome=Outcome(arm="candidate", ttft_ms=5.0))
            writer.write(rollout=world.number + 1, step=step, release=2, outcome=Outcome(arm="candidate"))
            num_written += 1
        if life % 2:
            writer.close()
            writer = JournalWriter(server.folder, "ensemble-1")
        split.close()
        assert num_counted(world, 0) + num_counted(world, 1) == num_written
    assert num_counted(world, 0) == num_counted(world, 1) == num_written / 2
    writer.close()


def count_until_killed(path: Path, number: int, journal: Path) -> None:
    split = ServerSplit(path, number, [Server(journal)], Gate(GateSpec()))
    while True:
        split.count()


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.soak)])
def test_a_rollout_that_is_killed_counts_nothing_twice(tmp_path: Path, kills: int) -> None:
    world, server = World(tmp_path, split_by=SplitBy.SERVER), Server(tmp_path / "journal")
    enter(world, Phase.RUNNING, step=1)
    writer = JournalWriter(server.folder, "ensemble-1")
    context, rng = multiprocessing.get_context("spawn"), random.Random(5)
    for _ in range(kills):
        for number in range(300):
            arm = ("candidate", "baseline")[number % 2]
            writer.write(rollout=world.number, step=1, release=2, outcome=Outcome(arm=arm, ttft_ms=5.0))
        victim = context.Process(target=count_until_killed, args=(world.path, world.number, server.folder))
        victim.start()
        wait_for_more(world)
        time.sleep(rng.uniform(0, 0.05))
        victim.kill()
        victim.join()
    server.is_away = True  # what it has written is there
    keeper(world, server).close()
    writer.close()
    assert num_counted(world, 1) == kills * 300


class Away(JournalReader):
    """A journal of a server that is away."""

    def read(self, *_: object, **__: object) -> JournalPart:
        raise Unavailable("nobody is there", reason="unreachable")


def test_a_journal_that_cannot_be_read_holds_up_no_other_and_ends_nothing(tmp_path: Path) -> None:
    class Two(Server):
        def journal(self, name: str) -> JournalReader:
            return Away(Path(name)) if name.endswith("away") else JournalReader(Path(name))

    world, server = World(tmp_path, split_by=SplitBy.SERVER), Two(tmp_path / "journal")
    enter(world, Phase.RUNNING, step=1)
    with Store(world.path) as store:
        store.add_journal(world.number, str(tmp_path / "away"), {}, {}, after={})
    told: list[str] = []
    split = ServerSplit(world.path, world.number, [server], Gate(GateSpec()), tell=told.append)
    wait_until(lambda: bool(server.told))
    writer = JournalWriter(server.folder, "ensemble-1")
    writer.write(rollout=world.number, step=1, release=2, outcome=Outcome(arm="candidate", ttft_ms=5.0))
    wait_until(lambda: num_counted(world, 1) == 1)
    time.sleep(1.1)
    split.close()
    writer.close()
    waiting = [text for text in told if text.startswith("outcomes wait to be counted: ")]
    assert 1 <= len(waiting) <= 2, "once, and once at its end"
