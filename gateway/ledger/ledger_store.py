# SPDX-License-Identifier: Apache-2.0
"""The ledger in its database: requests, each once, and their sums."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.database import GatewayDatabase
from gateway.database.named_place import LEDGER_OPTION
from gateway.database.tables import JOURNAL_PLACES, REQUESTS, SPENDING
from gateway.ledger.day_sums import delete_requests, is_our_turn
from gateway.ledger.journal_place import JournalPlace
from gateway.ledger.ledger_row import UNSETTLED, LedgerRow
from gateway.ledger.usage_query import usage_query, usage_sum
from gateway.ledger.usage_sum import UsageSum
from gateway.limits.refusals import tenant_account
from trireme.base.store_place import StorePlace

T = TypeVar("T")

_MAX_ROWS = 1000  # of one statement: SQLite takes 32,766 values


class LedgerStore:
    """The ledger at one place; threads may use it side by side.

    Args:
        place: the file, or the database; its tables are made if they are not there, a file and its folder too.

    Attributes:
        place: shown without its password.

    Raises:
        SpecError: what is there cannot hold the ledger.
        Unavailable: the database is away; every method raises it too.
    """

    def __init__(self, place: StorePlace) -> None:
        self.place = place
        self._database = GatewayDatabase(place, option=LEDGER_OPTION)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def add(self, rows: Sequence[LedgerRow], place: JournalPlace | None = None) -> None:
        """Add requests that have ended, all or none; one that is there already counts once.

        A request that was unsettled is settled by a row that says how it ended.

        Args:
            place: up to which the journal is loaded with them.
        """
        with self._database.changing() as connection:
            spent = Counter[tuple[str, int]]()
            for part in _parts(_each_once(rows)):
                added = _add(connection, part)
                for row in part:
                    if row.cost_nano_usd and row.id in added:
                        spent[row.key_id, row.day] += row.cost_nano_usd
                        if row.tenant:
                            spent[tenant_account(row.tenant), row.day] += row.cost_nano_usd
            _add_spending(connection, spent)
            if place is not None:
                _put_place(connection, place)

    def usage(self, by: Sequence[str], *, since_day: int, until_day: int) -> list[UsageSum]:
        """Return the sums over the requests that began in some days, in the order of their groups.

        Args:
            by: of GROUPS; none: one sum over all requests.
            since_day, until_day: days since 1970, both included.
        """
        query = usage_query(by, since_day=since_day, until_day=until_day)
        with self._database.reading() as connection:
            found = [usage_sum(row, len(by)) for row in connection.execute(query)]
        return [each for each in found if each.requests]

    def delete_before(self, day: int, *, keeps_sums: bool, max_rows: int) -> int:
        """Delete some of the oldest requests that began before a day, and return how many.

        0: there are none left, or another process deletes some.

        Args:
            keeps_sums: usage has them for ever, in the sums of their day.
        """
        with self._database.changing() as connection:
            if not is_our_turn(connection):
                return 0
            return delete_requests(connection, before_day=day, keeps_sums=keeps_sums, max_rows=max_rows)

    def journal_place(self, file: str) -> JournalPlace:
        """Return how far a file of a journal is loaded; its beginning where nobody has told."""
        query = select(JOURNAL_PLACES).where(JOURNAL_PLACES.c.file == file)
        with self._database.reading() as connection:
            found = connection.execute(query).one_or_none()
        return JournalPlace(file) if found is None else JournalPlace(*found)

    def forget_journal(self, file: str) -> None:
        """Forget how far a file was loaded which is no more."""
        with self._database.changing() as connection:
            connection.execute(delete(JOURNAL_PLACES).where(JOURNAL_PLACES.c.file == file))

    def spending(
        self, key_ids: Collection[str], *, since_day: int, request_ids: Sequence[str] = ()
    ) -> tuple[set[str], dict[str, dict[int, int]]]:
        """Return which requests are here, and what keys have spent on each day from one on, with these requests.

        A key that spent nothing is left out; costs are billionths of a US dollar.
        """
        query = select(SPENDING).where(SPENDING.c.key_id.in_(key_ids), SPENDING.c.day >= since_day)
        spent: dict[str, dict[int, int]] = {}
        with self._database.reading() as connection:
            # First: PostgreSQL may show what another one adds meanwhile, which then counts twice until the next time.
            known = {
                name
                for part in _parts(list(request_ids))
                for name in connection.execute(select(REQUESTS.c.id).where(REQUESTS.c.id.in_(part))).scalars()
            }
            for key_id, day, cost in connection.execute(query):
                spent.setdefault(key_id, {})[day] = cost
        return known, spent


def _each_once(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows without a second one of the same request, by their ids, so that no two processes deadlock."""
    found: dict[str, LedgerRow] = {}
    for row in rows:
        if row.id not in found or found[row.id].finish == UNSETTLED:
            found[row.id] = row
    return sorted(found.values(), key=lambda row: row.id)


def _add(connection: Connection, rows: Sequence[LedgerRow]) -> set[str]:
    """Add rows, and return the ids of those that were not there, or were unsettled and are no more."""
    # The rows are no part of the statement: SQLAlchemy would compile it anew for each number of them.
    values = [{name: getattr(row, name) for name in REQUESTS.c.keys()} for row in rows]  # noqa: SIM118 - no mapping
    adding: Any = _insert(connection)(REQUESTS)
    is_better = (REQUESTS.c.finish == UNSETTLED) & (adding.excluded.finish != UNSETTLED)
    settled = {column.name: adding.excluded[column.name] for column in REQUESTS.c if column.name != "id"}
    adding = adding.on_conflict_do_update(index_elements=["id"], set_=settled, where=is_better)
    return set(connection.execute(adding.returning(REQUESTS.c.id), values).scalars())


def _add_spending(connection: Connection, spent: Counter[tuple[str, int]]) -> None:
    values = [{"key_id": key, "day": day, "cost_nano_usd": cost} for (key, day), cost in sorted(spent.items())]
    for part in _parts(values):
        adding: Any = _insert(connection)(SPENDING)
        total = SPENDING.c.cost_nano_usd + adding.excluded.cost_nano_usd
        connection.execute(
            adding.on_conflict_do_update(index_elements=["key_id", "day"], set_={"cost_nano_usd": total}), part
        )


def _put_place(connection: Connection, place: JournalPlace) -> None:
    putting: Any = _insert(connection)(JOURNAL_PLACES)
    now = {name: putting.excluded[name] for name in ("num_bytes", "is_whole")}
    connection.execute(putting.on_conflict_do_update(index_elements=["file"], set_=now), [place._asdict()])


def _parts(values: list[T]) -> Iterator[list[T]]:
    return (values[begin : begin + _MAX_ROWS] for begin in range(0, len(values), _MAX_ROWS))


def _insert(connection: Connection) -> Any:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
