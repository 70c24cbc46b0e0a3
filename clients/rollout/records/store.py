# SPDX-License-Identifier: Apache-2.0
"""The store of rollouts, in a file of SQLite or in PostgreSQL, from which a controller that was killed goes on.

A rollout's phase is written before the action that it stands for, and every action may be done twice. The events are a
log that only grows; operator commands (`trireme rollout pause`) wait until the controller has taken them.
"""

import contextlib
import getpass
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import msgspec

from clients.rollout.records.assignment_log import AssignmentLog
from clients.rollout.records.database import AlreadyThere
from clients.rollout.records.open_database import open_database
from clients.rollout.records.state import Event, OperatorCommand, Phase, QueuedCommand, Rollout
from trireme.base.errors import RequestError
from trireme.base.known_types import known
from trireme.base.store_place import StorePlace

Merge = Callable[[Mapping[str, object] | None], Mapping[str, object]]

PATIENCE_S = 10.0
_BATCH_S = 3600.0  # for so long a batch is known again; clients send one again for minutes


class Store:
    """A connection to the store; each process and thread has its own.

    Args:
        place: the file, or the database; its tables are made if they are not there, a file and its folder too.
        now: seconds since 1970.
        patience_s: how long a database that went away is waited for.
        tell: reporter of messages for people while it is away.

    Attributes:
        assigned: log of which arm has answered whom.

    Raises:
        SpecError: what is there cannot be the store.
        Unavailable: the database is away; later, for longer than `patience_s`.
    """

    def __init__(
        self,
        place: StorePlace,
        now: Callable[[], float] = time.time,
        *,
        patience_s: float = PATIENCE_S,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._now = now
        self._db = open_database(place, patience_s=patience_s, tell=tell)
        self.assigned = AssignmentLog(self._db)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def driving(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock with which one process drives the store's rollouts.

        Raises:
            RequestError: another process holds it.
        """
        return self._db.driving()

    def is_driven(self) -> bool:
        """Return whether a process drives the store's rollouts."""
        return self._db.is_driven()

    def begin(self, model: str, plan: str, *, why: str) -> Rollout:
        """Add a new rollout of a model, and return it.

        Raises:
            RequestError: one is going on.
        """
        now = self._now()

        def add() -> int:
            [(number,)] = self._db.rows(
                "insert into rollouts (model, plan, phase, reason, phase_since, begun_at) values (?, ?, ?, ?, ?, ?) "
                "returning id",
                (model, plan, str(Phase.STARTING), why, now, now),
            )
            self._log(number, "start", why, json.loads(plan))
            return int(number)

        try:
            return self.get(self._db.change(add))
        except AlreadyThere as exc:
            open_one = next((one for one in self.open_rollouts() if one.model == model), None)
            if open_one is None:  # it has just ended
                return self.begin(model, plan, why=why)
            raise RequestError(
                f"rollout {open_one.id} of {model} is {open_one.phase}; `trireme rollout run` goes on with it where "
                "nobody drives it, `trireme rollout abort` ends it",
                field="model",
                value=model,
            ) from exc

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
        rows = self._db.rows(f"select {names} from rollouts {where} order by id", values)
        return [msgspec.convert(dict(zip(Rollout.__struct_fields__, row, strict=True)), known(Rollout)) for row in rows]

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

        def write() -> None:
            self._db.write(
                "update rollouts set phase = ?, phase_since = ?, reason = ?, step = coalesce(?, step), "
                "chosen = coalesce(?, chosen), ended_at = ? where id = ?",
                (str(phase), now, why, step, chosen, now if phase.is_over else None, number),
            )
            self._log(number, str(phase), why, evidence, who=who)

        self._db.change(write, rollout=number)
        return self.get(number)

    def note(self, number: int, what: str, why: str, evidence: object = None, *, who: str = "") -> None:
        """Write a line in the log."""
        self._db.change(lambda: self._log(number, what, why, evidence, who=who), rollout=number)

    def _log(self, number: int, what: str, why: str, evidence: object, *, who: str = "") -> None:
        self._db.write(
            "insert into events (rollout, at, who, what, why, evidence) values (?, ?, ?, ?, ?, ?)",
            (number, self._now(), who or whoami(), what, why, None if evidence is None else json.dumps(evidence)),
        )

    def events(self, number: int, *, after: int = 0) -> list[Event]:
        """Return the log of one rollout after the line `after`, the oldest line first."""
        rows = self._db.rows(
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
            for row in rows
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
        query = "insert into wishes (rollout, wish, who, why, release) values (?, ?, ?, ?, ?)"
        values = (number, str(command), whoami(), why, release)
        self._db.change(lambda: self._db.write(query, values), rollout=number)

    def next_command(self, number: int) -> QueuedCommand | None:
        """Return the oldest command that was not taken; None: there is none."""
        names = QueuedCommand.__struct_encode_fields__
        rows = self._db.rows(
            f"select {', '.join(names)} from wishes where rollout = ? and is_taken = 0 order by id limit 1", (number,)
        )
        return msgspec.convert(dict(zip(names, rows[0], strict=True)), known(QueuedCommand)) if rows else None

    def take(self, command: int) -> None:
        """Mark a command as taken, when it is done or was refused."""
        self._db.change(lambda: self._db.write("update wishes set is_taken = 1 where id = ?", (command,)))

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
        now, units = self._now(), list(assigned)

        def count() -> bool:
            if self._db.rows("select 1 from batches where id = ?", (batch,)):
                return False
            self._db.write("delete from batches where at < ?", (now - _BATCH_S,))
            self._db.write("insert into batches (id, rollout, at) values (?, ?, ?)", (batch, number, now))
            self.assigned.add(number, units, now=now)
            self._merge(number, step, merge)
            return True

        return self._db.change(count, rollout=number)

    def journals(self, number: int) -> list[str]:
        """Return the journals of outcomes of which a part has been counted."""
        return [str(row[0]) for row in self._db.rows("select journal from cursors where rollout = ?", (number,))]

    def cursor(self, number: int, journal: str) -> dict[str, int]:
        """Return how far each file of a journal of outcomes has been counted."""
        query = "select body from cursors where rollout = ? and journal = ?"
        rows = self._db.rows(query, (number, journal))
        return msgspec.json.decode(rows[0][0], type=dict[str, int]) if rows else {}

    def add_journal(
        self,
        number: int,
        journal: str,
        cursor: Mapping[str, int],
        merges: Mapping[int, Merge],
        *,
        after: Mapping[str, int],
        assigned: Iterable[tuple[str, str]] = (),
    ) -> bool:
        """Count a part of a journal, and move its cursor behind that part: both or neither.

        It is not counted, and the answer is False, where the cursor is not before that part: somebody has counted it.

        Args:
            cursor, after: the cursor behind the part, and before it.
            merges: for each step, makes the new evidence of the old one, none at first.
            assigned: arm and unit of each request, for the assignment log.
        """
        now, units, body = self._now(), list(assigned), msgspec.json.encode(dict(cursor)).decode()

        def count() -> bool:
            if self.cursor(number, journal) != after:
                return False
            for step, merge in merges.items():
                self._merge(number, step, merge)
            self.assigned.add(number, units, now=now)
            self._db.write(
                "insert into cursors values (?, ?, ?) "
                "on conflict (rollout, journal) do update set body = excluded.body",
                (number, journal, body),
            )
            return True

        return self._db.change(count, rollout=number)

    def _merge(self, number: int, step: int, merge: Merge) -> None:
        body = json.dumps(merge(self.evidence(number, step)))
        self._db.write(
            "insert into evidence values (?, ?, ?) on conflict (rollout, step) do update set body = excluded.body",
            (number, step, body),
        )

    def evidence(self, number: int, step: int) -> Mapping[str, object] | None:
        """Return what was counted at a step; None: nothing."""
        rows = self._db.rows("select body from evidence where rollout = ? and step = ?", (number, step))
        if not rows:
            return None
        found = json.loads(rows[0][0])
        assert isinstance(found, dict)
        return found


def watched_step(step: int) -> int:
    """Return the number under which a step's outcomes are kept that decide nothing."""
    return -1 - step


def whoami() -> str:
    """Return the user's name for the log; "unknown" where the machine has no name for the user id."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        return "unknown"
