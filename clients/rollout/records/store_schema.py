# SPDX-License-Identifier: Apache-2.0
"""The tables of the store of rollouts, in SQLite's words and in PostgreSQL's."""

_TABLES = """
create table if not exists rollouts (
    id {number},
    model text not null,
    plan text not null,
    phase text not null,
    step integer not null default 0,
    phase_since double precision not null,
    reason text not null default '',
    begun_at double precision not null,
    ended_at double precision,
    chosen integer
);
create unique index if not exists one_at_a_time on rollouts (model) where ended_at is null;
create table if not exists events (
    id {number},
    rollout integer not null references rollouts (id),
    at double precision not null,
    who text not null,
    what text not null,
    why text not null,
    evidence text
);
create table if not exists wishes (
    id {number},
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
    at double precision not null
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
    first_at double precision not null,
    last_at double precision not null,
    requests integer not null,
    primary key (rollout, arm, unit)
){without_rowid};
"""
_SQLITE_TRIGGERS = """
create trigger if not exists events_stay before update on events begin select raise(abort, 'events stay'); end;
create trigger if not exists events_last before delete on events begin select raise(abort, 'events stay'); end;
"""
# `changes_done` tells a connection that lost the answer to its commit whether the change was done.
_POSTGRES_MORE = """
create function events_stay() returns trigger language plpgsql as
    $$ begin raise exception 'events stay' using errcode = 'integrity_constraint_violation'; end $$;
create trigger events_stay before update or delete on events for each row execute function events_stay();
create trigger events_last before truncate on events for each statement execute function events_stay();
create table changes_done (
    id text primary key,
    at timestamptz not null default now()
);
create index changes_done_by_age on changes_done (at);
"""
# What files of earlier versions lack.
ADDED = (("rollouts", "chosen", "integer"), ("wishes", "release", "integer"))


def sqlite_schema() -> str:
    """Return the statements that create what a file lacks."""
    return _TABLES.format(number="integer primary key", without_rowid=" without rowid") + _SQLITE_TRIGGERS


def postgres_schema() -> str:
    """Return the statements that create everything; they fail where a table of one of these names is there."""
    number = "integer generated always as identity primary key"
    return _TABLES.format(number=number, without_rowid="").replace("if not exists ", "") + _POSTGRES_MORE
