# SPDX-License-Identifier: Apache-2.0
"""The choice of what keeps a store, by its place. PostgreSQL's library is imported where a place needs it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from clients.rollout.records.database import Database
from clients.rollout.records.sqlite_database import SqliteDatabase
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install
from trireme.base.store_place import PostgresPlace, StorePlace


def is_there(place: StorePlace) -> bool:
    """Return whether a place holds a store; none is made.

    Raises:
        SpecError: it cannot be looked at.
        Unavailable: the database is away.
    """
    if isinstance(place, Path):
        return place.is_file()
    with _with_psycopg():
        from clients.rollout.records.postgres_tables import is_store_there  # noqa: PLC0415 - needs an extra

    return is_store_there(place)


def open_database(place: StorePlace, *, patience_s: float, tell: Callable[[str], None]) -> Database:
    """Return a new connection to a place, with the tables made.

    Raises:
        SpecError: what is there cannot be the store.
        Unavailable: the database is away.
    """
    if isinstance(place, PostgresPlace):
        with _with_psycopg():
            from clients.rollout.records.postgres_database import PostgresDatabase  # noqa: PLC0415 - needs an extra

        return PostgresDatabase(place, patience_s=patience_s, tell=tell)
    return SqliteDatabase(place)


@contextlib.contextmanager
def _with_psycopg() -> Iterator[None]:
    try:
        yield
    except ImportError as exc:  # psycopg says it itself where libpq is missing
        raise SpecError(
            f"--store names a database of PostgreSQL, which needs psycopg: {exc}; {how_to_install('postgres')}, or "
            "name a file",
            field="store",
        ) from exc
