# SPDX-License-Identifier: Apache-2.0
"""Connections to PostgreSQL that lose nothing which was told, and what is wrong where there is none."""

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trireme.base.errors import ServingError, SpecError, Unavailable
from trireme.base.store_place import PostgresPlace

Connection = psycopg.Connection[tuple[object, ...]]

OLDEST = 14
_CONNECT_S = 5
# Of a machine that vanished, the lock and open transactions are free some 25 s later; of a process that hangs in a
# transaction, after 60 s.
_SETTINGS = {
    "client_min_messages": "warning",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

# What libpq says has no code: by its text.
_HINTS = (
    (
        ("password authentication failed", "no password supplied"),
        "give the right password: PGPASSWORD, or a line of ~/.pgpass (PGPASSFILE names another file)",
    ),
    (("no pg_hba.conf entry", "pg_hba.conf rejects"), "let this machine and user in, in the server's pg_hba.conf"),
    (('FATAL: role "',), "name a user that there is"),
    (('FATAL: database "',), "make it with `createdb`, or name another one"),
    (("certificate", "SSL ", "root.crt"), "see sslmode, sslrootcert and sslcert of PostgreSQL's connection URLs"),
    (("permission denied",), "grant the user the right to connect"),
)


def connect(place: PostgresPlace, name: str, *, silence_s: float | None = None) -> Connection:
    """Return a connection to a server that takes changes, each statement a transaction of its own.

    Args:
        name: what the server's list of sessions shows.
        silence_s: how long the server's machine may leave what is sent unconfirmed; None: minutes, as Linux has it.

    Raises:
        SpecError: the place is wrong, or the server is none that a store can use.
        Unavailable: the server is away, or does not take changes.
    """
    try:
        given = conninfo_to_dict(place.url)
        db = psycopg.connect(
            place.url,
            autocommit=True,
            prepare_threshold=None,
            client_encoding="utf8",
            application_name=name,
            connect_timeout=int(given.get("connect_timeout") or _CONNECT_S),
            target_session_attrs=given.get("target_session_attrs") or "read-write",  # after a failover, the new primary
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=0 if silence_s is None else round(1000 * silence_s),  # 0: Linux' own
        )
    except (psycopg.ProgrammingError, ValueError):  # it may quote the password
        raise SpecError(
            f"{place.option} {place} is no address that PostgreSQL's library understands; it must look like "
            "postgresql://USER@HOST:PORT/DATABASE",
            field=place.field,
        ) from None
    except psycopg.OperationalError as exc:
        raise _refusal(place, exc) from None
    try:
        _check(db, place)
        db.execute(f"select {', '.join(['set_config(%s, %s, false)'] * len(_SETTINGS))}".encode(), _pairs(_SETTINGS))
        # A power failure loses nothing that was told, whatever the server's default is.
        db.execute(
            "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
        )
    except psycopg.Error as exc:
        db.close()
        raise away(place, exc) from None
    except BaseException:
        db.close()
        raise
    return db


def _pairs(settings: dict[str, str]) -> list[str]:
    return [each for pair in settings.items() for each in pair]


def _check(db: Connection, place: PostgresPlace) -> None:
    version = db.info.server_version // 10_000
    if version < OLDEST:
        raise SpecError(
            f"{place.option} {place} is PostgreSQL {version}; it must be {OLDEST} or later: take a newer "
            "server, or a file",
            field=place.field,
            value=version,
        )
    encoding = db.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SpecError(
            f"{place.option} {place} has the encoding {encoding}, which does not hold every text; make a database with "
            "`createdb --encoding UTF8 --template template0`",
            field=place.field,
            value=encoding,
        )


def _refusal(place: PostgresPlace, exc: psycopg.Error) -> ServingError:
    text = plain(place, exc)
    for words, hint in _HINTS:
        if any(word in text for word in words):
            return SpecError(f"{place.option} {place} cannot be opened: {text}; {hint}", field=place.field)
    return away(place, exc)


def away(place: PostgresPlace, exc: psycopg.Error) -> Unavailable:
    """Return the error of a server that is away."""
    return Unavailable(
        f"the store {place} is away: {plain(place, exc)}; is the server there, and is {place.option} its address?",
        reason="store_away",
    )


def plain(place: PostgresPlace, exc: psycopg.Error) -> str:
    """Return what an error says, on one line and without a password."""
    said, _, _ = " ".join(str(exc).split()).partition(" Is the server running on that host")
    return place.without_passwords(said) or type(exc).__name__
