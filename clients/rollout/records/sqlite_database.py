# SPDX-License-Identifier: Apache-2.0
"""SQLite below the store of rollouts: one file, which all processes that use it must see as a local one."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from clients.rollout.records.database import AlreadyThere, Row, T, Values
from clients.rollout.records.file_lock import alone, is_free
from clients.rollout.records.store_schema import ADDED, sqlite_schema
from trireme.base.errors import SpecError

_BUSY_S = 30.0


class SqliteDatabase:
    """A connection to a file (`clients.rollout.records.database.Database`), which is made if it is not there.

    Raises:
        SpecError: the file is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")  # a power failure loses nothing that was told
            self._db.execute("pragma foreign_keys = on")
            self._create_tables()
        except sqlite3.DatabaseError as exc:
            raise SpecError(
                f"{path} is no store of rollouts: {exc}; name another file with --store, or move this one away",
                file=path,
            ) from exc

    def _create_tables(self) -> None:
        """Create the tables and columns that the file lacks; what is there stays as it is."""
        self._db.executescript(sqlite_schema())
        for table, name, kind in ADDED:
            if name not in {row[1] for row in self._db.execute(f"pragma table_info({table})")}:
                with contextlib.suppress(sqlite3.OperationalError):  # another process was quicker
                    self._db.execute(f"alter table {table} add column {name} {kind}")

    def rows(self, query: str, values: Values = ()) -> list[Row]:
        """Return the rows of a query."""
        return self._db.execute(query, values).fetchall()

    def stream(self, query: str, values: Values = ()) -> Iterator[Row]:
        """Yield the rows of a query."""
        yield from self._db.execute(query, values)

    def write(self, query: str, values: Values = ()) -> None:
        """Do one statement of a change."""
        self._db.execute(query, values)

    def write_many(self, query: str, rows: Iterable[Values]) -> None:
        """Do one statement of a change for each row."""
        self._db.executemany(query, rows)

    def change(self, work: Callable[[], T], *, rollout: int | None = None) -> T:  # noqa: ARG002 - a file has one writer
        """Do all that `work` writes or nothing, and return what it returns."""
        self._db.execute("begin immediate")
        try:
            found = work()
        except sqlite3.IntegrityError as exc:
            self._db.execute("rollback")
            raise AlreadyThere(str(exc)) from exc
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")
        return found

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the lock with which one process drives the file's rollouts."""
        with alone(self._path):
            yield

    def is_driven(self) -> bool:
        """Return whether a process drives the file's rollouts."""
        return not is_free(self._path)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()
