# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL below the store of rollouts: transactions that are done once, whatever becomes of the connection.

A connection that is lost takes its open transaction with it, and the whole transaction is done again on a new one. What
a lost connection had just committed may be done or not: each transaction writes a name of its own into `changes_done`
first, and where the name is there already the transaction was done. The server itself settles the race with a commit
that it is still at: the second insertion of a name waits for the end of the first.

Changes of one rollout are one after the other by a lock on its row. One process drives the rollouts by an advisory
lock, which lasts as long as its connection; a new connection takes it again before it does anything else.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator

import psycopg
from psycopg import errors

from clients.rollout.records.database import AlreadyThere, Row, T, Values
from clients.rollout.records.file_lock import GLANCE_S, driven_by_another
from clients.rollout.records.postgres_tables import create_tables
from trireme.base.errors import RequestError, ServingError, SpecError
from trireme.base.postgres_connection import Connection, away, connect, plain
from trireme.base.store_place import PostgresPlace

_DRIVING = 0x74726972  # the first half of the lock's key; the other is the schema
_SCHEMA = "(select oid from pg_namespace where nspname = current_schema())"
_HOLDER = (
    "select pid, coalesce(application_name, '') from pg_locks left join pg_stat_activity using (pid) "
    "where locktype = 'advisory' and granted and pg_locks.database = "
    f"(select oid from pg_database where datname = current_database()) and classid = {_DRIVING} and objid = {_SCHEMA}"
)
_NAME = "trireme rollout "
_LONGEST_PAUSE_S = 1.0
_PRUNE_EVERY = 500
_AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)  # the server has undone the transaction
_LOST = (  # or the server takes no changes any more; it has undone what was not committed
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
)


