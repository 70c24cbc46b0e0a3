# SPDX-License-Identifier: Apache-2.0
"""Behind a router each of two servers marks as many of its requests as the other has, and both tell how they end."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from rollout_world import World
from text_bench import wait_until

from clients.rollout.records.rollout_plan import Plan, SplitBy
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.server_split import ServerSplit
from clients.rollout.traffic import release_shares_now, slices_now
from clients.rollout.weights.part_of_two import PartOfTwo, part_of
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import GateSpec
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalReader, JournalWriter
from ensemble_configs.split.release_split import ReleaseShare
from trireme.base.errors import Unavailable


class Server:
    """A server that is told splits, and may be away."""

    def __init__(self, journal: Path) -> None:
        self.folder = journal
        self.told: list[tuple[tuple[float, int, str], ...]] = []
        self.is_away = False

    def split(self, rollout: Rollout, plan: Plan, shares: Sequence[ReleaseShare]) -> str:
        del rollout, plan
        if self.is_away:
            raise Unavailable("it is being started", reason="starting")
        self.told.append(tuple((round(each.upto, 6), each.release, each.arm) for each in shares))
        return self.folder.name

    def journal(self, name: str) -> JournalReader:
        return JournalReader(self.folder.parent / name)


def enter(world: World, phase: Phase, step: int) -> Rollout:
    with Store(world.path) as store:
        return store.enter(world.number, phase, why="a test", step=step)


def world_of(tmp_path: Path) -> World:
    router = {"split_by": SplitBy.ROUTER, "weights": "envoy:r.yaml"}
    return World(tmp_path, second_server="/b", second_url="b:1", shares=(0.05, 0.5, 0.8, 1.0), **router)


@pytest.mark.parametrize(
    ("step", "stable", "candidate"),
    [
        (0, ((0.947368, 1, ""), (1.0, 1, "baseline")), ((1.0, 2, "candidate"),)),  # 5 of 95, and all of 5
        (1, ((1.0, 1, "baseline"),), ((1.0, 2, "candidate"),)),
        (2, ((1.0, 1, "baseline"),), ((0.25, 2, "candidate"), (1.0, 2, ""))),  # all of 20, and 20 of 80
        (3, ((1.0, 1, ""),), ((1.0, 2, ""),)),
    ],
    ids=["5 %", "50 %", "80 %", "all"],
)
def test_each_server_marks_as_many_as_are_compared(
    tmp_path: Path, step: int, stable: tuple[object, ...], candidate: tuple[object, ...]
) -> None:
    world = world_of(tmp_path)
    shares = release_shares_now(enter(world, Phase.RUNNING, step), world.plan)
    found = [
        tuple((round(each.upto, 6), each.release, each.arm) for each in part_of(shares, release)) for release in (1, 2)
    ]
    assert found == [stable, candidate]


def test_clients_that_ask_are_sent_to_the_router_like_all_others(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    [only] = slices_now(enter(world, Phase.RUNNING, 1), world.plan, "")
    assert (only.model, only.url, only.is_compared) == ("ensemble", "", False)


def test_both_servers_are_told_and_counted_whoever_is_away(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    first, second = Server(tmp_path / "a" / "chat-1"), Server(tmp_path / "b" / "chat-2")
    parts = [PartOfTwo(first, 1), PartOfTwo(second, 2)]
    writers = [JournalWriter(server.folder, "ensemble-1") for server in (first, second)]
    first.is_away = True
    for life in range(2):
        split = ServerSplit(world.path, world.number, parts, Gate(GateSpec()))
        try:
            if life == 0:
                enter(world, Phase.STARTING, 0)
                assert (first.told, second.told) == ([], []), "the second has not loaded its release yet"
                enter(world, Phase.RUNNING, 0)
                wait_until(lambda: bool(second.told))
                first.is_away = False
            wait_until(lambda: bool(first.told))
            for writer, release, arm in zip(writers, (1, 2), ("baseline", "candidate"), strict=True):
                for _ in range(20):
                    writer.write(rollout=world.number, step=0, release=release, outcome=Outcome(arm=arm, ttft_ms=5.0))
        finally:
            split.close()
    enter(world, Phase.PROMOTING, 3)
    num_told = len(first.told)
    split = ServerSplit(world.path, world.number, parts, Gate(GateSpec()))
    split.close()
    assert len(first.told) == num_told, "it is being loaded anew"
    with Store(world.path) as store:
        evidence = store.evidence(world.number, 0)
    assert evidence is not None
    assert evidence["num_requests"] == [40, 40]
    for writer in writers:
        writer.close()
