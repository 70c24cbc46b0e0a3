# SPDX-License-Identifier: Apache-2.0
"""The database of a gateway: a file of SQLite or PostgreSQL, with its tables as this version needs them."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from gateway.database.migrate import is_current, migrate
from trireme.base.errors import ServingError, SpecError, Unavailable
from trireme.base.extras import how_to_install
from trireme.base.store_place import PostgresPlace, StorePlace

_BUSY_S = 30.0
_SILENCE_S = 5.0
_CONNECTIONS = 3


class GatewayDatabase:
    """The connections to a database, which threads take in turn; its tables are made if they are not there.

    Args:
        option: of the command, which named the place; messages name it.

    Raises:
        SpecError: what is there cannot hold the tables, or a later version made them.
        Unavailable: the database is away.
    """

    def __init__(self, place: StorePlace, *, option: str) -> None:
        self._place, self._option = place, option
        self._engine = _postgres(place) if isinstance(place, PostgresPlace) else _sqlite(place, option)
        try:
            self._open()
        except BaseException:
            self._engine.dispose()
            raise

    def _open(self) -> None:
        try:
            with self._engine.begin() as connection:
                is_ready = is_current(connection, option=self._option)
            if not is_ready:
                with self._engine.execution_options(is_writing=True).begin() as connection:
                    migrate(connection, option=self._option)
        except DBAPIError as exc:
            raise self._unusable(exc) from None  # its text may hold a password

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that only reads.

        Raises:
            Unavailable: the database is away.
        """
        with self._errors(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def changing(self) -> Iterator[Connection]:
        """Yield a connection in a transaction, of which all is done or nothing.

        Raises:
            Unavailable: the database is away, or takes no changes.
        """
        with self._errors(), self._engine.execution_options(is_writing=True).begin() as connection:
            yield connection

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as exc:
            raise self._away(exc) from None  # its text may hold a password

    def _away(self, exc: SQLAlchemyError) -> Unavailable:
        return Unavailable(
            f"the database {self._place} is away: {self._said(exc)}; is it there, and may this user write to it?",
            reason="store_away",
        )

    def _unusable(self, exc: DBAPIError) -> ServingError:
        is_lost = isinstance(self._place, PostgresPlace) and isinstance(exc, OperationalError)
        if is_lost or "database is locked" in self._said(exc):
            return self._away(exc)
        return SpecError(
            f"{self._option} {self._place} cannot be used: {self._said(exc)}; name a file or a database of the "
            "gateway's own that this user may write to, with PostgreSQL a schema of its own: "
            "?options=-csearch_path%3DSCHEMA",
            field=self._option.lstrip("-"),
        )

    def _said(self, exc: SQLAlchemyError) -> str:
        """Return what is wrong, on one line, without statements, values and passwords."""
        cause = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
        said = " ".join(str(cause).split())
        return self._place.without_passwords(said) if isinstance(self._place, PostgresPlace) else said


def _sqlite(path: Path, option: str) -> Engine:
    path = path.absolute()
    try:
        _make(path)
    except OSError as exc:
        raise SpecError(
            f"{option} {path} cannot be opened: {(exc.strerror or str(exc)).lower()}; name a file that this user may "
            "write to",
            field=option.lstrip("-"),
        ) from exc
    # `autocommit` of Python 3.12 is not in 3.11: no transaction begins but by the statement below.
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_S, "isolation_level": None},
        hide_parameters=True,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make(path: Path) -> None:
    """Make a file that is not there, for its user alone: whoever can write to it can let himself in.

    A file that is there is not opened here. To close it again would drop the locks that this process has on it by other
    connections, and the next process would believe that it is alone, and spoil it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("pragma journal_mode = wal")  # readers never wait for a writer
    connection.execute("pragma synchronous = full")  # a revocation that was told outlasts a power failure


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; one that writes waits for its turn now, for later it could not wait but fail."""
    is_writing = connection.get_execution_options().get("is_writing", False)
    connection.exec_driver_sql("begin immediate" if is_writing else "begin")


def _postgres(place: PostgresPlace) -> Engine:
    try:
        from trireme.base.postgres_connection import Connection as PostgresConnection  # noqa: PLC0415 - needs an extra
        from trireme.base.postgres_connection import connect  # noqa: PLC0415 - needs an extra
    except ImportError as exc:  # psycopg says it itself where libpq is missing
        raise SpecError(
            f"{place.option} names a database of PostgreSQL, which needs psycopg: {exc}; "
            f"{how_to_install('postgres')}, or name a file",
            field=place.field,
        ) from exc

    def new_connection() -> PostgresConnection:
        connection = connect(place, f"trireme gateway {os.getpid()}", silence_s=_SILENCE_S)
        connection.autocommit = False
        return connection

    return create_engine(
        "postgresql+psycopg://",
        creator=new_connection,
        pool_size=_CONNECTIONS,
        pool_timeout=_SILENCE_S,
        pool_pre_ping=True,  # a server that was started again has closed the connections of before
        hide_parameters=True,
    )
