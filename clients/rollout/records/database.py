# SPDX-License-Identifier: Apache-2.0
"""The seam between the store of rollouts and what keeps it: SQL that SQLite and PostgreSQL both understand.

Values stand where a query has `?`; no query has a `?` or a `%` elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
Values = Sequence[object]


class AlreadyThere(Exception):
    """A row that a unique index does not allow beside another one; nothing of the change was done."""


class Database(Protocol):
    """A connection to the tables of `clients.rollout.records.store_schema`; each process and thread has its own."""

    def rows(self, query: str, values: Values = ()) -> list[Row]:
        """Return the rows of a query; in a change, as the change has left them."""

    def stream(self, query: str, values: Values = ()) -> Iterator[Row]:
        """Yield the rows of a query that may be many."""

    def write(self, query: str, values: Values = ()) -> None:
        """Do one statement of a change."""

    def write_many(self, query: str, rows: Iterable[Values]) -> None:
        """Do one statement of a change for each row."""

    def change(self, work: Callable[[], T], *, rollout: int | None = None) -> T:
        """Do all that `work` writes or nothing, once, and return what it returns.

        Args:
            work: reads and writes; it may be called again where the database undid what it had written.
            rollout: nobody else changes the rollout with this number meanwhile.

        Raises:
            AlreadyThere: a unique index does not allow it.
        """

    def driving(self) -> AbstractContextManager[None]:
        """Hold the lock with which one process drives the store's rollouts.

        Raises:
            RequestError: another process holds it.
        """

    def is_driven(self) -> bool:
        """Return whether a process drives the store's rollouts."""

    def close(self) -> None:
        """Close the connection."""
