# SPDX-License-Identifier: Apache-2.0
"""The state of a rollout: its phase, the operator commands that wait, and the lines of its logs."""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """The phases of a rollout; each word names the work in progress or its result."""

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
        """Return whether nothing will happen any more."""
        return self in (Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ENDED)


class OperatorCommand(StrEnum):
    """The commands that an operator can give to a running rollout."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one rollout.

    Attributes:
        plan: what it was started with (`clients.rollout.records.rollout_plan.Plan`), as JSON.
        step: the number of the share that holds now, from 0.
        chosen: the release that is promoted, where a person named one.
        phase_since: seconds since 1970.
        ended_at: seconds since 1970; None: it goes on.
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


class QueuedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """An operator command that waits.

    Attributes:
        release: release to be promoted; None: the only candidate.
    """

    id: int
    command: OperatorCommand = msgspec.field(name="wish")  # the column of the store
    who: str
    why: str
    release: int | None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit log."""

    id: int
    rollout: int
    at: float
    who: str
    what: str
    why: str
    evidence: object = None


class Assignment(msgspec.Struct, frozen=True):
    """A line of the assignment log.

    Attributes:
        unit: stands for a key (`ensemble_configs.split.places.unit_of`); "": requests without one.
        requests: number of the unit's requests that ended.
    """

    arm: str
    unit: str
    first_at: float
    last_at: float
    requests: int
