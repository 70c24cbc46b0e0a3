# SPDX-License-Identifier: Apache-2.0
"""The end of old requests: their rows are deleted, and their tokens and costs stay in the sums of their day."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, delete, select, text
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.tables import DAY_SUMS, NO_RELEASE, REQUESTS, SPENDING

_KEYS = tuple(column.name for column in DAY_SUMS.primary_key)
_COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_nano_usd", "saved_nano_usd")
_SUMS = ("requests", *_COUNTED, "ttft_s", "num_ttft")
_OTHERS_DAYS = 62  # budgets look at this month alone
_LOCK = 0x7472696B  # as that of migrations, which is 0 behind it

_Sums = dict[tuple[Any, ...], dict[str, Any]]


def is_our_turn(connection: Connection) -> bool:
    """Return whether no other process deletes requests, until the end of the connection's transaction.

    In SQLite the transaction itself keeps others away: it is one that writes from its beginning.
    """
    if connection.dialect.name != "postgresql":
        return True
    asked = connection.execute(text("select pg_try_advisory_xact_lock(:key, 1)"), {"key": _LOCK})
    return bool(asked.scalar_one())


def delete_requests(connection: Connection, *, before_day: int, keeps_sums: bool, max_rows: int) -> int:
    """Delete some of the oldest requests that began before a day, and return how many.

    Args:
        keeps_sums: they become a part of the sums of their day.
    """
    oldest = select(REQUESTS.c.id).where(REQUESTS.c.day < before_day).order_by(REQUESTS.c.day).limit(max_rows)
    gone = connection.execute(delete(REQUESTS).where(REQUESTS.c.id.in_(oldest)).returning(*REQUESTS.c)).all()
    if keeps_sums:
        _add(connection, _summed(gone))
    if len(gone) < max_rows:
        connection.execute(delete(SPENDING).where(SPENDING.c.day < before_day - _OTHERS_DAYS))
    return len(gone)


def _summed(rows: Iterable[Row[Any]]) -> _Sums:
    found: _Sums = {}
    for row in rows:
        fields = row._mapping
        key = tuple(NO_RELEASE if fields[name] is None else fields[name] for name in _KEYS)
        sums = found.setdefault(key, dict.fromkeys(_SUMS, 0))
        sums["requests"] += 1
        for name in (*_COUNTED, "ttft_s"):
            sums[name] += fields[name] or 0
        sums["num_ttft"] += fields["ttft_s"] is not None
    return found


def _add(connection: Connection, sums: _Sums) -> None:
    if not sums:
        return
    adding: Any = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(DAY_SUMS)
    totals = {name: DAY_SUMS.c[name] + adding.excluded[name] for name in _SUMS}
    values = [{**dict(zip(_KEYS, key, strict=True)), **sums[key]} for key in sorted(sums)]
    connection.execute(adding.on_conflict_do_update(index_elements=_KEYS, set_=totals), values)