class PostgresDatabase:
    """A connection to a database (`clients.rollout.records.database.Database`), made again when it is lost.

    Args:
        patience_s: how long a server that went away is waited for; infinite for the process that drives a rollout.
        tell: reporter of messages for people.

    Raises:
        SpecError: the place is wrong, or what is there cannot hold the store.
        Unavailable: the server is away.
    """

    def __init__(
        self, place: PostgresPlace, *, patience_s: float = 10.0, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._place = place
        self._patience_s = patience_s
        self._tell = tell
        self._name = f"{_NAME}{os.getpid()} on {socket.gethostname()[:24]} {secrets.token_hex(4)}"
        self._is_driving = False
        self._is_in_change = False
        self._num_changes = 0
        self._db: Connection | None = self._open()

    def _open(self) -> Connection:
        db = connect(self._place, self._name)
        try:
            create_tables(db, self._place)
            if self._is_driving:
                self._take_lock(db)
        except psycopg.Error as exc:  # lost again
            db.close()
            raise away(self._place, exc) from exc
        except BaseException:
            db.close()
            raise
        return db

    def rows(self, query: str, values: Values = ()) -> list[Row]:
        """Return the rows of a query."""
        if self._is_in_change:
            return _execute(self._connection, query, values).fetchall()
        return self._patiently(lambda: _execute(self._connection, query, values).fetchall())

    def stream(self, query: str, values: Values = ()) -> Iterator[Row]:
        """Yield the rows of a query, a part at a time."""
        self.rows("select 1")  # a lost connection is made again before, never in the middle
        try:
            with self._connection.transaction(), self._connection.cursor("rows") as cursor:
                yield from cursor.execute(_words(query), values)
        except _LOST as exc:
            raise away(self._place, exc) from exc

    def write(self, query: str, values: Values = ()) -> None:
        """Do one statement of a change."""
        _execute(self._connection, query, values)

    def write_many(self, query: str, rows: Iterable[Values]) -> None:
        """Do one statement of a change for each row."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_words(query), rows)

    def change(self, work: Callable[[], T], *, rollout: int | None = None) -> T:
        """Do all that `work` writes or nothing, once, and return what it returns."""
        name = secrets.token_hex(16)
        found: list[T] = []  # of each time that it came as far as its commit

        def attempt() -> T:
            self._is_in_change = True
            try:
                self.write("begin isolation level read committed")
                if not self._is_new(name):
                    self.write("rollback")
                    return found[-1]  # the last one that came so far: any later one would have seen its name
                self._prune()
                if rollout is not None:
                    self.write("select 1 from rollouts where id = ? for no key update", (rollout,))
                found.append(work())
                self.write("commit")
            finally:
                self._is_in_change = False
            return found[-1]

        return self._patiently(attempt)

    def _is_new(self, name: str) -> bool:
        query = "insert into changes_done (id) values (?) on conflict do nothing"
        return _execute(self._connection, query, (name,)).rowcount == 1

    def _prune(self) -> None:
        if self._num_changes % _PRUNE_EVERY == 0:
            self.write(
                "delete from changes_done where id in (select id from changes_done where at < now() - interval '1 day' "
                "for update skip locked)"
            )
        self._num_changes += 1

    @property
    def _connection(self) -> Connection:
        assert self._db is not None, "used only while there is one"
        return self._db

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns; where its connection is lost, try again on a new one.

        Raises:
            Unavailable: the server did not come back in time.
            RequestError: another process drives the rollouts meanwhile.
        """
        deadline_s, pause_s, message = time.monotonic() + self._patience_s, 0.05, ""
        while True:
            try:
                if self._db is None:
                    self._db = self._open()
            except RequestError:
                raise
            except ServingError as exc:  # a wrong password too: it was right before
                error = exc
            else:
                try:
                    return attempt()
                except _AGAIN:
                    self._undo()
                    continue
                except _LOST as exc:
                    self._discard()
                    error = away(self._place, exc)
                except psycopg.Error as exc:
                    self._undo()
                    raise self._error(exc) from exc
                except Exception:
                    self._undo()
                    raise
                except BaseException:  # interrupted in the middle of whatever: the server undoes the rest
                    self._discard()
                    raise
            if time.monotonic() > deadline_s:
                raise error
            if error.message != message and pause_s >= _LONGEST_PAUSE_S:
                self._tell(f"waiting for the store: {error.message}")
                message = error.message
            time.sleep(min(pause_s, max(deadline_s - time.monotonic(), 0.0)))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _error(self, exc: psycopg.Error) -> Exception:
        text = plain(self._place, exc)
        match exc:
            case psycopg.IntegrityError():
                return AlreadyThere(text)
            case psycopg.DataError():
                return RequestError(f"the store cannot hold what it was given: {text}; leave it out", field="store")
            case _:
                return SpecError(
                    f"--store {self._place} cannot be used: {text}; did somebody change its tables or rights?",
                    field="store",
                )

    def _undo(self) -> None:
        try:
            self._connection.rollback()
        except psycopg.Error:
            self._discard()

    def _discard(self) -> None:
        if self._db is not None:
            with contextlib.suppress(psycopg.Error):
                self._db.close()
        self._db = None

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the lock with which one process drives the database's rollouts, also on later connections."""
        self._patiently(lambda: self._take_lock(self._connection))
        self._is_driving = True
        try:
            yield
        finally:
            self._is_driving = False
            if self._db is not None:
                with contextlib.suppress(psycopg.Error):
                    self._db.execute(f"select pg_advisory_unlock({_DRIVING}, {_SCHEMA}::int)".encode())

    def _take_lock(self, db: Connection) -> None:
        deadline_s = time.monotonic() + GLANCE_S  # a process that was just killed has it for a moment
        while not _first(db, f"select pg_try_advisory_lock({_DRIVING}, {_SCHEMA}::int)"):
            holder = db.execute(_HOLDER.encode()).fetchone()
            if holder is not None and holder[1] == self._name:  # our own lost connection, whose end the server missed
                db.execute("select pg_terminate_backend(%s)", (holder[0],))
                deadline_s = max(deadline_s, time.monotonic() + GLANCE_S)
            elif time.monotonic() > deadline_s:
                raise driven_by_another(str(self._place), "" if holder is None else _who(*holder))
            time.sleep(GLANCE_S / 20)

    def is_driven(self) -> bool:
        """Return whether a process drives the database's rollouts."""
        return bool(self.rows(_HOLDER))

    def close(self) -> None:
        """Close the connection."""
        self._discard()


def _execute(db: Connection, query: str, values: Values) -> psycopg.Cursor[Row]:
    return db.execute(_words(query), values or None)


def _words(query: str) -> bytes:
    return query.replace("?", "%s").encode()


def _first(db: Connection, query: str) -> object:
    row = db.execute(query.encode()).fetchone()
    return None if row is None else row[0]


def _who(pid: object, name: object) -> str:
    """Return a session's process and machine, as its name has them; of a pooler's, the session."""
    text = str(name)
    return text.removeprefix(_NAME).rpartition(" ")[0] if text.startswith(_NAME) else f"session {pid}"
