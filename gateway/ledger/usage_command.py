# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway usage`: the ledger's sums by day, tenant, model and the like."""

import json
import re
import time
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Any

import typer

from gateway.ledger.ledger_row import SECONDS_A_DAY
from gateway.ledger.open_ledger import open_ledger
from gateway.ledger.usage_sum import GROUPS, UsageSum
from trireme.base.errors import RequestError
from trireme.base.text_tables import TextTable, print_tables

_FIRST_DAY = date(1970, 1, 1)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NANO = 10**9
_WAITING = "tokens and cost of unsettled requests, which ran when their gateway died, are not known"


def usage(
    *,
    ledger: Annotated[
        str,
        typer.Option(help="File of the ledger, or postgresql://USER@HOST:PORT/DATABASE: as the gateways have it."),
    ],
    by: Annotated[
        str, typer.Option(help=f"What to sum up by, with commas between: {', '.join(GROUPS)}.")
    ] = "day,tenant,model",
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="First day (UTC), such as 2026-11-01.", show_default="the first")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="DATE", help="Last day (UTC).", show_default="today")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Sum up what requests took and cost, each counted on the day on which it began.

    A gateway writes a request into its database within two seconds of its end.

    \b
    Examples:
      trireme gateway usage --ledger ledger.sqlite
      trireme gateway usage --ledger postgresql://trireme@db/gateway --by tenant --since 2026-11-01 --until 2026-11-30
      trireme gateway usage --ledger ledger.sqlite --by model,release,finish --json

    \b
    Exit codes: 0 printed, also where there are none; 1 the database is away; 2 an option is wrong, or there is no
    ledger.
    """
    names = _groups(by)
    since_day, until_day = _day(since, "since", 0), _day(until, "until", int(time.time()) // SECONDS_A_DAY)
    with open_ledger(ledger, may_be_new=False) as store:
        sums = store.usage(names, since_day=since_day, until_day=until_day)
    if is_json:
        typer.echo(json.dumps([_told(names, each) for each in sums]))
    elif not sums:
        typer.echo("there are no requests in these days", err=True)
    else:
        has_saved = any(each.saved_nano_usd for each in sums)
        headers = (*names, *_COLUMNS, *(("USD saved",) if has_saved else ()))
        rows = tuple((*_shown(names, each), *_cells(each)[: len(headers) - len(names)]) for each in sums)
        notes = (_WAITING,) if any(each.unsettled for each in sums) else ()
        print_tables([TextTable("", headers, rows, notes, left=names)])


_DOLLARS = {"cost_nano_usd": "cost_usd", "saved_nano_usd": "saved_usd"}
_COLUMNS = ("requests", "failed", "unsettled", "prompt", "cached", "completion", "TTFT, ms", "USD")


def _groups(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    wrong = [name for name in names if name not in GROUPS]
    if wrong or len(set(names)) < len(names):
        raise RequestError(
            f"--by must be some of {', '.join(GROUPS)}, each once and with commas between, got {text[:64]!r}",
            field="by",
            value=text[:64],
        )
    return names


def _day(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    try:
        day = date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:  # there is no such day
        day = None
    if day is None:
        raise RequestError(f"--{name} must be a day as YYYY-MM-DD, got {text[:32]!r}", field=name, value=text[:32])
    return (day - _FIRST_DAY).days


def _shown(names: Sequence[str], found: UsageSum) -> list[str]:
    return ["" if value is None else str(_value(name, value)) for name, value in zip(names, found.group, strict=True)]


def _value(name: str, value: Any) -> object:
    return str(_FIRST_DAY + timedelta(days=value)) if name == "day" else value


def _cells(found: UsageSum) -> tuple[str, ...]:
    counts = (found.requests, found.failed, found.unsettled)
    tokens = (found.prompt_tokens, found.cached_tokens, found.completion_tokens)
    ttft = "" if found.mean_ttft_s is None else f"{1000 * found.mean_ttft_s:,.0f}"
    dollars = (f"{nano / _NANO:,.6f}" for nano in (found.cost_nano_usd, found.saved_nano_usd))
    return (*(f"{count:,}" for count in (*counts, *tokens)), ttft, *dollars)


def _told(names: Sequence[str], found: UsageSum) -> dict[str, object]:
    group = {name: _value(name, value) for name, value in zip(names, found.group, strict=True)}
    fields = {name: value for name, value in found._asdict().items() if name not in ("group", *_DOLLARS)}
    return {**group, **fields, **{told: getattr(found, name) / _NANO for name, told in _DOLLARS.items()}}
