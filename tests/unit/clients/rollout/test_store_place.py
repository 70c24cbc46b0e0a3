# SPDX-License-Identifier: Apache-2.0
"""The place that `--store` names: what is wrong with it is told with the next step, and never with a password."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clients.rollout.records.store import Store
from trireme.base.errors import RequestError, ServingError, SpecError, Unavailable
from trireme.base.store_place import PostgresPlace, read_place

if TYPE_CHECKING:
    from postgres_here import PostgresServer

SECRET = "s3:cr/et"


def test_a_path_is_a_file_and_a_url_a_database() -> None:
    assert read_place("build/chat/rollouts.sqlite") == Path("build/chat/rollouts.sqlite")
    for scheme in ("postgresql", "postgres"):
        assert read_place(f"{scheme}://me@db/chat") == PostgresPlace(f"{scheme}://me@db/chat")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cret@db/chat",
        "https://me:s3cret@db",
        "postgresql://me:s3cret@[db/chat",
        "postgresql://me:s3/cret@db/chat",
        "postgresql://me:1/s3cret@db/chat",
        "postgresql://me:s3cret@s3cret@db/chat",
        "postgresql://me:1?s3cret@db/chat",
        "postgresql://me:1?a=s3cret@db/chat",
        "postgresql://me:s3#cret@db/chat",
    ],
)
def test_another_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(RequestError, match="postgresql://USER@HOST:PORT/DATABASE") as refused:
        read_place(url)
    assert not any(part in str(refused.value) for part in ("s3", "cret"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me@db:5432/chat", "postgresql://me@db:5432/chat"),
        ("postgresql://me:s3%3Acr%2Fet@db:5432/chat", "postgresql://me@db:5432/chat"),
        ("postgresql://db/chat?user=me&password=s3:cr/et&sslmode=require", "postgresql://db/chat?user=me&sslmode=require"),
        ("postgresql://me:s3@a:1,b:2/chat?target_session_attrs=any", "postgresql://me@a:1,b:2/chat?target_session_attrs=any"),
        ("postgresql://me:s3@[::1]:5432/chat", "postgresql://me@[::1]:5432/chat"),
        ("postgresql:///chat?host=/run/postgresql", "postgresql:///chat?host=/run/postgresql"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    place = PostgresPlace(url)
    assert str(place) == shown
    assert "s3" not in repr(place)
    assert "s3" not in place.without_passwords(f"no {place.passwords}")


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("clients.rollout.records.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SpecError, match=r"needs psycopg: .*; pip install '.*\[postgres\]', or name a file"):
        Store(PostgresPlace("postgresql://me@db/chat"))


def refused(url: str, error: type[ServingError], *words: str) -> None:
    with pytest.raises(error) as found:
        Store(PostgresPlace(url))
    told = found.value.message
    assert all(word in told for word in words), told
    assert "\n" not in told
    for chained in (
        found.value,
        found.value.__cause__,
        None if found.value.__suppress_context__ else found.value.__context__,
    ):
        assert SECRET not in str(chained)
        assert "s3%3Acr%2Fet" not in str(chained)


@pytest.mark.slow
class TestOnAServer:
    def test_a_wrong_password(self, postgres: "PostgresServer") -> None:
        refused(postgres.url("postgres", password=SECRET), SpecError, "password authentication failed", "~/.pgpass")
        url = f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"
        refused(url, SpecError, f"--store {url}", "no password supplied", "PGPASSWORD")

    def test_a_password_of_the_environment(self, postgres: "PostgresServer", monkeypatch: pytest.MonkeyPatch) -> None:
        from postgres_here import PASSWORD  # noqa: PLC0415 - needs an extra

        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        name = postgres.new_database()
        with Store(PostgresPlace(f"postgresql://postgres@127.0.0.1:{postgres.port}/{name}")) as store:
            assert store.rollouts() == []

    def test_a_database_or_user_that_is_not_there(self, postgres: "PostgresServer") -> None:
        refused(postgres.url("nowhere"), SpecError, 'database "nowhere" does not exist', "createdb")
        refused(postgres.url("postgres", user="nobody", password=SECRET), SpecError, "password authentication failed")

    def test_a_server_that_is_away(self, postgres: "PostgresServer") -> None:
        url = postgres.url("postgres", password=SECRET).replace(f":{postgres.port}/", ":1/")
        refused(
            url, Unavailable, "postgresql://postgres@127.0.0.1:1/postgres is away", "refused", "--store its address"
        )
        refused(f"postgresql://me:{SECRET.replace('/', '%2F')}@no-host.invalid/a", Unavailable, "is away")

    def test_a_url_that_the_library_does_not_understand(self, postgres: "PostgresServer") -> None:
        refused(postgres.url("postgres", password=SECRET) + "?colour=red", SpecError, "no address that PostgreSQL's")
        refused("postgresql://me:s3%3Acr%2Fet%ZZ@db/chat", SpecError, "no address that PostgreSQL's library")
        refused(postgres.url("postgres", password=SECRET) + "?connect_timeout=x", SpecError, "no address that Postgre")

    def test_an_old_server(self, postgres: "PostgresServer", monkeypatch: pytest.MonkeyPatch) -> None:
        from trireme.base import postgres_connection  # noqa: PLC0415 - needs an extra

        monkeypatch.setattr(postgres_connection, "OLDEST", 99)
        refused(postgres.url("postgres"), SpecError, "must be 99 or later: take a newer server, or a file")

    def test_a_user_without_rights(self, postgres: "PostgresServer") -> None:
        name = postgres.new_database()
        with postgres.connect(name) as db:
            db.execute("drop role if exists reader")
            db.execute(f"create role reader login password '{SECRET}'".encode())
        url = postgres.url(name, user="reader", password=SECRET)
        refused(url, SpecError, "reader may not create the tables", "grant create on schema public to reader")
        with postgres.connect(name) as db:
            db.execute("grant create on schema public to reader")
        with Store(PostgresPlace(url)) as store:
            assert store.begin("chat", "{}", why="").id == 1
        with postgres.connect(name) as db:
            db.execute("revoke insert on events from reader")
        with Store(PostgresPlace(url)) as store, pytest.raises(SpecError, match="somebody change its tables or rights"):
            store.note(1, "a", "b")
        with postgres.connect(name) as db:
            db.execute("drop owned by reader; drop role reader")

    def test_a_schema_that_is_not_there(self, postgres: "PostgresServer") -> None:
        url = postgres.url(postgres.new_database()) + "?options=-csearch_path%3Dnowhere"
        refused(url, SpecError, "no schema has been selected to create in", "create schema")

    def test_other_tables_are_left_alone(self, postgres: "PostgresServer") -> None:
        name = postgres.new_database()
        with postgres.connect(name) as db:
            db.execute("create table events (day date)")
        refused(
            postgres.url(name), SpecError, "is no store of rollouts", "name another database, or a schema of its own"
        )
        with postgres.connect(name) as db:
            assert db.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone() == (1,)

    def test_an_encoding_that_does_not_hold_every_text(self, postgres: "PostgresServer") -> None:
        name = postgres.new_database("encoding latin1 template template0")
        refused(postgres.url(name), SpecError, "encoding LATIN1", "createdb --encoding UTF8")

    def test_a_server_that_takes_no_changes(self, postgres: "PostgresServer") -> None:
        name = postgres.new_database()
        with postgres.connect("postgres") as db:
            db.execute(f"alter database {name} set default_transaction_read_only = on".encode())
        refused(postgres.url(name), Unavailable, "session is read-only")


def test_every_secret_of_a_url_is_known() -> None:
    assert set(PostgresPlace("postgresql://a:b%20c@d/e?password=f&sslpassword=g").passwords) == {
        "b%20c",
        "b c",
        "f",
        "g",
    }
