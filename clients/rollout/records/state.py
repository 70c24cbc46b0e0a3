# SPDX-License-Identifier: Apache-2.0
"""What can be said of a rollout: where it stands, what people ask of it, and what happened."""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """Where a rollout is; the word for what is being done or for what came of it."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    HELD = "held"
    PROMOTING = "promoting"
    SETTLING = "settling"
    ROLLING_BACK = "rolling_back"
    ENDING = "ending"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    ENDED = "ended"

    @property
    def is_over(self) -> bool:
        """Nothing will happen any more."""
        return self in (Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ENDED)


class Wish(StrEnum):
    """What a person can ask of a running rollout."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout as it stands.

    Attributes:
        plan: what it was started with (`clients.rollout.records.rollout_plan.Plan`), as JSON.
        step: the number of the share that holds now, from 0.
        chosen: the release that is promoted, where a person named one.
        phase_since: seconds since 1970.
        ended_at: the same; None: it goes on.
    """

    id: int
    model: str
    plan: str
    phase: Phase
    step: int
    phase_since: float
    reason: str
    begun_at: float
    ended_at: float | None
    chosen: int | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A wish that waits.

    Attributes:
        release: to be promoted; None: the only candidate.
    """

    id: int
    wish: Wish
    who: str
    why: str
    release: int | None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit log."""

    id: int
    rollout: int
    at: float
    who: str
    what: str
    why: str
    evidence: object = None


class Assignment(msgspec.Struct, frozen=True):
    """One line of the assignment log.

    Attributes:
        unit: stands for a key (`clients.rollout.routing.split.unit_of`); "": requests without one.
        requests: of it, that ended.
    """

    arm: str
    unit: str
    first_at: float
    last_at: float
    requests: int
