# SPDX-License-Identifier: Apache-2.0
"""The store of rollouts: one SQLite file, from which a controller that was killed goes on.

A rollout's phase is written before the action that it stands for, and every action may be done twice. The events are a
log that only grows; operator commands (`trireme rollout pause`) wait until the controller has taken them.
"""

import contextlib
import getpass
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec

from clients.rollout.records.state import Assignment, Event, OperatorCommand, Phase, QueuedCommand, Rollout
from clients.rollout.records.store_schema import create_tables
from trireme.base.errors import RequestError, SpecError

Merge = Callable[[Mapping[str, object] | None], Mapping[str, object]]

_BUSY_S = 30.0
_BATCH_S = 3600.0  # for so long a batch is known again; clients send one again for minutes


class Store:
    """A connection to the file; each process and thread has its own.

    Args:
        path: the file; made if it is not there, its folder too.
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
            create_tables(self._db)
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
        """Close the connection."""
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
        """Add a new rollout of a model, and return it.

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
                f"rollout {open_one.id} of {model} is {open_one.phase}; `trireme rollout run` goes on with it where "
                "nobody drives it, `trireme rollout abort` ends it",
                field="model",
                value=model,
            ) from exc
        return self.get(number)

    def get(self, number: int) -> Rollout:
        """Return the rollout with a number.

        Raises:
            RequestError: there is none with that number.
        """
        for found in self._rollouts("where id = ?", (number,)):
            return found
        raise RequestError(f"there is no rollout {number}; `trireme rollout history` lists them", field="rollout")

    def open_rollouts(self) -> list[Rollout]:
        """Return the rollouts that go on."""
        return self._rollouts("where ended_at is null", ())

    def rollouts(self) -> list[Rollout]:
        """Return all rollouts, the oldest first."""
        return self._rollouts("", ())

    def _rollouts(self, where: str, values: tuple[object, ...]) -> list[Rollout]:
        names = ", ".join(Rollout.__struct_fields__)
        rows = self._db.execute(f"select {names} from rollouts {where} order by id", values)
        return [
            msgspec.convert(dict(zip(Rollout.__struct_fields__, row, strict=True)), Rollout) for row in rows.fetchall()
        ]

    def enter(
        self,
        number: int,
        phase: Phase,
        *,
        why: str,
        step: int | None = None,
        chosen: int | None = None,
        evidence: object = None,
        who: str = "",
    ) -> Rollout:
        """Write the next phase and a line in the log, both or neither, and return the rollout."""
        now = self._now()
        with self._change():
            self._db.execute(
                "update rollouts set phase = ?, phase_since = ?, reason = ?, step = coalesce(?, step), "
                "chosen = coalesce(?, chosen), ended_at = ? where id = ?",
                (phase, now, why, step, chosen, now if phase.is_over else None, number),
            )
            self._log(number, str(phase), why, evidence, who=who)
        return self.get(number)

    def note(self, number: int, what: str, why: str, evidence: object = None, *, who: str = "") -> None:
        """Write a line in the log."""
        with self._change():
            self._log(number, what, why, evidence, who=who)

    def _log(self, number: int, what: str, why: str, evidence: object, *, who: str = "") -> None:
        self._db.execute(
            "insert into events (rollout, at, who, what, why, evidence) values (?, ?, ?, ?, ?, ?)",
            (number, self._now(), who or whoami(), what, why, None if evidence is None else json.dumps(evidence)),
        )

    def events(self, number: int, *, after: int = 0) -> list[Event]:
        """Return the log of one rollout after the line `after`, the oldest line first."""
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

    def queue_command(self, number: int, command: OperatorCommand, *, why: str, release: int | None = None) -> None:
        """Queue a command for the controller.

        Args:
            release: release to be promoted; None: the only candidate.

        Raises:
            RequestError: the rollout is over.
        """
        rollout = self.get(number)
        if rollout.phase.is_over:
            raise RequestError(
                f"rollout {number} is {rollout.phase} already; nothing is left to {command}", field="command"
            )
        with self._change():
            self._db.execute(
                "insert into wishes (rollout, wish, who, why, release) values (?, ?, ?, ?, ?)",
                (number, command, whoami(), why, release),
            )

    def next_command(self, number: int) -> QueuedCommand | None:
        """Return the oldest command that was not taken; None: there is none."""
        names = QueuedCommand.__struct_encode_fields__
        row = self._db.execute(
            f"select {', '.join(names)} from wishes where rollout = ? and not is_taken order by id limit 1", (number,)
        ).fetchone()
        return None if row is None else msgspec.convert(dict(zip(names, row, strict=True)), QueuedCommand)

    def take(self, command: int) -> None:
        """Mark a command as taken, when it is done or was refused."""
        self._db.execute("update wishes set is_taken = 1 where id = ?", (command,))

    def add_evidence(
        self,
        number: int,
        step: int,
        batch: str,
        merge: Merge,
        *,
        assigned: Iterable[tuple[str, str]] = (),
    ) -> bool:
        """Count a batch of outcomes once, however often it is sent; False: it was counted before.

        Args:
            merge: makes the new evidence of the old one, none at first.
            assigned: arm and unit of each of its requests, for the assignment log.
        """
        now = self._now()
        with self._change():
            known = self._db.execute("select 1 from batches where id = ?", (batch,)).fetchone()
            if known is not None:
                return False
            self._db.execute("delete from batches where at < ?", (now - _BATCH_S,))
            self._db.execute("insert into batches (id, rollout, at) values (?, ?, ?)", (batch, number, now))
            self._assign(number, assigned)
            self._merge(number, step, merge)
        return True

    def journals(self, number: int) -> list[str]:
        """Return the journals of outcomes of which a part has been counted."""
        rows = self._db.execute("select journal from cursors where rollout = ?", (number,))
        return [str(row[0]) for row in rows.fetchall()]

    def cursor(self, number: int, journal: str) -> dict[str, int]:
        """Return how far each file of a journal of outcomes has been counted."""
        query = "select body from cursors where rollout = ? and journal = ?"
        row = self._db.execute(query, (number, journal)).fetchone()
        return {} if row is None else msgspec.json.decode(row[0], type=dict[str, int])

    def add_journal(
        self,
        number: int,
        journal: str,
        cursor: Mapping[str, int],
        merges: Mapping[int, Merge],
        *,
        assigned: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Count a part of a journal, and move its cursor behind that part: both or neither.

        Args:
            merges: for each step, makes the new evidence of the old one, none at first.
            assigned: arm and unit of each request, for the assignment log.
        """
        with self._change():
            for step, merge in merges.items():
                self._merge(number, step, merge)
            self._assign(number, assigned)
            body = msgspec.json.encode(dict(cursor)).decode()
            self._db.execute("insert or replace into cursors values (?, ?, ?)", (number, journal, body))

    def _merge(self, number: int, step: int, merge: Merge) -> None:
        body = json.dumps(merge(self.evidence(number, step)))
        self._db.execute("insert or replace into evidence values (?, ?, ?)", (number, step, body))

    def _assign(self, number: int, assigned: Iterable[tuple[str, str]]) -> None:
        now = self._now()
        self._db.executemany(
            "insert into assignments values (?, ?, ?, ?, ?, 1) on conflict do update "
            "set last_at = excluded.last_at, requests = requests + 1",
            [(number, arm, unit, now, now) for arm, unit in assigned],
        )

    def evidence(self, number: int, step: int) -> Mapping[str, object] | None:
        """Return what was counted at a step; None: nothing."""
        row = self._db.execute("select body from evidence where rollout = ? and step = ?", (number, step)).fetchone()
        if row is None:
            return None
        found = json.loads(row[0])
        assert isinstance(found, dict)
        return found

    def units_by_arm(self, number: int) -> dict[str, int]:
        """Return how many units were given to each arm: keys, and requests without a key."""
        query = (
            "select arm, sum(case when unit = '' then requests else 1 end) from assignments "
            "where rollout = ? group by arm"
        )
        return dict(self._db.execute(query, (number,)).fetchall())

    def num_units_on_several_arms(self, number: int) -> int:
        """Return the number of keys that more than one arm has answered, though each belongs to one arm."""
        query = (
            "select count(*) from (select unit from assignments where rollout = ? and unit != '' "
            "group by unit having count(*) > 1)"
        )
        return int(self._db.execute(query, (number,)).fetchone()[0])

    def assignments(self, number: int) -> Iterator[Assignment]:
        """Yield the assignment log; requests without a key are one row of each arm, with the unit ""."""
        names = Assignment.__struct_fields__
        query = f"select {', '.join(names)} from assignments where rollout = ? order by first_at, unit, arm"
        for row in self._db.execute(query, (number,)):
            yield Assignment(*row)


def watched_step(step: int) -> int:
    """Return the number under which a step's outcomes are kept that decide nothing."""
    return -1 - step


def whoami() -> str:
    """Return the user's name for the log; "unknown" where the machine has no name for the user id."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        return "unknown"
