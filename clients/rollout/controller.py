# SPDX-License-Identifier: Apache-2.0
"""What drives a rollout: it looks where the rollout stands, does the next thing, and looks again.

A phase is written before what it stands for is done, and everything that is done may be done twice: whoever starts the
controller again after it was killed goes on from the phase. The order keeps every request whole. Forward: the
candidate is loaded and answers; shares grow as the gate allows; `ensemble` takes the new release; clients are sent
there and their leases wait out; then the old release goes. Back: the share is zero, leases wait out, the candidate
goes.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from clients.rollout.gate.gate import Judgement
from clients.rollout.plan import Plan, gate_spec_of, read_plan
from clients.rollout.state import Phase, Rollout, Wish
from clients.rollout.store import Store
from ensemble_configs.errors import ServingError, Unavailable


class Gate(Protocol):
    """Judges evidence, and says nothing else."""

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        """Of all that was counted so far."""


class Server(Protocol):
    """Where releases are served. Each call says where to, so that saying it twice changes nothing."""

    def add(self, release: Mapping[str, object]) -> None:
        """Load a release as the candidate."""

    def try_out(self) -> None:
        """Let the candidate answer as many requests as it takes at a time.

        Raises:
            ServingError: it does not answer as a release should.
        """

    def promote(self, number: int) -> None:
        """Serve it to whoever names no release."""

    def settle(self) -> None:
        """No candidate any more."""

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        """Unload a release once its streams have ended."""

    def lives(self) -> Mapping[str, object]:
        """What changes when the candidate's process is not the same any more.

        Raises:
            Unavailable: the server does not answer.
        """


class Controller:
    """Of one rollout. `tick` is called again and again, by one process at a time.

    Args:
        number: of the rollout.
        now: seconds since 1970.
        tell: is told what happens, for a person.
    """

    def __init__(
        self,
        store: Store,
        number: int,
        server: Server,
        gate: Gate,
        *,
        now: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._number = number
        self._server = server
        self._gate = gate
        self._now = now
        self._tell = tell
        self._last_told = ""
        self.plan: Plan = read_plan(store.get(number).plan)
        self._max_requests = gate_spec_of(self.plan).max_requests

    def tick(self) -> Rollout:
        """Do what is to be done now, if anything; the rollout as it stands then."""
        rollout = self._store.get(self._number)
        if rollout.phase.is_over:
            return rollout
        rollout = self._take_wish(rollout)
        try:
            return _DEEDS[rollout.phase](self, rollout)
        except Unavailable as exc:  # it is started again by whoever watches it
            self._tell_once(f"waiting for the server: {exc.message}")
        except ServingError as exc:
            if rollout.phase is Phase.PROMOTING:  # `ensemble` serves what it did
                return self._enter(Phase.ROLLING_BACK, f"the candidate could not be promoted: {exc.message}")
            self._tell_once(f"{rollout.phase}: {exc.message}; trying again")
        return self._store.get(self._number)

    def _tell_once(self, text: str) -> None:
        """What is the case at every look is said at the first."""
        if text != self._last_told:
            self._tell(text)
        self._last_told = text

    def _take_wish(self, rollout: Rollout) -> Rollout:
        found = self._store.next_wish(self._number)
        if found is None:
            return rollout
        wish, what, who, why = found
        phase = _WISHES.get((rollout.phase, what))
        if phase is None:
            self._store.note(self._number, f"{what} refused", f"the rollout is {rollout.phase}", who=who)
        else:
            rollout = self._enter(phase, why or f"{what} was asked for", who=who)
        self._store.take(wish)
        return rollout

    def _enter(
        self, phase: Phase, why: str, *, step: int | None = None, evidence: object = None, who: str = ""
    ) -> Rollout:
        self._tell(f"{phase}: {why}")
        return self._store.enter(self._number, phase, why=why, step=step, evidence=evidence, who=who)

    def _start(self, rollout: Rollout) -> Rollout:
        del rollout
        try:
            self._server.add(self.plan.release)
            self._server.try_out()
        except Unavailable:
            raise
        except ServingError as exc:
            return self._enter(Phase.ROLLING_BACK, f"the candidate could not be started: {exc.message}")
        return self._enter(Phase.RUNNING, self._share_text(0), step=0, evidence={"lives": dict(self._server.lives())})

    def _share_text(self, step: int) -> str:
        return f"{100 * self.plan.shares[step]:g} % of the requests to release {self.plan.candidate}"

    def _watch(self, rollout: Rollout) -> Rollout:
        """Of a candidate that takes requests, whether its share may grow or not."""
        if self._server.lives() != self._lives_at_start():
            return self._enter(
                Phase.ROLLING_BACK, "the candidate's engine ended or was started again while it took requests"
            )
        judgement = self._gate.judge(self._store.evidence(self._number, rollout.step))
        if judgement.verdict == "fail":
            return self._enter(Phase.ROLLING_BACK, judgement.reason, evidence=judgement.report)
        if rollout.phase is Phase.RUNNING:
            return self._grow(rollout, judgement)
        return rollout

    def _grow(self, rollout: Rollout, judgement: Judgement) -> Rollout:
        is_last = rollout.step >= len(self.plan.shares) - 2  # what follows is all
        if is_last and judgement.verdict == "pass":
            return self._enter(Phase.PROMOTING, judgement.reason, evidence=judgement.report)
        if judgement.verdict != "pass" and judgement.num_requests >= self._max_requests:
            why = f"no verdict after {judgement.num_requests} requests of each arm: {judgement.reason}"
            return self._enter(Phase.HELD, why, evidence=judgement.report)
        if not is_last and judgement.num_requests >= self.plan.step_requests:
            step = rollout.step + 1
            return self._enter(Phase.RUNNING, self._share_text(step), step=step, evidence=judgement.report)
        return rollout

    def _lives_at_start(self) -> object:
        for event in self._store.events(self._number):
            if isinstance(event.evidence, dict) and "lives" in event.evidence:
                return event.evidence["lives"]
        raise AssertionError("a rollout that runs has begun")

    def _promote(self, rollout: Rollout) -> Rollout:
        del rollout
        self._server.promote(self.plan.candidate)
        return self._enter(Phase.SETTLING, f"release {self.plan.candidate} is the stable one")

    def _settle(self, rollout: Rollout) -> Rollout:
        if not self._leases_are_over(rollout):
            return rollout
        self._server.settle()
        if not self.plan.is_keeping_old:
            self._server.remove(self.plan.stable, drain_timeout_s=self.plan.drain_timeout_s)
        return self._enter(Phase.PROMOTED, f"release {self.plan.candidate} serves all")

    def _roll_back(self, rollout: Rollout) -> Rollout:
        if not self._leases_are_over(rollout):
            return rollout
        self._server.remove(self.plan.candidate, drain_timeout_s=self.plan.drain_timeout_s)
        return self._enter(Phase.ROLLED_BACK, rollout.reason)

    def _leases_are_over(self, rollout: Rollout) -> bool:
        """Every client has been told of this phase, or has lost its lease and goes to the stable release."""
        return self._now() >= rollout.phase_since + self.plan.lease_s


_DEEDS: Mapping[Phase, Callable[[Controller, Rollout], Rollout]] = {
    Phase.STARTING: Controller._start,
    Phase.RUNNING: Controller._watch,
    Phase.PAUSED: Controller._watch,
    Phase.HELD: Controller._watch,
    Phase.PROMOTING: Controller._promote,
    Phase.SETTLING: Controller._settle,
    Phase.ROLLING_BACK: Controller._roll_back,
}
_WISHES: Mapping[tuple[Phase, Wish], Phase] = {
    (Phase.RUNNING, Wish.PAUSE): Phase.PAUSED,
    (Phase.PAUSED, Wish.RESUME): Phase.RUNNING,
    (Phase.HELD, Wish.RESUME): Phase.RUNNING,
    **{(phase, Wish.PROMOTE): Phase.PROMOTING for phase in (Phase.RUNNING, Phase.PAUSED, Phase.HELD)},
    **{(phase, Wish.ABORT): Phase.ROLLING_BACK for phase in (Phase.STARTING, Phase.RUNNING, Phase.PAUSED, Phase.HELD)},
}


def share_now(rollout: Rollout, plan: Plan) -> float:
    """The candidate's share of the requests, as clients are told; the stable name serves the rest."""
    match rollout.phase:
        case Phase.RUNNING | Phase.PAUSED | Phase.HELD:
            return plan.shares[rollout.step]
        case Phase.PROMOTING:
            return plan.shares[-1]
    return 0.0
