# SPDX-License-Identifier: Apache-2.0
"""The ledger in each kind of database: each request once, exact sums, and tables of an older version."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sqlalchemy.sql.compiler import SQLCompiler

from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.ledger.ledger_row import SECONDS_A_DAY, UNSETTLED, LedgerRow, unsettled
from gateway.ledger.ledger_store import LedgerStore
from gateway.ledger.usage_sum import GROUPS, UsageSum
from trireme.base.store_place import StorePlace

DAY = 20_000


def row(name: str, **fields: object) -> LedgerRow:
    usual = LedgerRow(
        id=name, begun_at_s=DAY * SECONDS_A_DAY + 10.5, key_id="k", tenant="t", endpoint="/v1/completions",
        model="demo", release=3, prompt_tokens=10, completion_tokens=5, ttft_s=0.25, duration_s=1.5,
        cost_nano_usd=7, finish="stop",
    )  # fmt: skip
    return msgspec.structs.replace(usual, **fields)


def total(store: LedgerStore) -> UsageSum:
    [found] = store.usage([], since_day=0, until_day=10**6)
    return found


def test_a_request_counts_once_however_often_it_is_added(store: LedgerStore, place: StorePlace) -> None:
    store.add([row("a"), row("b"), row("a")])
    store.add([row("b"), row("c")])
    with LedgerStore(place) as other:
        other.add([row("a")])
        assert total(other) == UsageSum((), 3, 0, 0, 30, 0, 15, 0.25, 21, 0)
        assert other.spending(["k", "nobody"], since_day=0)[1] == {"k": {DAY: 21}}


def test_the_statement_is_made_once_for_any_number_of_requests(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([row("a"), row("b")])
    compiled = []
    make = SQLCompiler.__init__

    def counted(compiler: SQLCompiler, *args: object, **options: object) -> None:
        compiled.append(args[1])
        make(compiler, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SQLCompiler, "__init__", counted)
    store.add([row(name) for name in ("c", "d", "e")])
    assert compiled == []
    assert total(store).requests == 5


def test_an_unsettled_request_is_settled_by_its_end_and_not_the_other_way_round(store: LedgerStore) -> None:
    begun = LedgerRow(
        id="a", begun_at_s=DAY * SECONDS_A_DAY, key_id="k", tenant="t", endpoint="/v1/completions", model="demo"
    )
    store.add([unsettled(begun)])
    assert (total(store).requests, total(store).unsettled, total(store).failed) == (1, 1, 0)
    store.add([row("a")])
    store.add([unsettled(begun)])
    store.add([unsettled(begun), row("b"), unsettled(msgspec.structs.replace(begun, id="b"))])
    assert total(store) == UsageSum((), 2, 0, 0, 20, 0, 10, 0.25, 14, 0)
    assert store.spending(["k"], since_day=0)[1] == {"k": {DAY: 14}}


def test_sums_are_by_what_is_named_and_in_order(store: LedgerStore) -> None:
    store.add([
        row("a", tenant="x"),
        row("b", tenant="x", finish="timeout", release=None, ttft_s=None, completion_tokens=0),
        row("c", tenant="", begun_at_s=(DAY + 1) * SECONDS_A_DAY - 0.5, cached_tokens=4, ttft_s=0.75),
        row("d", tenant="", begun_at_s=(DAY + 1) * SECONDS_A_DAY, finish=UNSETTLED),
    ])  # fmt: skip
    found = store.usage(["tenant", "day"], since_day=DAY, until_day=DAY + 1)
    assert [(each.group, each.requests, each.failed, each.unsettled) for each in found] == [
        (("", DAY), 1, 0, 0),
        (("", DAY + 1), 1, 0, 1),
        (("x", DAY), 2, 1, 0),
    ]
    assert [each.cached_tokens for each in found] == [4, 0, 0]
    assert [each.mean_ttft_s for each in found] == [0.75, 0.25, 0.25]
    assert len(store.usage(["finish"], since_day=DAY, until_day=DAY)) == 2
    assert store.usage(["model"], since_day=DAY + 2, until_day=DAY + 3) == []
    assert store.usage([], since_day=DAY + 2, until_day=DAY + 3) == []
    assert len(store.usage(list(GROUPS), since_day=0, until_day=10**6)) == 4


def test_many_requests_come_in_one_transaction(store: LedgerStore) -> None:
    rows = [row(f"{number:05}", cost_nano_usd=number, key_id=f"k{number % 3}") for number in range(2500)]
    store.add(rows)
    store.add(rows[::-1])
    assert (total(store).requests, total(store).cost_nano_usd) == (2500, sum(range(2500)))
    spent = store.spending(["k0", "k1", "k2"], since_day=DAY)[1]
    assert sum(days[DAY] for days in spent.values()) == sum(range(2500))
    assert store.spending(["k0"], since_day=DAY + 1)[1] == {}


def test_sums_are_exact_where_a_float_would_round(store: LedgerStore) -> None:
    huge = 2**53 + 1
    store.add([row("a", cost_nano_usd=huge), row("b", cost_nano_usd=1)])
    assert total(store).cost_nano_usd == huge + 1


ALONE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=0.1)
print(db.execute("pragma journal_mode = delete").fetchone()[0])  # for whoever is alone with the file
"""


def test_keys_and_ledger_may_share_a_file_of_which_no_other_process_thinks_it_is_alone(tmp_path: Path) -> None:
    path = tmp_path / "both.sqlite"
    with KeyStore(path) as keys, LedgerStore(path) as ledger:
        key = keys.create(NewKey("alice"))
        ledger.add([row("a", key_id=key.id)])
        asked = subprocess.run([sys.executable, "-c", ALONE, str(path)], capture_output=True, text=True, check=False)
        assert "database is locked" in asked.stderr
        assert [record.id for record in keys.records()] == [key.id]
        assert total(ledger).requests == 1
