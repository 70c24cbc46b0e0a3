# SPDX-License-Identifier: Apache-2.0
"""The records of rollouts outlive the process that wrote them, and events cannot be changed afterwards."""

import sqlite3
from pathlib import Path

import pytest

from clients.rollout.records.state import OperatorCommand, Phase
from clients.rollout.records.store import Store
from trireme.base.errors import RequestError, SpecError


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "rollouts.sqlite"


def test_another_process_finds_a_rollout_where_it_was(path: Path) -> None:
    with Store(path, Clock()) as store:
        begun = store.begin("chat", '{"candidate": 2}', why="half the memory")
        store.enter(begun.id, Phase.RUNNING, why="1 %", step=0, evidence={"lives": {"engine": 7}})
        store.enter(begun.id, Phase.RUNNING, why="5 %", step=1)
        store.enter(begun.id, Phase.PAUSED, why="lunch")
    with Store(path) as store:
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


def test_a_model_has_one_rollout_at_a_time(path: Path) -> None:
    with Store(path) as store:
        first = store.begin("chat", "{}", why="")
        store.begin("other", "{}", why="")
        with pytest.raises(RequestError, match=f"rollout {first.id} of chat is starting"):
            store.begin("chat", "{}", why="")
        store.enter(first.id, Phase.ROLLED_BACK, why="slow")
        assert store.begin("chat", "{}", why="").id not in (first.id,)
        assert [one.phase for one in store.rollouts() if one.ended_at] == [Phase.ROLLED_BACK]


def test_the_log_only_grows(path: Path) -> None:
    with Store(path) as store:
        store.begin("chat", "{}", why="")
    with sqlite3.connect(path) as raw:
        for change in ("update events set why = 'other'", "delete from events"):
            with pytest.raises(sqlite3.IntegrityError, match="events stay"):
                raw.execute(change)
    raw.close()


def test_commands_are_taken_in_their_order(path: Path) -> None:
    with Store(path) as store:
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


def test_a_batch_counts_once(path: Path) -> None:
    with Store(path) as store:
        number = store.begin("chat", "{}", why="").id
        assert store.evidence(number, 0) is None
        for _ in range(3):
            store.add_evidence(number, 0, "one", lambda old: {"n": 1 + int(str((old or {}).get("n", 0)))})
        assert store.add_evidence(number, 0, "two", lambda old: {"n": 1 + int(str((old or {}).get("n", 0)))})
        assert store.evidence(number, 0) == {"n": 2}
        assert store.evidence(number, 1) is None, "another step begins anew"


def test_evidence_that_cannot_be_merged_is_not_counted(path: Path) -> None:
    def fail(_: object) -> dict[str, object]:
        raise ValueError("no")

    with Store(path) as store:
        number = store.begin("chat", "{}", why="").id
        with pytest.raises(ValueError, match="no"):
            store.add_evidence(number, 0, "one", fail)
        assert store.add_evidence(number, 0, "one", lambda _: {"n": 1}), "the batch may come again"


def test_what_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be taken for one " * 40)
    with pytest.raises(SpecError, match="no store of rollouts"):
        Store(tmp_path / "text")
    with Store(tmp_path / "new") as store, pytest.raises(RequestError, match="no rollout 7"):
        store.get(7)
