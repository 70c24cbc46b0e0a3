# SPDX-License-Identifier: Apache-2.0
"""The records of rollouts outlive the process that wrote them, and events stay as they were; on each kind of place."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clients.rollout.records.open_database import is_there
from clients.rollout.records.state import OperatorCommand, Phase
from clients.rollout.records.store import Store
from clients.rollout.records.store_pool import StorePool
from trireme.base.errors import RequestError, SpecError
from trireme.base.store_place import PostgresPlace, StorePlace

if TYPE_CHECKING:
    from postgres_here import PostgresServer


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    if request.param == "sqlite":
        return tmp_path / "a" / "rollouts.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return PostgresPlace(server.url(server.new_database()))


@contextlib.contextmanager
def raw(place: StorePlace) -> Iterator[Callable[[str], object]]:
    """Yield what does a statement as somebody with a client of the database would."""
    if isinstance(place, Path):
        with contextlib.closing(sqlite3.connect(place)) as file:
            yield file.execute
    else:
        import psycopg  # noqa: PLC0415 - needs an extra

        with psycopg.connect(place.url, autocommit=True) as database:
            yield lambda statement: database.execute(statement.encode())


def one_more(old: Mapping[str, object] | None) -> Mapping[str, object]:
    return {"n": 1 + int(str((old or {}).get("n", 0)))}


def test_another_process_finds_a_rollout_where_it_was(place: StorePlace) -> None:
    with Store(place, Clock()) as store:
        begun = store.begin("chat", '{"candidate": 2}', why="half the memory")
        store.enter(begun.id, Phase.RUNNING, why="1 %", step=0, evidence={"lives": {"engine": 7}})
        store.enter(begun.id, Phase.RUNNING, why="5 %", step=1)
        store.enter(begun.id, Phase.PAUSED, why="lunch")
    with Store(place) as store:
        [found] = store.open_rollouts()
        assert (found.phase, found.step, found.reason, found.ended_at) == (Phase.PAUSED, 1, "lunch", None)
        assert [(event.what, event.why) for event in store.events(found.id)] == [
            ("start", "half the memory"),
            ("running", "1 %"),
            ("running", "5 %"),
            ("paused", "lunch"),
        ]
        assert store.events(found.id)[1].evidence == {"lives": {"engine": 7}}
        assert all(event.who for event in store.events(found.id))


def test_a_model_has_one_rollout_at_a_time(place: StorePlace) -> None:
    with Store(place) as store:
        first = store.begin("chat", "{}", why="")
        store.begin("other", "{}", why="")
        with pytest.raises(RequestError, match=f"rollout {first.id} of chat is starting"):
            store.begin("chat", "{}", why="")
        store.enter(first.id, Phase.ROLLED_BACK, why="slow")
        assert store.begin("chat", "{}", why="").id not in (first.id,)
        assert [one.phase for one in store.rollouts() if one.ended_at] == [Phase.ROLLED_BACK]


def test_the_log_only_grows(place: StorePlace) -> None:
    with Store(place) as store:
        store.begin("chat", "{}", why="")
    with raw(place) as execute:
        for change in ("update events set why = 'other'", "delete from events"):
            with pytest.raises(Exception, match="events stay") as refused:
                execute(change)
            assert type(refused.value).__name__ in ("IntegrityError", "IntegrityConstraintViolation")


def test_commands_are_taken_in_their_order(place: StorePlace) -> None:
    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id
        store.queue_command(number, OperatorCommand.PAUSE, why="lunch")
        store.queue_command(number, OperatorCommand.ABORT, why="fire")
        first = store.next_command(number)
        assert first is not None
        assert (first.command, first.why) == (OperatorCommand.PAUSE, "lunch")
        store.take(first.id)
        second = store.next_command(number)
        assert second is not None
        assert second.command is OperatorCommand.ABORT
        store.take(second.id)
        assert store.next_command(number) is None
        store.enter(number, Phase.ROLLED_BACK, why="")
        with pytest.raises(RequestError, match="rolled_back already"):
            store.queue_command(number, OperatorCommand.PAUSE, why="")


def test_a_batch_counts_once(place: StorePlace) -> None:
    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id
        assert store.evidence(number, 0) is None
        for _ in range(3):
            store.add_evidence(number, 0, "one", one_more)
        assert store.add_evidence(number, 0, "two", one_more)
        assert store.evidence(number, 0) == {"n": 2}
        assert store.evidence(number, 1) is None, "another step begins anew"


def test_evidence_that_cannot_be_merged_is_not_counted(place: StorePlace) -> None:
    def fail(_: object) -> dict[str, object]:
        raise ValueError("no")

    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id
        with pytest.raises(ValueError, match="no"):
            store.add_evidence(number, 0, "one", fail)
        assert store.add_evidence(number, 0, "one", lambda _: {"n": 1}), "the batch may come again"


def test_a_journal_is_counted_from_where_it_was_counted_to(place: StorePlace) -> None:
    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id
        units = [("release 1", "a"), ("release 1", ""), ("release 2", "a")]
        assert store.add_journal(number, "j", {"0": 10}, {0: one_more, 1: one_more}, after={}, assigned=iter(units))
        assert not store.add_journal(number, "j", {"0": 10}, {0: one_more}, after={}), "somebody has counted it"
        assert store.add_journal(number, "j", {"0": 15}, {1: one_more}, after={"0": 10}, assigned=units[:1])
        assert (store.evidence(number, 0), store.evidence(number, 1)) == ({"n": 1}, {"n": 2})
        assert (store.journals(number), store.cursor(number, "j")) == (["j"], {"0": 15})
        assert store.assigned.units_by_arm(number) == {"release 1": 2, "release 2": 1}
        assert store.assigned.num_units_on_several_arms(number) == 1
        assert {(one.arm, one.unit, one.requests) for one in store.assigned.rows(number)} == {
            ("release 1", "a", 2),
            ("release 1", "", 1),
            ("release 2", "a", 1),
        }


def test_a_journal_that_cannot_be_merged_moves_no_cursor(place: StorePlace) -> None:
    def fail(_: object) -> dict[str, object]:
        raise ValueError("no")

    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id
        with pytest.raises(ValueError, match="no"):
            store.add_journal(number, "j", {"0": 10}, {0: one_more, 1: fail}, after={})
        assert (store.cursor(number, "j"), store.evidence(number, 0)) == ({}, None)


def test_threads_that_count_at_once_lose_nothing(place: StorePlace) -> None:
    with Store(place) as store:
        number = store.begin("chat", "{}", why="").id

    def count(thread: int) -> None:
        with Store(place) as own:
            for batch in range(20):
                own.add_evidence(number, 0, f"{thread}.{batch}", one_more, assigned=[("a", "unit"), ("b", str(batch))])
                own.add_evidence(number, 0, f"all.{batch}", one_more)

    threads = [threading.Thread(target=count, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(place) as store:
        assert store.evidence(number, 0) == {"n": 4 * 20 + 20}
        assert store.assigned.units_by_arm(number) == {"a": 1, "b": 20}
        assert {one.requests for one in store.assigned.rows(number)} == {80, 4}


def test_one_driver_at_a_time_has_a_name(place: StorePlace) -> None:
    with Store(place) as first, Store(place) as second:
        assert not second.is_driven()
        with first.driving():
            assert second.is_driven()
            with (
                pytest.raises(RequestError, match=r"another process \(\d+.*\) drives the rollouts of"),
                second.driving(),
            ):
                pass
        assert not second.is_driven()
        with second.driving():
            assert first.is_driven()


def test_threads_take_open_connections_in_turn(place: StorePlace) -> None:
    pool = StorePool(place)
    with pool.one() as first:
        number = first.begin("chat", "{}", why="").id
    with pool.one() as again, pool.one() as second:
        assert again is first
        assert second is not first
        assert second.get(number).model == "chat"
        pool.close()
        assert again.get(number).model == "chat", "it is closed by who uses it"
    assert pool._idle == []


def test_a_look_makes_no_store(place: StorePlace) -> None:
    assert not is_there(place)
    Store(place).close()
    assert is_there(place)


def test_what_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be taken for one " * 40)
    with pytest.raises(SpecError, match="no store of rollouts"):
        Store(tmp_path / "text")
    with Store(tmp_path / "new") as store, pytest.raises(RequestError, match="no rollout 7"):
        store.get(7)
