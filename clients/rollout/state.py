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
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"

    @property
    def is_over(self) -> bool:
        """Nothing will happen any more."""
        return self in (Phase.PROMOTED, Phase.ROLLED_BACK)


class Wish(StrEnum):
    """What a person can ask of a running rollout."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout as it stands.

    Attributes:
        plan: what it was started with (`clients.rollout.plan.Plan`), as JSON.
        step: the number of the share that holds now, from 0.
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


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit log."""

    id: int
    rollout: int
    at: float
    who: str
    what: str
    why: str
    evidence: object = None
