# SPDX-License-Identifier: Apache-2.0
"""The assignment log of an A/B test: which arm has answered each unit (a key, or a request without one), how often."""

from collections.abc import Iterable, Iterator

from clients.rollout.records.database import Database
from clients.rollout.records.state import Assignment


class AssignmentLog:
    """The assignments of a store's rollouts.

    Args:
        db: connection of the store.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, number: int, assigned: Iterable[tuple[str, str]], *, now: float) -> None:
        """Count requests, in a change: the arm and the unit of each."""
        self._db.write_many(
            "insert into assignments values (?, ?, ?, ?, ?, 1) on conflict (rollout, arm, unit) do update "
            "set last_at = excluded.last_at, requests = assignments.requests + 1",
            [(number, arm, unit, now, now) for arm, unit in assigned],
        )

    def units_by_arm(self, number: int) -> dict[str, int]:
        """Return how many units were given to each arm: keys, and requests without a key."""
        query = (
            "select arm, sum(case when unit = '' then requests else 1 end) from assignments "
            "where rollout = ? group by arm"
        )
        return dict(self._db.rows(query, (number,)))

    def num_units_on_several_arms(self, number: int) -> int:
        """Return the number of keys that more than one arm has answered, though each belongs to one arm."""
        query = (
            "select count(*) from (select unit from assignments where rollout = ? and unit != '' "
            "group by unit having count(*) > 1) as several"
        )
        return int(self._db.rows(query, (number,))[0][0])

    def rows(self, number: int) -> Iterator[Assignment]:
        """Yield the log of a rollout; requests without a key are one row of each arm, with the unit ""."""
        names = Assignment.__struct_fields__
        query = f"select {', '.join(names)} from assignments where rollout = ? order by first_at, unit, arm"
        for row in self._db.stream(query, (number,)):
            yield Assignment(*row)
