# SPDX-License-Identifier: Apache-2.0
"""The retention of the ledger in each kind of database: old requests go, their sums are exact, whoever is killed."""

import functools
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import func, select

from ensemble_configs.spec.gateway_spec import LedgerRetentionSpec
from gateway import gateway_command
from gateway.database.tables import DAY_SUMS, JOURNAL_PLACES, REQUESTS, SPENDING
from gateway.ledger import retention
from gateway.ledger.day_sums import is_our_turn
from gateway.ledger.journal_loader import JournalLoader
from gateway.ledger.ledger_row import SECONDS_A_DAY, UNSETTLED, LedgerRow
from gateway.ledger.ledger_store import LedgerStore
from gateway.ledger.request_journal import RequestJournal
from gateway.ledger.retention import Retention
from gateway.ledger.usage_sum import GROUPS, UsageSum
from trireme.base.errors import Unavailable
from trireme.base.store_place import PostgresPlace, StorePlace

DAY = 20_000
WAIT_S = 60.0


def mixed_rows(num_rows: int, *, days: int = 4) -> list[LedgerRow]:
    """Return requests of all kinds, the first of them the oldest."""
    return [
        LedgerRow(
            id=f"r{number:05}",
            begun_at_s=(DAY + number * days // num_rows) * SECONDS_A_DAY + number,
            key_id=f"k{number % 3}",
            tenant=("acme", "")[number % 2],
            endpoint="/v1/chat/completions",
            model=("large", "small")[number % 5 == 0],
            answered_by=("", "elsewhere")[number % 11 == 0],
            tier=("", "auto")[number % 13 == 0],
            release=None if number % 7 == 0 else number % 2 + 1,
            prompt_tokens=number,
            completion_tokens=2 * number,
            cached_tokens=None if number % 3 else number // 2,
            ttft_s=None if number % 4 == 0 else number / 64,
            duration_s=1.0,
            cost_nano_usd=2**53 + number,
            saved_nano_usd=number % 5,
            finish=("stop", "length", "timeout", UNSETTLED)[number % 4],
        )
        for number in range(num_rows)
    ]


def all_sums(store: LedgerStore) -> list[list[UsageSum]]:
    """Return the sums by each group alone, by some together, and by all; TTFT without what a float rounds."""
    ways = [(), *((name,) for name in GROUPS), ("day", "tenant", "model"), GROUPS]
    return [
        [
            each._replace(mean_ttft_s=None if each.mean_ttft_s is None else round(each.mean_ttft_s, 9))
            for each in sorted(store.usage(way, since_day=0, until_day=10**6), key=lambda each: str(each.group))
        ]
        for way in ways
    ]


def num_rows_of(store: LedgerStore) -> int:
    with store._database.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(REQUESTS)).scalar_one())


def retention_of(store: LedgerStore, *, now_day: int, keep_days: int = 1, **options: float | int | bool) -> Retention:
    rules = LedgerRetentionSpec(keep_days=keep_days, day_sums=bool(options.pop("day_sums", True)))
    options = {"pause_s": 0.0, "max_rows": 7, **options}
    return Retention(store, rules, now_s=lambda: now_day * SECONDS_A_DAY + 5.0, **options)  # type: ignore[arg-type]


def test_usage_of_old_days_is_the_same_by_whatever_it_is_summed_up(store: LedgerStore) -> None:
    store.add(mixed_rows(200))
    before = all_sums(store)
    assert retention_of(store, now_day=DAY + 3, keep_days=2).delete_old() == 50
    assert num_rows_of(store) == 150
    assert all_sums(store) == before
    assert retention_of(store, now_day=DAY + 3, keep_days=2).delete_old() == 0
    assert retention_of(store, now_day=DAY + 30).delete_old() == 150
    assert num_rows_of(store) == 0
    assert all_sums(store) == before
    [old] = store.usage([], since_day=DAY, until_day=DAY)
    assert (old.requests, old.prompt_tokens) == (50, sum(range(50)))


