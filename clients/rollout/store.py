# SPDX-License-Identifier: Apache-2.0
"""What is known of rollouts, on disk: one SQLite file, so that whoever is killed finds everything where it was.

A rollout's phase is written before the deed that it stands for, and every deed may be done twice. What happened is a
log that only grows; what people wish (`trireme rollout pause`) waits in it until the controller has taken it.
"""

import contextlib
import getpass
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec

from clients.rollout.state import Event, Phase, Rollout, Wish
from ensemble_configs.errors import RequestError, SpecError

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
    ended_at real
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
    is_taken integer not null default 0
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
"""
_BUSY_S = 30.0


class Store:
    """One connection; each process and thread has its own.

    Args:
        path: of the file; made if it is not there, its folder too.
        now: seconds since 1970.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._now = now
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")  # a power failure loses nothing that was told
            self._db.execute("pragma foreign_keys = on")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as exc:
            raise SpecError(
                f"{path} is no store of rollouts: {exc}; name another file with --store, or move this one away",
                file=path,
            ) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is asked any more."""
        self._db.close()

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def begin(self, model: str, plan: str, *, why: str) -> Rollout:
        """A new rollout of a model.

        Raises:
            RequestError: one is going on.
        """
        now = self._now()
        try:
            with self._change():
                number = self._db.execute(
                    "insert into rollouts (model, plan, phase, reason, phase_since, begun_at) "
                    "values (?, ?, ?, ?, ?, ?)",
                    (model, plan, Phase.STARTING, why, now, now),
                ).lastrowid
                assert number is not None
                self._log(number, "start", why, json.loads(plan))
        except sqlite3.IntegrityError as exc:
            [open_one] = [one for one in self.open_rollouts() if one.model == model]
            raise RequestError(
                f"rollout {open_one.id} of {model} is {open_one.phase}; end it with `trireme rollout abort` or "
                "`promote` first",
                field="model",
                value=model,
            ) from exc
        return self.get(number)

    def get(self, number: int) -> Rollout:
        """Raises: RequestError: there is none of that number."""
        for found in self._rollouts("where id = ?", (number,)):
            return found
        raise RequestError(f"there is no rollout {number}; `trireme rollout history` lists them", field="rollout")

    def open_rollouts(self) -> list[Rollout]:
        """Those that go on."""
        return self._rollouts("where ended_at is null", ())

    def rollouts(self) -> list[Rollout]:
        """All, the oldest first."""
        return self._rollouts("", ())

    def _rollouts(self, where: str, values: tuple[object, ...]) -> list[Rollout]:
        names = ", ".join(Rollout.__struct_fields__)
        rows = self._db.execute(f"select {names} from rollouts {where} order by id", values)
        return [
            msgspec.convert(dict(zip(Rollout.__struct_fields__, row, strict=True)), Rollout) for row in rows.fetchall()
        ]

    def enter(
        self, number: int, phase: Phase, *, why: str, step: int | None = None, evidence: object = None, who: str = ""
    ) -> Rollout:
        """The next phase, and a line in the log; both or neither."""
        now = self._now()
        with self._change():
            self._db.execute(
                "update rollouts set phase = ?, phase_since = ?, reason = ?, step = coalesce(?, step), ended_at = ? "
                "where id = ?",
                (phase, now, why, step, now if phase.is_over else None, number),
            )
            self._log(number, str(phase), why, evidence, who=who)
        return self.get(number)

    def note(self, number: int, what: str, why: str, evidence: object = None, *, who: str = "") -> None:
        """A line in the log."""
        with self._change():
            self._log(number, what, why, evidence, who=who)

    def _log(self, number: int, what: str, why: str, evidence: object, *, who: str = "") -> None:
        self._db.execute(
            "insert into events (rollout, at, who, what, why, evidence) values (?, ?, ?, ?, ?, ?)",
            (number, self._now(), who or whoami(), what, why, None if evidence is None else json.dumps(evidence)),
        )

    def events(self, number: int, *, after: int = 0) -> list[Event]:
        """Of one rollout, the oldest first; only those after the line `after`."""
        rows = self._db.execute(
            "select id, rollout, at, who, what, why, evidence from events where rollout = ? and id > ? order by id",
            (number, after),
        )
        return [
            Event(
                id=row[0],
                rollout=row[1],
                at=row[2],
                who=row[3],
                what=row[4],
                why=row[5],
                evidence=None if row[6] is None else json.loads(row[6]),
            )
            for row in rows.fetchall()
        ]

    def wish(self, number: int, wish: Wish, *, why: str) -> None:
        """Ask the controller for something.

        Raises:
            RequestError: the rollout is over.
        """
        rollout = self.get(number)
        if rollout.phase.is_over:
            raise RequestError(f"rollout {number} is {rollout.phase} already; nothing is left to {wish}", field="wish")
        with self._change():
            self._db.execute(
                "insert into wishes (rollout, wish, who, why) values (?, ?, ?, ?)", (number, wish, whoami(), why)
            )

    def next_wish(self, number: int) -> tuple[int, Wish, str, str] | None:
        """The oldest that was not taken: its id, what, who, why."""
        row = self._db.execute(
            "select id, wish, who, why from wishes where rollout = ? and not is_taken order by id limit 1", (number,)
        ).fetchone()
        return None if row is None else (row[0], Wish(row[1]), row[2], row[3])

    def take(self, wish: int) -> None:
        """It is done, or cannot be."""
        self._db.execute("update wishes set is_taken = 1 where id = ?", (wish,))

    def add_evidence(
        self, number: int, step: int, batch: str, merge: Callable[[Mapping[str, object] | None], Mapping[str, object]]
    ) -> bool:
        """Count a batch of outcomes once, however often it is sent; False: it was counted before.

        Args:
            merge: makes the new evidence of the old one, none at first.
        """
        with self._change():
            known = self._db.execute("select 1 from batches where id = ?", (batch,)).fetchone()
            if known is not None:
                return False
            self._db.execute("insert into batches (id, rollout, at) values (?, ?, ?)", (batch, number, self._now()))
            body = json.dumps(merge(self.evidence(number, step)))
            self._db.execute("insert or replace into evidence values (?, ?, ?)", (number, step, body))
        return True

    def evidence(self, number: int, step: int) -> Mapping[str, object] | None:
        """What was counted at a step; None: nothing."""
        row = self._db.execute("select body from evidence where rollout = ? and step = ?", (number, step)).fetchone()
        if row is None:
            return None
        found = json.loads(row[0])
        assert isinstance(found, dict)
        return found


def whoami() -> str:
    """Who runs this, for the log; "unknown" where the machine has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        return "unknown"
