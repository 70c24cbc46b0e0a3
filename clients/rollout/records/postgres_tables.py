# SPDX-License-Identifier: Apache-2.0
"""The tables of the store of rollouts in a database of PostgreSQL: whether they are there, and their creation."""

import contextlib

import psycopg

from clients.rollout.records.store_schema import postgres_schema
from trireme.base.errors import SpecError
from trireme.base.postgres_connection import Connection, away, connect, plain
from trireme.base.store_place import PostgresPlace

_CREATING = 0x74726973  # the first half of the key of an advisory lock; any number that nobody else uses


def is_store_there(place: PostgresPlace) -> bool:
    """Return whether a place holds a store of rollouts; none is made.

    Raises:
        SpecError: the place is wrong.
        Unavailable: the server is away.
    """
    with contextlib.closing(connect(place, "trireme rollout")) as db:
        try:
            return _has_tables(db)
        except psycopg.Error as exc:
            raise away(place, exc) from exc


def _has_tables(db: Connection) -> bool:
    """Return whether the connection's schema holds a store of rollouts."""
    # Of the catalog's rows: to_regclass may remember that there was none a moment ago.
    query = "select 1 from pg_tables where schemaname = current_schema() and tablename = 'changes_done'"
    return db.execute(query).fetchone() is not None


def create_tables(db: Connection, place: PostgresPlace) -> None:
    """Create the tables in the connection's schema, if they are not there.

    Raises:
        SpecError: the user may not, or tables of these names are there that are no store of rollouts.
    """
    if _has_tables(db):
        return
    try:
        with db.transaction():
            db.execute("select pg_advisory_xact_lock(%s, 0)", (_CREATING,))
            if not _has_tables(db):  # another process was quicker
                db.execute(postgres_schema().encode())
    except psycopg.errors.InsufficientPrivilege as exc:
        raise SpecError(
            f"--store {place}: {db.info.user} may not create the tables: {plain(place, exc)}; let its owner say `grant "
            f"create on schema public to {db.info.user}`, or name a schema of its own: ?options=-csearch_path%3DSCHEMA",
            field="store",
        ) from exc
    except psycopg.errors.InvalidSchemaName as exc:
        raise SpecError(
            f"--store {place}: {plain(place, exc)}; make the schema that search_path names with `create schema`, or "
            "name another one",
            field="store",
        ) from exc
    except psycopg.ProgrammingError as exc:
        raise SpecError(
            f"--store {place} is no store of rollouts: {plain(place, exc)}; name another database, or a schema of its "
            "own: ?options=-csearch_path%3DSCHEMA",
            field="store",
        ) from exc