def test_requests_of_a_day_that_was_summed_up_are_added_to_its_sums(store: LedgerStore) -> None:
    rows = mixed_rows(60)
    store.add(rows[:20])
    retention_of(store, now_day=DAY + 30).delete_old()
    store.add(rows[20:])  # their database was away
    together = all_sums(store)
    retention_of(store, now_day=DAY + 30).delete_old()
    assert all_sums(store) == together
    assert together[0][0].requests == 60


def test_without_day_sums_nothing_of_old_requests_stays(store: LedgerStore) -> None:
    store.add(mixed_rows(40))
    retention_of(store, now_day=DAY + 3, keep_days=1, day_sums=False).delete_old()
    [found] = store.usage([], since_day=0, until_day=10**6)
    assert found.requests == num_rows_of(store) == 20
    assert store.usage(["day"], since_day=DAY, until_day=DAY + 1) == []


def test_budgets_keep_what_they_look_at(store: LedgerStore) -> None:
    store.add(mixed_rows(40))
    spent = store.spending(["k0"], since_day=DAY)[1]
    retention_of(store, now_day=DAY + 60).delete_old()
    assert store.spending(["k0"], since_day=DAY)[1] == spent
    retention_of(store, now_day=DAY + 200).delete_old()
    with store._database.reading() as connection:
        assert connection.execute(select(SPENDING)).all() == []


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from gateway.ledger import day_sums
from gateway.ledger.ledger_store import LedgerStore
from test_retention import DAY, retention_of
from trireme.base.store_place import read_place

kill_at, turns = sys.argv[2], 0
add = day_sums._add

def killed(*args):
    global turns
    turns += 1
    if turns == 3 and kill_at == "between":
        os.kill(os.getpid(), signal.SIGKILL)
    add(*args)
    if turns == 3:  # before the transaction is told to end
        os.kill(os.getpid(), signal.SIGKILL)

day_sums._add = killed
with LedgerStore(read_place(sys.argv[1], option="--ledger")) as store:
    retention_of(store, now_day=DAY + 30).delete_old()
