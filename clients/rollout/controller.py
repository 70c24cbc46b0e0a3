# SPDX-License-Identifier: Apache-2.0
"""The controller of a rollout: it reads the phase, does what the phase asks for, and looks again.

A phase is written before what it stands for is done, and everything that is done may be done twice: whoever starts the
controller again after it was killed goes on from the phase. The order keeps every request whole. Forward: the
candidate is loaded and answers; shares grow as the gate allows; `ensemble` takes the new release; clients are sent
there and their leases wait out; then the old release goes. Back: the share is zero, leases wait out, the candidates
go.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from typing import Protocol

from clients.rollout.judging.judges import Judge
from clients.rollout.judging.replay import PromptScores
from clients.rollout.judging.sample_ratio import mismatch
from clients.rollout.judging.trial import Trial
from clients.rollout.next_move import Move, next_move, share_text
from clients.rollout.operator_commands import phase_after
from clients.rollout.records.held_out import HeldOut
from clients.rollout.records.rollout_plan import Mode, Plan, gate_spec_of, num_prompts_needed, read_plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.steering import Leases, Steering
from clients.rollout.weights.weights import RouteTaken, WeightsRefused
from clients.rollout_gate.gate import Gate
from trireme.base.errors import RequestError, ServingError, Unavailable

_COUNT_PERIOD_S = 10.0


class Server(Protocol):
    """The server, or servers, that releases are loaded on.

    Each call names its goal, so a repeated call changes nothing.
    """

    def add(self, release: Mapping[str, object], *, is_canary: bool) -> None:
        """Load a release on trial.

        Args:
            is_canary: `ensemble_canary` serves the release; otherwise only requests that name the release reach it.
        """

    def try_out(self, number: int) -> None:
        """Let a release on trial answer as many requests as it takes at a time.

        Raises:
            ServingError: it does not answer as a release should.
        """

    def replay(self, held_out: HeldOut, number: int) -> Generator[list[PromptScores], None, None]:
        """Ask a release on trial and the stable one the held-out prompts.

        Yields:
            scores as they come, some or none at least every second.

        Raises:
            ServingError: the file has changed since the rollout began.
        """

    def promote(self, number: int) -> None:
        """Serve a release to requests that name no release."""

    def settle(self) -> None:
        """End the trial of all releases; all of them stay loaded."""

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        """Unload a release once its streams have ended."""

    def lives(self) -> Mapping[str, object]:
        """Return the engine processes on trial; a change says that one of them ended.

        Raises:
            Unavailable: the server does not answer.
        """


_ENGINE_ENDED = "the candidate's engine ended or was started again while it took requests"


class Controller:
    """The controller of one rollout.

    One process at a time calls `tick` again and again.

    Args:
        number: number of the rollout.
        scores_judge: judge of the held-out prompts; None: the gate.
        steering: what sends requests by the phase; None: clients or a server, which hold leases.
        now: clock, seconds since 1970.
        tell: reporter of messages for people.
    """

    def __init__(
        self,
        store: Store,
        number: int,
        server: Server,
        judge: Judge,
        *,
        scores_judge: Judge | None = None,
        steering: Steering | None = None,
        now: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._number = number
        self._server = server
        self._judge = judge
        self._now = now
        self._tell = tell
        self._last_message = ""
        self._next_count_s = 0.0
        self.plan: Plan = read_plan(store.get(number).plan)
        self._steering: Steering = Leases(self.plan.lease_s, now) if steering is None else steering
        self._scores_judge: Judge = Gate(gate_spec_of(self.plan)) if scores_judge is None else scores_judge

    def tick(self) -> Rollout:
        """Do what is to be done now, if anything, and return the rollout as it stands then."""
        rollout = self._store.get(self._number)
        if rollout.phase.is_over:
            return rollout
        rollout = self._take_command(rollout)
        try:
            return _ACTIONS[rollout.phase](self, rollout)
        except Unavailable as exc:  # of a server, which is started again by whoever watches it, or of a router
            self._tell_once(f"waiting: {exc.message}")
        except ServingError as exc:
            if rollout.phase is Phase.PROMOTING:  # `ensemble` serves what it did
                return self._enter(Phase.ROLLING_BACK, f"the candidate could not be promoted: {exc.message}")
            self._tell_once(f"{rollout.phase}: {exc.message}; trying again")
        return self._store.get(self._number)

    def _tell_once(self, text: str) -> None:
        """Report a condition that lasts at the first look only."""
        if text != self._last_message:
            self._tell(text)
        self._last_message = text

    def _take_command(self, rollout: Rollout) -> Rollout:
        found = self._store.next_command(self._number)
        if found is None:
            return rollout
        try:
            phase = phase_after(rollout.phase, found.command, self.plan, found.release)
        except RequestError as exc:
            self._store.note(self._number, f"{found.command} refused", exc.message, who=found.who)
            self._tell(f"{found.command} refused: {exc.message}")
        else:
            rollout = self._enter(
                phase, found.why or f"{found.command} was asked for", chosen=found.release, who=found.who
            )
        self._store.take(found.id)
        return rollout

    def _enter(
        self,
        phase: Phase,
        why: str,
        *,
        step: int | None = None,
        chosen: int | None = None,
        evidence: object = None,
        who: str = "",
    ) -> Rollout:
        self._tell(f"{phase}: {why}")
        return self._store.enter(self._number, phase, why=why, step=step, chosen=chosen, evidence=evidence, who=who)

    def _start(self, rollout: Rollout) -> Rollout:
        try:
            self._steering.follow(rollout)
            for release in self.plan.releases:
                self._server.add(release, is_canary=self.plan.mode is not Mode.AB)
                self._server.try_out(int(release["release"]))
        except Unavailable:
            raise
        except ServingError as exc:
            return self._enter(Phase.ROLLING_BACK, f"the candidate could not be started: {exc.message}")
        lives = dict(self._server.lives())
        if self.plan.held_out is not None:
            for number in self.plan.candidates:
                rollout = self._replay(rollout, number, self.plan.held_out, lives)
                if rollout.phase is not Phase.STARTING:
                    return rollout
        return self._enter(Phase.RUNNING, share_text(self.plan, 0), step=0, evidence={"lives": lives})

    def _replay(self, rollout: Rollout, number: int, held_out: HeldOut, lives: Mapping[str, object]) -> Rollout:
        """Judge a candidate by the held-out prompts; a failed one is rolled back, a good one noted in the log."""
        trial = Trial(self._scores_judge, held_out, num_needed=num_prompts_needed(self.plan))
        try:
            with contextlib.closing(self._server.replay(held_out, number)) as answers:
                for scores in answers:
                    rollout = self._take_command(rollout)
                    if rollout.phase is not Phase.STARTING:
                        return rollout
                    trial.add(scores)
                    self._tell_once(trial.progress)
                    if trial.is_failed:
                        break
        except Unavailable:
            raise
        except ServingError as exc:
            return self._enter(Phase.ROLLING_BACK, f"the held-out prompts could not be replayed: {exc.message}")
        if self._server.lives() != lives:
            why = "the candidate's engine ended or was started again while it answered the held-out prompts"
            return self._enter(Phase.ROLLING_BACK, why, evidence=trial.evidence)
        if not trial.is_good_enough:
            return self._enter(Phase.ROLLING_BACK, trial.reason, evidence=trial.evidence)
        self._tell(trial.reason)
        self._store.note(self._number, "replayed", trial.reason, trial.evidence)
        return rollout

    def _watch(self, rollout: Rollout) -> Rollout:
        """Judge candidates that take requests, and enter the phase or the share that follows."""
        judgement = self._judge.judge(self._store.evidence(self._number, rollout.step))
        if judgement.verdict == "fail":  # also while the server does not answer
            why = self._with_its_cause(judgement.reason)
            return self._enter(Phase.ROLLING_BACK, why, evidence=judgement.report)
        if self._server.lives() != self._lives_at_start():
            return self._enter(Phase.ROLLING_BACK, _ENGINE_ENDED)
        if self.plan.mode is Mode.AB and rollout.phase is Phase.RUNNING and (why := self._mismatch()):
            return self._enter(Phase.HELD, why)
        move = self._steer(rollout) or next_move(self.plan, rollout, judgement)
        if move is None:
            return rollout
        return self._enter(move.phase, move.why, step=move.step, evidence=judgement.report)

    def _steer(self, rollout: Rollout) -> Move | None:
        """Send requests by the present share; return the move where that is not to be."""
        try:
            self._steering.follow(rollout)
        except RouteTaken as exc:
            if rollout.phase is Phase.HELD:  # until a person decides
                raise
            return Move(Phase.HELD, exc.message)
        except WeightsRefused as exc:
            return Move(Phase.ROLLING_BACK, exc.message)
        return None

    def _mismatch(self) -> str:
        """Return why the arms' counts miss their shares, or "".

        The assignment log may be long, so it is read every ten seconds only.
        """
        if self._now() < self._next_count_s:
            return ""
        self._next_count_s = self._now() + _COUNT_PERIOD_S
        return mismatch(self._store.assigned.units_by_arm(self._number), self.plan.arms)

    def _with_its_cause(self, reason: str) -> str:
        """Return a verdict's reason, behind the end of the candidate's engine where that is the cause."""
        with contextlib.suppress(Unavailable):
            if self._server.lives() != self._lives_at_start():
                return f"{_ENGINE_ENDED}; {reason}"
        return reason

    def _lives_at_start(self) -> object:
        for event in self._store.events(self._number):
            if isinstance(event.evidence, dict) and "lives" in event.evidence:
                return event.evidence["lives"]
        raise AssertionError("a rollout that runs has begun")

    def _promote(self, rollout: Rollout) -> Rollout:
        if self.plan.second_server and not self._steering.holds(rollout):
            return rollout  # the first server is to be loaded anew: nobody may be sent there
        number = self._chosen(rollout)
        self._server.promote(number)
        return self._enter(Phase.SETTLING, f"release {number} is the stable one")

    def _settle(self, rollout: Rollout) -> Rollout:
        if not self._is_left(rollout):
            return rollout
        self._server.settle()
        chosen = self._chosen(rollout)
        going = [number for number in self.plan.candidates if number != chosen]
        for number in going if self.plan.is_keeping_old else [*going, self.plan.stable]:
            self._server.remove(number, drain_timeout_s=self.plan.drain_timeout_s)
        self._steering.let_go()
        return self._enter(Phase.PROMOTED, f"release {chosen} serves all")

    def _chosen(self, rollout: Rollout) -> int:
        return self.plan.candidate if rollout.chosen is None else rollout.chosen

    def _roll_back(self, rollout: Rollout) -> Rollout:
        return self._take_out(rollout, Phase.ROLLED_BACK)

    def _end(self, rollout: Rollout) -> Rollout:
        return self._take_out(rollout, Phase.ENDED)

    def _take_out(self, rollout: Rollout, phase: Phase) -> Rollout:
        if not self._is_left(rollout):
            return rollout
        for number in self.plan.candidates:
            if number not in self.plan.loaded_before:
                self._server.remove(number, drain_timeout_s=self.plan.drain_timeout_s)
        if self.plan.loaded_before:
            self._server.settle()
        self._steering.let_go()
        return self._enter(phase, rollout.reason)

    def _is_left(self, rollout: Rollout) -> bool:
        """Return whether this rollout sends nobody any more to what goes; what others send is theirs to end."""
        try:
            return self._steering.holds(rollout)
        except (RouteTaken, WeightsRefused) as exc:
            self._store.note(self._number, "route left", exc.message)
            self._tell(f"the route is left as it is: {exc.message}")
            return True


_ACTIONS: Mapping[Phase, Callable[[Controller, Rollout], Rollout]] = {
    Phase.STARTING: Controller._start,
    Phase.RUNNING: Controller._watch,
    Phase.PAUSED: Controller._watch,
    Phase.HELD: Controller._watch,
    Phase.PROMOTING: Controller._promote,
    Phase.SETTLING: Controller._settle,
    Phase.ROLLING_BACK: Controller._roll_back,
    Phase.ENDING: Controller._end,
}
