# SPDX-License-Identifier: Apache-2.0
"""The sums of usage as one query: over the requests that are there, and over the day sums of those that were deleted.

One statement sees one state of the database: a request is in either, also while it becomes a part of a day sum.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, case, func, literal_column, select, union_all

from gateway.database.tables import DAY_SUMS, NO_RELEASE, REQUESTS
from gateway.ledger.ledger_row import UNSETTLED
from gateway.ledger.usage_sum import UsageSum

_COLUMNS = {"key": "key_id"}  # of groups that are not called like their column
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_DOLLARS = ("cost_nano_usd", "saved_nano_usd")
_SUMS = ("requests", "failed", "unsettled", *_TOKENS, "ttft_s", "num_ttft", *_DOLLARS)


def usage_query(by: Sequence[str], *, since_day: int, until_day: int) -> Select[Any]:
    """Return the query of sums, each row a group and its sums. Args: as `LedgerStore.usage`."""
    parts = [
        _part(by, REQUESTS, literal_column("1"), func.count(REQUESTS.c.ttft_s)),
        _part(by, DAY_SUMS, DAY_SUMS.c.requests, func.sum(DAY_SUMS.c.num_ttft)),
    ]
    tables = (REQUESTS, DAY_SUMS)
    days = (part.where(table.c.day.between(since_day, until_day)) for part, table in zip(parts, tables, strict=True))
    both = union_all(*days).subquery()
    columns = [both.c[name] for name in by]
    return select(*columns, *(func.sum(both.c[name]) for name in _SUMS)).group_by(*columns).order_by(*columns)


def usage_sum(row: Sequence[Any], num_groups: int) -> UsageSum:
    """Return a row of the query with the types of a sum: PostgreSQL's are Decimal."""
    found = dict(zip(_SUMS, row[num_groups:], strict=True))
    ttft_s = found.pop("ttft_s")
    counts = {name: int(value or 0) for name, value in found.items()}
    num_ttft = counts.pop("num_ttft")
    return UsageSum(tuple(row[:num_groups]), mean_ttft_s=float(ttft_s) / num_ttft if num_ttft else None, **counts)


def _part(by: Sequence[str], table: Table, requests: ColumnElement[Any], num_ttft: ColumnElement[Any]) -> Select[Any]:
    """Return the sums of one table. Args: `requests`, of a row; `num_ttft`, of a group."""
    columns = [_group(name, table) for name in by]
    is_unsettled = table.c.finish == UNSETTLED
    is_failed = ~table.c.finish.in_(["stop", "length", "tool_calls", "content_filter"]) & ~is_unsettled
    sums = {
        "requests": func.sum(requests),
        "failed": func.sum(case((is_failed, requests), else_=0)),
        "unsettled": func.sum(case((is_unsettled, requests), else_=0)),
        **{name: func.sum(table.c[name]) for name in (*_TOKENS, "ttft_s", *_DOLLARS)},
        "num_ttft": num_ttft,
    }
    labelled = (sums[name].label(name) for name in _SUMS)
    return select(*(column.label(name) for name, column in zip(by, columns, strict=True)), *labelled).group_by(*columns)


def _group(name: str, table: Table) -> ColumnElement[Any]:
    column = table.c[_COLUMNS.get(name, name)]
    if table is DAY_SUMS and name == "release":
        # As a text: PostgreSQL does not know two parameters of one value for the same expression.
        return func.nullif(column, literal_column(str(NO_RELEASE)))
    return column
