# SPDX-License-Identifier: Apache-2.0
"""The store of keys on each kind of place: what is kept, who may be first to make the tables, what is refused."""

import contextlib
import hashlib
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from key_places import PLACES, new_place
from manual_clock import UNIX_S, ManualClock

from gateway.access.caller import Caller, Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.database.database import GatewayDatabase
from gateway.database.tables import METADATA, VERSION_TABLE
from trireme.base.errors import RequestError, SpecError, Unavailable
from trireme.base.store_place import PostgresPlace, StorePlace

if TYPE_CHECKING:
    from postgres_here import PostgresServer

FULL = NewKey("ci", "acme", Role.ADMIN, frozenset({"code", "chat"}), 2_000_000_000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(UNIX_S)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    return new_place(request, tmp_path)


@pytest.fixture
def store(place: StorePlace, clock: ManualClock) -> Iterator[KeyStore]:
    with KeyStore(place, clock) as opened:
        yield opened


def kept(place: StorePlace) -> bytes:
    """Return everything that is kept, as bytes."""
    if isinstance(place, Path):
        return b"".join(file.read_bytes() for file in place.parent.iterdir())
    import psycopg  # needs an extra

    with psycopg.connect(place.url) as db:
        return repr(db.execute("select * from gateway_keys").fetchall()).encode()


def test_what_is_made_is_listed_by_another_process(store: KeyStore, place: StorePlace, clock: ManualClock) -> None:
    key, full = store.create(NewKey("alice")), store.create(FULL)
    with KeyStore(place) as other:
        alice, ci = other.records()
    assert (alice.id, alice.name, alice.role, alice.models) == (key.id, "alice", Role.USER, None)
    assert (alice.expires_at_s, alice.revoked_at_s, alice.last_used_at_s) == (None, None, None)
    assert alice.created_at_s == int(clock.now_s)
    assert ci._asdict() | FULL._asdict() == ci._asdict()
    assert ci.caller == Caller(full.id, "acme", Role.ADMIN, frozenset({"code", "chat"}))


def test_of_a_key_only_its_id_and_the_hash_of_its_secret_are_kept(store: KeyStore, place: StorePlace) -> None:
    keys = [store.create(NewKey(f"k{number}")) for number in range(20)]
    store.revoke("k3")
    store.note_used({keys[4].id: 5.0})
    data = kept(place)
    assert all(key.id.encode() in data for key in keys)
    assert not any(key.secret.encode() in data or key.secret[:12].encode() in data for key in keys)
    assert store.records()[0].secret_sha256 == hashlib.sha256(keys[0].secret.encode()).digest()


def test_a_name_is_taken_until_its_key_is_revoked(store: KeyStore) -> None:
    first = store.create(NewKey("alice"))
    with pytest.raises(RequestError, match=r"there is a key 'alice' .* revoke alice --keys") as refused:
        store.create(NewKey("alice"))
    assert refused.value.__suppress_context__
    store.revoke("alice")
    second = store.create(NewKey("alice"))
    assert [record.id for record in store.records()] == [first.id, second.id]
    assert store.revoke("alice").id == second.id


def test_a_key_that_is_revoked_again_stays_revoked_since_the_first_time(store: KeyStore, clock: ManualClock) -> None:
    key = store.create(NewKey("alice"))
    since_s = store.revoke(key.id).revoked_at_s
    clock.now_s += 100
    assert store.revoke(key.id).revoked_at_s == since_s == int(clock.now_s) - 100
    for unknown in ("alice", "1abcdefghijk", "bob"):
        with pytest.raises(RequestError, match=f"there is no key {unknown!r} in .* keys list"):
            store.revoke(unknown)


def test_changes_are_told_once_to_whoever_asks_for_what_came_after(store: KeyStore) -> None:
    keys = [store.create(NewKey(name)) for name in "ab"]
    number, records = store.latest(10)
    assert {record.id for record in records} == {key.id for key in keys}
    assert store.changes_since(number) == (number, [])
    store.revoke("a")
    changes = store.changes_since(number)
    assert [record.id for record in changes.records] == [keys[0].id]
    assert changes.records[0].revoked_at_s is not None
    assert store.changes_since(changes.number).records == []
    store.note_used({keys[1].id: 7.0})
    assert store.changes_since(changes.number).records == []


def test_the_latest_are_those_that_were_used_last(store: KeyStore) -> None:
    keys = {name: store.create(NewKey(name)).id for name in "abcd"}
    store.note_used({keys["b"]: 9.0, keys["c"]: 8.0, "unknown": 1.0})
    store.revoke("c")
    assert [record.name for record in store.latest(1).records] == ["b"]
    assert {record.name for record in store.latest(9).records} == {"a", "b", "d"}


def test_an_earlier_use_does_not_hide_a_later_one(store: KeyStore) -> None:
    key = store.create(NewKey("alice"))
    for at_s in (50.9, 70.0, 60.0):
        store.note_used({key.id: at_s})
    assert store.records()[0].last_used_at_s == 70


def test_keys_are_found_by_their_ids(store: KeyStore) -> None:
    keys = [store.create(NewKey(name)) for name in "ab"]
    assert [record.name for record in store.find([keys[1].id, "1abcdefghijk"])] == ["b"]
    assert store.find([]) == []


def test_the_tables_are_those_that_the_code_uses(place: StorePlace) -> None:
    KeyStore(place).close()
    with contextlib.closing(GatewayDatabase(place, option="--keys")) as database, database.reading() as connection:
        opts = {"version_table": VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=opts), METADATA) == []


