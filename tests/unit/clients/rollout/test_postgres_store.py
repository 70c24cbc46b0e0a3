# SPDX-License-Identifier: Apache-2.0
"""Rollouts in PostgreSQL: whatever ends, nothing is counted twice or lost, and one process drives.

What both kinds of store promise is in `test_rollout_store.py`.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cutting_proxy import Cut, CuttingProxy
from rollout_command import rollout
from rollout_world import World
from text_bench import wait_until

from clients.rollout.choice import driven_store
from clients.rollout.records.file_lock import is_free
from clients.rollout.records.rollout_plan import Plan, SplitBy
from clients.rollout.records.state import OperatorCommand, Phase
from clients.rollout.records.store import Store
from clients.rollout.rollout_api import RolloutApi
from clients.rollout.server_place import ServerPlace
from clients.rollout.server_split import ServerSplit
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import GateSpec
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import JournalReader, JournalWriter
from trireme.base.errors import RequestError, Unavailable
from trireme.base.store_place import PostgresPlace

if TYPE_CHECKING:
    from postgres_here import PostgresServer

pytestmark = pytest.mark.slow

Evidence = Mapping[str, object]
LONG_S = 60.0
NUM_KILLS = 15


@pytest.fixture
def place(postgres: "PostgresServer") -> PostgresPlace:
    return PostgresPlace(postgres.url(postgres.new_database()))


@pytest.fixture
def proxy(postgres: "PostgresServer") -> Iterator[CuttingProxy]:
    with contextlib.closing(CuttingProxy(postgres.port)) as proxy:
        yield proxy


def through(proxy: CuttingProxy, place: PostgresPlace, postgres: "PostgresServer") -> PostgresPlace:
    return PostgresPlace(place.url.replace(f":{postgres.port}/", f":{proxy.port}/"))


def one_more(old: Evidence | None) -> Evidence:
    return {"n": 1 + int(str((old or {}).get("n", 0)))}


BEGIN = """
import sys, time
from clients.rollout.records.store import Store
from trireme.base.store_place import read_place
from trireme.base.errors import RequestError
with Store(read_place(sys.argv[1])) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        store.begin("chat", "{}", why="")
    except RequestError as exc:
        print(exc.message)
    else:
        print("begun")
