# SPDX-License-Identifier: Apache-2.0
"""The tables of the store of rollouts, and the columns that a file of an earlier version lacks."""

import contextlib
import sqlite3

_SCHEMA = """
create table if not exists rollouts (
    id integer primary key,
    model text not null,
    plan text not null,
    phase text not null,
    step integer not null default 0,
    phase_since real not null,
    reason text not null default '',
    begun_at real not null,
    ended_at real,
    chosen integer
);
create unique index if not exists one_at_a_time on rollouts (model) where ended_at is null;
create table if not exists events (
    id integer primary key,
    rollout integer not null references rollouts (id),
    at real not null,
    who text not null,
    what text not null,
    why text not null,
    evidence text
);
create trigger if not exists events_stay before update on events begin select raise(abort, 'events stay'); end;
create trigger if not exists events_last before delete on events begin select raise(abort, 'events stay'); end;
create table if not exists wishes (
    id integer primary key,
    rollout integer not null references rollouts (id),
    wish text not null,
    who text not null,
    why text not null,
    is_taken integer not null default 0,
    release integer
);
create table if not exists evidence (
    rollout integer not null references rollouts (id),
    step integer not null,
    body text not null,
    primary key (rollout, step)
);
create table if not exists batches (
    id text primary key,
    rollout integer not null references rollouts (id),
    at real not null
);
create index if not exists batches_by_age on batches (at);
create table if not exists cursors (
    rollout integer not null references rollouts (id),
    journal text not null,
    body text not null,
    primary key (rollout, journal)
);
create table if not exists assignments (
    rollout integer not null references rollouts (id),
    arm text not null,
    unit text not null,
    first_at real not null,
    last_at real not null,
    requests integer not null,
    primary key (rollout, arm, unit)
) without rowid;
"""
# What files of earlier versions lack.
_ADDED = (("rollouts", "chosen", "integer"), ("wishes", "release", "integer"))


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables and columns that a file lacks; what is there stays as it is.

    Raises:
        sqlite3.DatabaseError: the file is none of SQLite's, or cannot be written.
    """
    db.executescript(_SCHEMA)
    for table, name, kind in _ADDED:
        if name not in {row[1] for row in db.execute(f"pragma table_info({table})")}:
            with contextlib.suppress(sqlite3.OperationalError):  # another process was quicker
                db.execute(f"alter table {table} add column {name} {kind}")