OPEN = """
import sys
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from trireme.base.store_place import read_place
sys.stdin.readline()
with KeyStore(read_place(sys.argv[1])) as store:
    store.create(NewKey(sys.argv[2]))
"""


@pytest.mark.slow
def test_processes_that_begin_at_once_make_the_tables_once(place: StorePlace) -> None:
    url = place.url if isinstance(place, PostgresPlace) else str(place)
    processes = [
        subprocess.Popen([sys.executable, "-c", OPEN, url, f"k{n}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    with KeyStore(place) as store:
        assert sorted(record.name for record in store.records()) == ["k0", "k1", "k2", "k3"]


def test_tables_of_a_later_version_are_left_alone(place: StorePlace) -> None:
    KeyStore(place).close()
    with contextlib.closing(GatewayDatabase(place, option="--keys")) as database, database.changing() as connection:
        connection.exec_driver_sql(f"update {VERSION_TABLE} set version_num = '9999'")
    with pytest.raises(SpecError, match=r"have version 9999, which a later Trireme made; .*: update this one"):
        KeyStore(place)


def test_tables_of_the_same_names_are_left_alone(place: StorePlace) -> None:
    KeyStore(place).close()
    with contextlib.closing(GatewayDatabase(place, option="--keys")) as database, database.changing() as connection:
        connection.exec_driver_sql(f"drop table {VERSION_TABLE}")
    with pytest.raises(SpecError, match=r"--keys .* cannot be used: .*gateway_keys.* already exists"):
        KeyStore(place)


class TestFile:
    def test_it_is_for_its_user_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.sqlite"
        with KeyStore(path) as store:
            store.create(NewKey("alice"))
            assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}

    @pytest.mark.parametrize("name", ["a b.sqlite", "50%.sqlite", "a?b#c&d", ":memory:", "file:x"])
    def test_it_may_have_any_name(self, tmp_path: Path, name: str) -> None:
        with KeyStore(tmp_path / name) as store:
            store.create(NewKey("alice"))
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_another_file_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.txt"
        path.write_text("0123456789abcdef\n" * 100)
        with pytest.raises(SpecError, match=r"--keys .*keys.txt cannot be used: file is not a database; name a file"):
            KeyStore(path)
        assert path.read_text() == "0123456789abcdef\n" * 100

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"--keys .* cannot be opened: is a directory; name a file"):
            KeyStore(tmp_path)

    def test_a_file_of_other_tables_keeps_them(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("create table keys (id)")
            db.commit()
        with KeyStore(path) as store:
            store.create(NewKey("alice"))
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("select count(*) from keys").fetchone() == (0,)


@pytest.mark.slow
class TestOnAServer:
    def test_a_wrong_password_is_said_without_it(self, postgres: "PostgresServer") -> None:
        with pytest.raises(SpecError, match=r"--keys .*password authentication failed") as refused:
            KeyStore(PostgresPlace(postgres.url("postgres", password="s3:cr/et"), "--keys"))
        assert "s3" not in str(refused.value)

    def test_a_server_that_is_away_is_said_without_the_password(self, postgres: "PostgresServer") -> None:
        url = postgres.url("postgres", password="s3cret").replace(f":{postgres.port}/", ":1/")
        with pytest.raises(Unavailable, match=r"is away: .*is --keys its address") as refused:
            KeyStore(PostgresPlace(url, "--keys"))
        assert "s3cret" not in str(refused.value)

    def test_a_user_without_rights_is_told_so(self, postgres: "PostgresServer") -> None:
        name = postgres.new_database()
        with postgres.connect(name) as db:
            db.execute("drop role if exists keyless")
            db.execute("create role keyless login password 'abc'")
        try:
            with pytest.raises(SpecError, match=r"--keys .* cannot be used: permission denied"):
                KeyStore(PostgresPlace(postgres.url(name, user="keyless", password="abc"), "--keys"))
        finally:
            with postgres.connect(name) as db:
                db.execute("drop role keyless")

    def test_a_server_that_was_started_again_goes_on(self, postgres: "PostgresServer") -> None:
        with KeyStore(PostgresPlace(postgres.url(postgres.new_database()), "--keys")) as store:
            store.create(NewKey("alice"))
            postgres.stop()
            with pytest.raises(Unavailable, match="is away"):
                store.records()
            postgres.start()
            assert [record.name for record in store.records()] == ["alice"]
