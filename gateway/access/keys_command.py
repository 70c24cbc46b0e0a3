# SPDX-License-Identifier: Apache-2.0
"""The commands `trireme gateway keys`: API keys of a gateway, made, listed and revoked while gateways run."""

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.access.caller import Role
from gateway.access.key_record import KeyRecord
from gateway.access.key_wishes import key_named, new_key_of
from gateway.access.open_keys import open_keys
from gateway.limits.key_limits import KeyLimits, nano_usd
from trireme.base.text_tables import TextTable, print_tables

_KeysOption = Annotated[
    str,
    typer.Option("--keys", help="File of keys, or postgresql://USER@HOST:PORT/DATABASE: as the gateways have it."),
]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
_MOST = 10**12
_MOST_USD = 10**9
_NANO = 10**9


def create(
    name: Annotated[str, typer.Argument(help="Name for people, such as who has the key or what it is for.")],
    *,
    keys: _KeysOption,
    tenant: Annotated[str, typer.Option(help="On whose behalf the key calls.", show_default="nobody's")] = "",
    role: Annotated[Role, typer.Option(help="user: asks models; admin: may read /metrics too.")] = Role.USER,
    models: Annotated[
        str | None, typer.Option(help="Models that it may use, with commas between them.", show_default="all")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it expires, from now: 30m, 12h, 90d, 8w.", show_default="never")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Requests that may begin in a minute.", show_default="any")
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Tokens of prompts and answers in a minute.", show_default="any"),
    ] = None,
    streams: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Requests that may run at a time.", show_default="any")
    ] = None,
    usd_per_day: Annotated[
        float | None, typer.Option(min=0, max=_MOST_USD, help="US dollars in a day of UTC.", show_default="any")
    ] = None,
    usd_per_month: Annotated[
        float | None, typer.Option(min=0, max=_MOST_USD, help="US dollars in a month of UTC.", show_default="any")
    ] = None,
    is_json: _JsonOption = False,
) -> None:
    """Make a key, and print it on standard output, this once: the database keeps a hash of it.

    Every gateway of the database takes the key at once. The file is made if it is not there.

    \b
    Examples:
      trireme gateway keys create alice --keys keys.sqlite
      trireme gateway keys create ci --keys postgresql://trireme@db/gateway --models chat,code --expires 90d
      trireme gateway keys create bob --keys keys.sqlite --requests-per-minute 60 --tokens-per-minute 100000
      trireme gateway keys create trial --keys keys.sqlite --usd-per-day 5 --usd-per-month 50
      trireme gateway keys create prometheus --keys keys.sqlite --role admin > key.txt

    \b
    Exit codes: 0 the key is printed; 1 the database is away; 2 an option or the place is wrong, or the name is taken.
    """
    limits = KeyLimits(requests_per_minute, tokens_per_minute, streams, nano_usd(usd_per_day), nano_usd(usd_per_month))
    wish = new_key_of(name, tenant=tenant, role=role, models=models, expires=expires, now_s=time.time(), limits=limits)
    with open_keys(keys) as store:
        key = store.create(wish)
        [record] = store.find([key.id])
    typer.echo(json.dumps({"key": key.text, **_told(record)}) if is_json else key.text)
    typer.echo(f"key {key.id} of {name}: it is not shown again; keep it where secrets are kept", err=True)


def list_(*, keys: _KeysOption, is_json: _JsonOption = False) -> None:
    """List the keys, the oldest first: what they may do, and when they were last used, to the minute.

    \b
    Examples:
      trireme gateway keys list --keys keys.sqlite
      trireme gateway keys list --keys postgresql://trireme@db/gateway --json

    \b
    Exit codes: 0 listed, also where there are none; 1 the database is away; 2 there is no such file or database.
    """
    with open_keys(keys, may_be_new=False) as store:
        records, place = store.records(), store.place
    if is_json:
        typer.echo(json.dumps([_told(record) for record in records]))
    elif not records:
        typer.echo(f"there are no keys; make one: trireme gateway keys create NAME --keys {place}", err=True)
    else:
        print_tables([TextTable("", _HEADERS, tuple(map(_row, records)), left=_HEADERS)])


def revoke(
    key: Annotated[str, typer.Argument(metavar="ID_OR_NAME", help="Id or name of the key, as `list` shows them.")],
    *,
    keys: _KeysOption,
    is_json: _JsonOption = False,
) -> None:
    """Revoke a key: every gateway refuses it within one second, for ever. Running requests go on to their end.

    A gateway that does not reach the database refuses it once it does, or after its --keys-grace-s.

    \b
    Example:
      trireme gateway keys revoke alice --keys keys.sqlite

    \b
    Exit codes: 0 the key is revoked; 1 the database is away; 2 there is no such key, file or database.
    """
    with open_keys(keys, may_be_new=False) as store:
        record = store.revoke(key_named(key))
    if is_json:
        typer.echo(json.dumps(_told(record)))
    else:
        typer.echo(f"key {record.id} of {record.name} is revoked since {_time(record.revoked_at_s)}")


_HEADERS = ("id", "name", "state", "role", "tenant", "models", "limits", "created", "expires", "last used")


def _row(record: KeyRecord) -> tuple[str, ...]:
    return (
        record.id,
        record.name,
        record.state(time.time()),
        record.role,
        record.tenant,
        "all" if record.models is None else ", ".join(sorted(record.models)),
        _limits_shown(record.limits),
        _time(record.created_at_s) or "",
        _time(record.expires_at_s) or "never",
        _time(record.last_used_at_s) or "never",
    )


def _limits_shown(limits: KeyLimits) -> str:
    said = (
        (limits.requests_per_minute, "requests/min"),
        (limits.tokens_per_minute, "tokens/min"),
        (limits.streams, "streams"),
    )
    shown = [f"{most} {unit}" for most, unit in said if most is not None]
    budgets = ((limits.nano_usd_per_day, "day"), (limits.nano_usd_per_month, "month"))
    shown += [f"${most / _NANO:g}/{time_word}" for most, time_word in budgets if most is not None]
    return ", ".join(shown) or "none"


def _limits_told(limits: KeyLimits) -> dict[str, float | None]:
    return {
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "streams": limits.streams,
        "usd_per_day": _usd(limits.nano_usd_per_day),
        "usd_per_month": _usd(limits.nano_usd_per_month),
    }


def _usd(nano: int | None) -> float | None:
    return None if nano is None else nano / _NANO


def _told(record: KeyRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state(time.time()),
        "role": record.role.value,
        "tenant": record.tenant,
        "models": None if record.models is None else sorted(record.models),
        "limits": _limits_told(record.limits),
        "created_at": _time(record.created_at_s),
        "expires_at": _time(record.expires_at_s),
        "revoked_at": _time(record.revoked_at_s),
        "last_used_at": _time(record.last_used_at_s),
    }


def _time(at_s: int | None) -> str | None:
    return None if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
