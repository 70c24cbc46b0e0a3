# SPDX-License-Identifier: Apache-2.0
"""The ledger in its database: requests, each once, and their sums."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, case, func, select
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.database import GatewayDatabase
from gateway.database.named_place import LEDGER_OPTION
from gateway.database.tables import REQUESTS, SPENDING
from gateway.ledger.ledger_row import UNSETTLED, LedgerRow
from gateway.ledger.usage_sum import GROUPS, UsageSum
from gateway.limits.refusals import tenant_account
from trireme.base.store_place import StorePlace

T = TypeVar("T")

_MAX_ROWS = 1000  # of one statement: SQLite takes 32,766 values
_FAILED = ~REQUESTS.c.finish.in_(["stop", "length", "tool_calls", "content_filter"])
_GROUPS: dict[str, ColumnElement[Any]] = {name: REQUESTS.c["key_id" if name == "key" else name] for name in GROUPS}


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

    def add(self, rows: Sequence[LedgerRow]) -> None:
        """Add requests that have ended, all or none; one that is there already counts once.

        A request that was unsettled is settled by a row that says how it ended.
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

    def usage(self, by: Sequence[str], *, since_day: int, until_day: int) -> list[UsageSum]:
        """Return the sums over the requests that began in some days, in the order of their groups.

        Args:
            by: of GROUPS; none: one sum over all requests.
            since_day, until_day: days since 1970, both included.
        """
        columns = [_GROUPS[name] for name in by]
        count, total = func.count(), func.sum
        is_unsettled = REQUESTS.c.finish == UNSETTLED
        sums: list[ColumnElement[Any]] = [
            count,
            total(case((_FAILED & ~is_unsettled, 1), else_=0)),
            total(case((is_unsettled, 1), else_=0)),
            *(total(REQUESTS.c[name]) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")),
            func.avg(REQUESTS.c.ttft_s),
            total(REQUESTS.c.cost_nano_usd),
            total(REQUESTS.c.saved_nano_usd),
        ]
        query = select(*columns, *sums).where(REQUESTS.c.day.between(since_day, until_day))
        with self._database.reading() as connection:
            found = connection.execute(query.group_by(*columns).order_by(*columns)).all()
        return [_sum(tuple(row), len(columns)) for row in found if row[len(columns)]]

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


def _parts(values: list[T]) -> Iterator[list[T]]:
    return (values[begin : begin + _MAX_ROWS] for begin in range(0, len(values), _MAX_ROWS))


def _insert(connection: Connection) -> Any:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _sum(row: tuple[Any, ...], num_columns: int) -> UsageSum:
    """Return a row with the types of a sum: PostgreSQL's are Decimal."""
    requests, failed, unsettled, prompt, cached, completion, ttft_s, cost, saved = row[num_columns:]
    return UsageSum(
        row[:num_columns],
        requests=int(requests),
        failed=int(failed or 0),
        unsettled=int(unsettled or 0),
        prompt_tokens=int(prompt or 0),
        cached_tokens=int(cached or 0),
        completion_tokens=int(completion or 0),
        mean_ttft_s=None if ttft_s is None else float(ttft_s),
        cost_nano_usd=int(cost or 0),
        saved_nano_usd=int(saved or 0),
    )