"""


def test_of_processes_that_begin_at_once_one_begins(place: PostgresPlace) -> None:
    command = [sys.executable, "-c", BEGIN, place.url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]  # their tables too are made at once
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = sorted(process.communicate(timeout=60)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert said[0] == "begun\n"
    assert "of chat is starting; `trireme rollout run` goes on with it" in said[1]


def test_a_server_that_is_killed_in_a_transaction_loses_and_doubles_nothing(
    postgres: "PostgresServer", place: PostgresPlace
) -> None:
    num_merged = 0

    def merge(old: Evidence | None) -> Evidence:
        nonlocal num_merged
        num_merged += 1
        if num_merged == 1:
            postgres.kill()
            threading.Timer(0.5, postgres.start).start()
        return one_more(old)

    with Store(place, patience_s=LONG_S) as store:
        number = store.begin("chat", "{}", why="").id
        store.add_evidence(number, 0, "one", one_more)
        assert store.add_evidence(number, 0, "two", merge, assigned=iter([("a", "unit")]))
        assert (num_merged, store.evidence(number, 0)) == (2, {"n": 2})
        assert not store.add_evidence(number, 0, "two", one_more), "it is known"
        assert store.assigned.units_by_arm(number) == {"a": 1}


@pytest.mark.parametrize("cut", Cut)
def test_a_change_whose_answer_is_lost_is_done_once(
    postgres: "PostgresServer", place: PostgresPlace, proxy: CuttingProxy, cut: Cut
) -> None:
    with Store(through(proxy, place, postgres), patience_s=LONG_S) as store:
        proxy.cut = cut
        number = store.begin("chat", "{}", why="a test").id
        proxy.cut = cut
        store.enter(number, Phase.RUNNING, why="1 %", step=0)
        proxy.cut = cut
        store.queue_command(number, OperatorCommand.PAUSE, why="lunch")
        proxy.cut = cut
        assert store.add_evidence(number, 0, "one", one_more)
        proxy.cut = cut
        assert store.add_journal(number, "j", {"0": 1}, {0: one_more}, after={})
        assert proxy.num_cut == 5
        assert [event.what for event in store.events(number)] == ["start", "running"]
        assert store.evidence(number, 0) == {"n": 2}
        found = store.next_command(number)
        assert found is not None
        store.take(found.id)
        assert store.next_command(number) is None


def test_a_store_that_stays_away_is_told_after_some_time(postgres: "PostgresServer", place: PostgresPlace) -> None:
    with Store(place, patience_s=0.3) as store:
        number = store.begin("chat", "{}", why="").id
        postgres.stop()
        try:
            for use in (lambda: store.get(number), lambda: store.note(number, "a", "b")):
                with pytest.raises(Unavailable, match=r"the store postgresql://postgres@127.* is away"):
                    use()
        finally:
            postgres.start()
        assert store.get(number).model == "chat", "it may be asked again"


def test_who_drives_waits_as_long_as_it_takes_and_says_so(postgres: "PostgresServer", place: PostgresPlace) -> None:
    told: list[str] = []
    with Store(place, patience_s=float("inf"), tell=told.append) as store, store.driving():
        number = store.begin("chat", "{}", why="").id
        postgres.stop()
        threading.Timer(4, postgres.start).start()
        store.enter(number, Phase.RUNNING, why="")
        assert store.get(number).phase is Phase.RUNNING
        assert [line for line in told if not line.startswith("waiting for the store: the store postgresql://")] == []
        assert len(told) == len(set(told)) >= 1  # once for each reason: it dies beneath a connection, and is away
        with Store(place) as other:
            assert other.is_driven(), "the lock was taken again"


def test_a_rollout_goes_on_over_restarts_of_its_database(
    postgres: "PostgresServer", place: PostgresPlace, tmp_path: Path
) -> None:
    class Restless(World):
        def lives(self) -> Mapping[str, object]:
            postgres.kill()
            postgres.start()
            return super().lives()

    worlds = (World(tmp_path), Restless(place))
    logs = []
    for world in worlds:
        world.verdict = "pass"
        assert world.live().phase is Phase.PROMOTED
        with Store(world.path) as store:
            logs.append([(event.what, event.why) for event in store.events(world.number)])
    assert logs[0] == logs[1]
    assert worlds[0].actions == worlds[1].actions


class SplittingServer:
    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def split(self, *_: object) -> str:
        return str(self._journal)

    def journal(self, name: str) -> JournalReader:
        return JournalReader(Path(name))


def test_outcomes_are_counted_once_over_restarts_of_the_database(
    postgres: "PostgresServer", place: PostgresPlace, tmp_path: Path
) -> None:
    world = World(place, split_by=SplitBy.SERVER)
    with Store(place) as store:
        store.enter(world.number, Phase.RUNNING, why="", step=0)
    writer = JournalWriter(tmp_path / "journal", "ensemble-1")
    split = ServerSplit(place, world.number, [SplittingServer(tmp_path / "journal")], Gate(GateSpec()))
    for round_ in range(60):
        for _ in range(10):
            writer.write(rollout=world.number, step=0, release=2, outcome=Outcome(arm="candidate", ttft_ms=5.0))
        time.sleep(0.05)
        if round_ % 15 == 10:
            postgres.kill()
            time.sleep(0.1)
            postgres.start()
    split.close()
    writer.close()
    with Store(place) as store:
        evidence = store.evidence(world.number, 0)
    assert evidence is not None
    requests = evidence["num_requests"]
    assert isinstance(requests, list)
    assert sum(requests) == 600


def test_two_that_count_the_same_journal_count_it_once(place: PostgresPlace) -> None:
    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id
    is_counted: list[bool] = []
    both = threading.Barrier(2)

    def count() -> None:
        with Store(place) as own:
            for part in range(20):
                after = {"0": part} if part else {}
                both.wait()
                is_counted.append(own.add_journal(number, "j", {"0": part + 1}, {0: one_more}, after=after))

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(place) as store:
        assert store.evidence(number, 0) == {"n": 20}
    assert sorted(is_counted) == [False] * 20 + [True] * 20


def test_several_that_count_lose_and_double_nothing_while_the_server_is_killed_at_random(
    postgres: "PostgresServer", place: PostgresPlace
) -> None:
    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id
    is_over, are_open = threading.Event(), threading.Barrier(4)
    num_counted: list[int] = []

    def count(name: str) -> None:
        with Store(place, patience_s=LONG_S) as own:
            are_open.wait(LONG_S)
            num = 0
            while not is_over.is_set():
                after = {"0": num} if num else {}
                num += 1
                assert own.add_evidence(number, 0, f"{name}.{num}", one_more, assigned=[("a", "unit")])
                assert own.add_journal(number, name, {"0": num}, {1: one_more}, after=after)
                if num % 5 == 0:
                    own.close()  # the next one is made while the server starts, too
            num_counted.append(num)

    threads = [threading.Thread(target=count, args=(f"thread {each}",)) for each in range(3)]
    for thread in threads:
        thread.start()
    are_open.wait(LONG_S)
    chance = random.Random(7)
    for _ in range(NUM_KILLS):
        time.sleep(chance.uniform(0.02, 0.3))
        postgres.kill()
        postgres.start()
    is_over.set()
    for thread in threads:
        thread.join(LONG_S)
    assert len(num_counted) == 3, "no thread has failed"
    with Store(place) as store:
        assert store.evidence(number, 0) == store.evidence(number, 1) == {"n": sum(num_counted)}
        assert [one.requests for one in store.assigned.rows(number)] == [sum(num_counted)]


def test_a_transaction_that_the_server_undoes_is_done_again(postgres: "PostgresServer", place: PostgresPlace) -> None:
    with Store(place) as store, postgres.connect(place.url.rpartition("/")[2]) as other:
        number = store.begin("chat", "{}", why="").id
        store.add_evidence(number, 0, "one", one_more)
        other.execute("set deadlock_timeout = '60s'")  # the store's side is undone
        num_merged = 0

        def wait() -> None:
            other.execute("update rollouts set reason = reason")
            other.execute("commit")

        waiting = threading.Thread(target=wait)

        def merge(old: Evidence | None) -> Evidence:
            nonlocal num_merged
            num_merged += 1
            if num_merged == 1:
                other.execute("begin")
                other.execute("select 1 from evidence for update")
                waiting.start()
                wait_until(lambda: is_waiting(postgres))  # else no server would see that each waits for the other
            return one_more(old)

        assert store.add_evidence(number, 0, "two", merge)
        waiting.join()
        assert num_merged >= 2
        assert store.evidence(number, 0) == {"n": 2}


def is_waiting(postgres: "PostgresServer") -> bool:
    with postgres.connect("postgres") as db:
        return db.execute("select 1 from pg_stat_activity where wait_event_type = 'Lock'").fetchone() is not None


def test_of_several_hosts_the_one_that_takes_changes_is_asked(postgres: "PostgresServer", place: PostgresPlace) -> None:
    with Store(place) as store:
        store.begin("chat", "{}", why="")
    several = PostgresPlace(place.url.replace("@127.0.0.1:", "@127.0.0.1:1,127.0.0.1:"))
    with Store(several) as store:
        postgres.kill()
        postgres.start()
        assert [one.model for one in store.rollouts()] == ["chat"]


# One process drives.


def test_a_server_elsewhere_and_a_database_need_no_disk(place: PostgresPlace, tmp_path: Path) -> None:
    folder = tmp_path / "build"
    with driven_store(ServerPlace(folder, "https://gpu-3:8004"), place, tell=print) as store:
        assert store.is_driven()
        assert not folder.exists()
    with driven_store(ServerPlace(folder), place, tell=print):
        assert not is_free(folder / "rollouts.sqlite"), "of a server here others see that it is driven"


DRIVE = """
import sys, time
from clients.rollout.records.store import Store
from trireme.base.store_place import read_place
with Store(read_place(sys.argv[1])) as store, store.driving():
    print("drives", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def driver(place: PostgresPlace) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", DRIVE, place.url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "drives\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_lock_goes_with_its_process(place: PostgresPlace) -> None:
    with driver(place) as process, Store(place) as store:
        message = rf"another process \({process.pid} on .+\) drives the rollouts of postgresql://postgres@127"
        with pytest.raises(RequestError, match=message), store.driving():
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with store.driving():
            assert store.is_driven()


def test_a_driver_that_lost_its_connection_stops_where_another_one_drives(
    postgres: "PostgresServer", place: PostgresPlace, proxy: CuttingProxy
) -> None:
    with Store(through(proxy, place, postgres), patience_s=LONG_S) as first, first.driving():
        number = first.begin("chat", "{}", why="").id
        proxy.cut_all()
        with Store(place) as second, taken(second):
            with pytest.raises(RequestError, match=rf"another process \({os.getpid()} on"):
                first.enter(number, Phase.RUNNING, why="")
            assert second.get(number).phase is Phase.STARTING


@contextlib.contextmanager
def taken(store: Store) -> Iterator[None]:
    """Hold the lock once the lost connection of another one has been noticed."""
    with contextlib.ExitStack() as held:
        wait_until(lambda: not store.is_driven())
        held.enter_context(store.driving())
        yield


def test_a_driver_ends_its_own_connection_that_the_server_has_not_missed(
    postgres: "PostgresServer", place: PostgresPlace, proxy: CuttingProxy
) -> None:
    proxy.is_leaving_sessions = True
    with Store(through(proxy, place, postgres), patience_s=LONG_S) as store, store.driving():
        number = store.begin("chat", "{}", why="").id
        proxy.cut_all()
        with Store(place) as other:
            assert other.is_driven()
        store.enter(number, Phase.RUNNING, why="")
        assert store.get(number).phase is Phase.RUNNING


def test_stores_in_schemas_of_one_database_know_nothing_of_each_other(
    postgres: "PostgresServer", place: PostgresPlace
) -> None:
    with postgres.connect(place.url.rpartition("/")[2]) as db:
        db.execute("create schema other")
    other = PostgresPlace(f"{place.url}?options=-csearch_path%3Dother")
    with Store(place) as store, Store(other) as apart, store.driving(), apart.driving():
        store.begin("chat", "{}", why="")
        assert apart.rollouts() == []
        apart.begin("chat", "{}", why="")


# The commands, and what asks a store for others.


def test_the_commands_take_a_url(place: PostgresPlace, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout("status", "--store", place.url) == 2
    assert "there is no store of rollouts postgresql://postgres@127.0.0.1" in one_line(capsys)
    with Store(place) as store:
        store.begin("chat", PLAN.text(), why="a test")
    assert rollout("status", "--store", place.url) == 0
    assert "rollout 1 of chat: starting" in one_line(capsys)
    assert rollout("pause", "--store", place.url) == 2
    assert rollout("abort", "--store", place.url, "--why", "enough") == 0
    assert "nobody drives it now" in one_line(capsys)
    assert rollout("history", "--store", place.url) == 0
    assert "start: a test" in one_line(capsys)


PLAN = Plan(candidate=2, stable=1, release={"release": 2}, salt="s", shares=(0.05, 1.0))


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    return " ".join((said.out + said.err).split())


def test_clients_are_not_told_where_the_store_is(postgres: "PostgresServer", place: PostgresPlace) -> None:
    with Store(place) as store:
        number = store.begin("chat", PLAN.text(), why="").id
    gate = Gate(GateSpec())
    with contextlib.closing(RolloutApi(place, number, "", gate.merge, host="127.0.0.1", port=0)) as api:
        assert asked(f"{api.url}/split")[0] == 200
        postgres.stop()
        try:
            assert asked(f"{api.url}/split") == (
                503,
                '{"error":"the store of this rollout cannot be used now; ask again later"}',
            )
        finally:
            postgres.start()
        assert asked(f"{api.url}/split")[0] == 200
        with Store(place) as store:
            outcome = {"rollout": number, "step": 0, "batch": "nul \0", "outcomes": []}
            status, said = asked(f"{api.url}/outcomes", json.dumps(outcome).encode())
            assert (status, "NUL" in said) == (400, True), said
            store.enter(number, Phase.ROLLED_BACK, why="")


def asked(url: str, body: bytes | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=LONG_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()