"""


@pytest.mark.parametrize("kill_at", ["between", "end"])
def test_a_process_that_is_killed_in_the_middle_has_counted_each_request_once(
    store: LedgerStore, place: StorePlace, kill_at: str
) -> None:
    store.add(mixed_rows(60))
    before = all_sums(store)
    where = place.url if isinstance(place, PostgresPlace) else str(place)
    paths = [str(Path(__file__).parent), *sys.path]
    killed = subprocess.run([sys.executable, "-c", KILLED, where, kill_at, *paths], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert num_rows_of(store) == 60 - 2 * 7
    assert all_sums(store) == before
    assert retention_of(store, now_day=DAY + 30).delete_old() == 60 - 2 * 7
    assert all_sums(store) == before


def test_several_delete_while_others_write_and_read(store: LedgerStore, place: StorePlace, tmp_path: Path) -> None:
    rows = mixed_rows(600)
    store.add(rows[:300])
    failures: list[BaseException] = []
    is_written = threading.Event()

    def write() -> None:
        with LedgerStore(place) as own:
            for begin in range(300, 600, 20):
                own.add(rows[begin : begin + 20])
        is_written.set()

    def delete() -> None:
        with LedgerStore(place) as own:
            deleting = retention_of(own, now_day=DAY + 30, max_rows=20)
            while not is_written.is_set() or num_rows_of(own):
                deleting.delete_old()

    def read() -> None:
        with LedgerStore(place) as own:
            while not is_written.is_set():
                [found] = own.usage([], since_day=0, until_day=10**6)
                assert found.requests >= 300
                assert found.requests % 20 == 0

    def run(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as exc:
            failures.append(exc)
            is_written.set()

    threads = [threading.Thread(target=run, args=(work,)) for work in (write, delete, delete, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failures == []
    assert num_rows_of(store) == 0
    with LedgerStore(tmp_path / "undisturbed.sqlite") as undisturbed:
        undisturbed.add(rows)
        assert all_sums(undisturbed) == all_sums(store)


def test_of_several_gateways_one_deletes_at_a_time(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("postgres")
    place = PostgresPlace(server.url(server.new_database()), "--ledger")
    with LedgerStore(place) as first, LedgerStore(place) as second:
        first.add(mixed_rows(10))
        with first._database.changing() as connection:
            assert is_our_turn(connection)
            assert second.delete_before(DAY + 30, keeps_sums=True, max_rows=5) == 0
            second.add(mixed_rows(12)[10:])  # nobody waits who writes
        assert second.delete_before(DAY + 30, keeps_sums=True, max_rows=5) == 5


def test_a_journal_that_is_read_again_after_its_requests_were_deleted_brings_none_again(
    store: LedgerStore, tmp_path: Path
) -> None:
    journal = RequestJournal(tmp_path / "journal")
    old, running, *_ = mixed_rows(20)
    for row in mixed_rows(20)[2:]:
        journal.begin(msgspec.structs.replace(row, finish="")).end(row)
    begun = journal.begin(msgspec.structs.replace(running, finish=""))
    first = JournalLoader(tmp_path / "journal", store)
    first.load()
    first.close()  # as if its process were killed
    assert retention_of(store, now_day=DAY + 30).delete_old() == 18
    begun.end(running)
    journal.begin(msgspec.structs.replace(old, finish="")).end(old)
    JournalLoader(tmp_path / "journal", store).load()
    assert num_rows_of(store) == 2
    [found] = store.usage([], since_day=0, until_day=10**6)
    assert (found.requests, found.prompt_tokens) == (20, sum(range(20)))


def test_a_file_of_a_journal_that_is_gone_leaves_nothing_in_the_database(store: LedgerStore, tmp_path: Path) -> None:
    journal = RequestJournal(tmp_path / "journal")
    [row] = mixed_rows(1)
    journal.begin(msgspec.structs.replace(row, finish="")).end(row)
    loader = JournalLoader(tmp_path / "journal", store)
    loader.load()
    with store._database.reading() as connection:
        assert len(connection.execute(select(JOURNAL_PLACES)).all()) == 1
    journal.close()
    loader.load()
    with store._database.reading() as connection:
        assert connection.execute(select(JOURNAL_PLACES)).all() == []
        assert connection.execute(select(DAY_SUMS)).all() == []


def test_a_gateway_with_a_retention_deletes_beside_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_command, "Retention", functools.partial(Retention, first_s=0.01))
    path = tmp_path / "ledger.sqlite"
    with LedgerStore(path) as store:
        store.add(mixed_rows(30))
        caplog.set_level(logging.INFO, logger="trireme.gateway")
        with gateway_command._ledger(str(path), tmp_path / "journal", LedgerRetentionSpec(keep_days=30)):
            deadline_s = time.monotonic() + WAIT_S
            while num_rows_of(store) and time.monotonic() < deadline_s:
                time.sleep(0.02)
        assert num_rows_of(store) == 0
        assert store.usage([], since_day=0, until_day=10**6)[0].requests == 30
        store.add(mixed_rows(30)[:1])
        with gateway_command._ledger(str(path), tmp_path / "journal", None):
            assert "ledger retention" not in {thread.name for thread in threading.enumerate()}
    assert "30 requests of before " in caplog.text
    assert "the sums of their days stay" in caplog.text


class AwayStore:
    """A ledger that is away for the first times."""

    def __init__(self) -> None:
        self.num_asked = 0

    def delete_before(self, _day: int, **_options: object) -> int:
        self.num_asked += 1
        raise Unavailable("the database is away", reason="store_away")


def test_a_ledger_that_is_away_is_told_once_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "_EVERY_S", 0.01)
    away = AwayStore()
    with Retention(away, LedgerRetentionSpec(keep_days=1), first_s=0.0):  # type: ignore[arg-type]
        deadline_s = time.monotonic() + WAIT_S
        while away.num_asked < 3 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert away.num_asked >= 3
    assert caplog.text.count("old requests of the ledger cannot be deleted: the database is away") == 1
