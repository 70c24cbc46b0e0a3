# SPDX-License-Identifier: Apache-2.0
"""The state of the rollout that goes on, or of the last one, read in the store where `trireme rollout` keeps it."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from clients.rollout.judging.judges import judge_of
from clients.rollout.records.open_database import is_there
from clients.rollout.records.rollout_plan import Mode, Plan, read_plan
from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from clients.rollout.traffic import share_now
from trireme.base.errors import ServingError
from trireme.base.store_place import StorePlace

ROLLOUTS_OPTION = "--rollouts"
_FRESH_S = 3.0  # a judgement takes milliseconds of a core
_PATIENCE_S = 2.0


class RolloutState(msgspec.Struct, frozen=True):
    """The state of one rollout.

    Attributes:
        share: of the requests that the candidate gets now, 0 to 1; in an A/B test all candidates.
        shares: of a canary or a shadow, one after the other.
        arms: of an A/B test, with their shares.
        is_driven: a process drives it; if none does, all requests go to the stable release.
        verdict, judgement, judged_requests: of the gate: its word, its sentence, and the requests of each arm.
        begun_at, phase_since, ended_at: seconds since 1970.
    """

    id: int
    model: str
    mode: str
    phase: str
    is_over: bool
    reason: str
    stable: int
    candidates: list[int]
    share: float
    shares: list[float]
    step: int
    arms: dict[str, float]
    is_driven: bool
    verdict: str
    judgement: str
    judged_requests: int
    step_requests: int
    begun_at: float
    phase_since: float
    ended_at: float | None


class RolloutView(msgspec.Struct, frozen=True):
    """The state of the rollouts of a store.

    Attributes:
        why_not: why it cannot be read; "": it can.
        rollout: that goes on, or the last one; None: there was none.
    """

    why_not: str
    rollout: RolloutState | None = None


class Rollouts:
    """The rollouts of a store.

    Args:
        place: of the store, which need not be there yet.
        now_s: seconds of a clock that nobody sets.
    """

    def __init__(self, place: StorePlace, now_s: Callable[[], float] = time.monotonic) -> None:
        self._place, self._now_s = place, now_s
        self._lock = asyncio.Lock()
        self._shown, self._read_s = RolloutView("it was not read yet"), -_FRESH_S

    async def view(self) -> RolloutView:
        """Return the state, at most some seconds old."""
        async with self._lock:
            if self._now_s() - self._read_s >= _FRESH_S:
                self._shown = await asyncio.to_thread(read_rollouts, self._place)
                self._read_s = self._now_s()
        return self._shown


def read_rollouts(place: StorePlace) -> RolloutView:
    """Return the state of a store's rollouts."""
    try:
        if not is_there(place):  # nobody has begun a rollout
            return RolloutView("")
        with Store(place, patience_s=_PATIENCE_S) as kept:
            found = kept.open_rollouts() or kept.rollouts()[-1:]
            return RolloutView("", _state(kept, found[-1]) if found else None)
    except ServingError as exc:
        return RolloutView(exc.message)


def _state(kept: Store, rollout: Rollout) -> RolloutState:
    plan = read_plan(rollout.plan)
    judgement = judge_of(plan).judge(kept.evidence(rollout.id, rollout.step))
    return RolloutState(
        id=rollout.id,
        model=rollout.model,
        mode=plan.mode,
        phase=rollout.phase,
        is_over=rollout.phase.is_over,
        reason=rollout.reason,
        stable=plan.stable,
        candidates=list(plan.candidates),
        share=_share(rollout, plan),
        shares=[] if plan.mode is Mode.AB else list(plan.shares),
        step=rollout.step,
        arms=plan.arms if plan.mode is Mode.AB else {},
        is_driven=kept.is_driven(),
        verdict=judgement.verdict,
        judgement=judgement.reason,
        judged_requests=judgement.num_requests,
        step_requests=plan.step_requests,
        begun_at=rollout.begun_at,
        phase_since=rollout.phase_since,
        ended_at=rollout.ended_at,
    )


def _share(rollout: Rollout, plan: Plan) -> float:
    if plan.mode is not Mode.AB:
        return share_now(rollout, plan)
    return 0.0 if rollout.phase.is_over else sum(plan.arm_shares[1:])
