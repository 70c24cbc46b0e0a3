# SPDX-License-Identifier: Apache-2.0
"""A server and a gate for rollouts that need neither, and a way to die at any step."""

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from clients.rollout.controller import Controller
from clients.rollout.judging.replay import PromptScores
from clients.rollout.records.held_out import HeldOut
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from clients.rollout.steering import Steering
from clients.rollout_gate.gate import Judgement
from clients.rollout_gate.verdict import Verdict
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import ServerError, Unavailable
from trireme.base.store_place import StorePlace


class Killed(BaseException):
    """The end of the controller's process, as by SIGKILL."""


class World:
    """The state that survives the controller's process: the server, the clock and the store.

    Args:
        place: the folder of the store's file, or its database.

    Attributes:
        stable, loaded: releases of the server.
        prompts_verdict: of the gate on held-out prompts, once half of them are answered.
        during_replay: what happens to the server, or who asks for what, when a quarter of them are.
        kill_at: the number of the action, counted over all lives, at which the controller dies; even numbers before it
            is done, odd ones after.
    """

    def __init__(self, place: StorePlace, **plan: object) -> None:
        self.path: StorePlace = place / "rollouts.sqlite" if isinstance(place, Path) else place
        self.now_s = 1000.0
        self.stable, self.loaded = 1, {1}
        self.canary: int | None = None
        self.engine = 100
        self.is_away = False
        self.fails: dict[str, str] = {}
        self.actions: list[str] = []
        self.kill_at: int | None = None
        self._num_moments = 0
        self.verdict: Verdict = "undecided"
        self.prompts_verdict: Verdict = "no data"
        self.during_replay: Callable[[], object] = lambda: None
        self.num_compared = 40
        self.num_requests = 0
        defaults: dict[str, object] = {"candidate": 2, "stable": 1, "release": {"release": 2}, "salt": "s"}
        self.plan = Plan(**{**defaults, "step_requests": 10, "lease_s": 5.0, **plan})  # type: ignore[arg-type]
        with Store(self.path, self.now) as store:
            self.number = store.begin("chat", self.plan.text(), why="a test").id

    def now(self) -> float:
        return self.now_s

    def _moment(self) -> None:
        if self._num_moments == self.kill_at:
            self._num_moments += 1
            raise Killed
        self._num_moments += 1

    def do(self, name: str) -> None:
        self._moment()
        if self.is_away:
            raise Unavailable("it is being started", reason="starting")
        if name in self.fails:
            raise ServerError(self.fails[name])
        self.actions.append(name)

    # The server.

    def add(self, release: Mapping[str, object], *, is_canary: bool) -> None:
        self.do("add")
        self.loaded.add(int(str(release["release"])))
        if is_canary:
            self.canary = int(str(release["release"]))
        self._moment()

    def try_out(self, number: int) -> None:
        assert number in self.loaded
        self.do("try_out")
        self._moment()

    def replay(self, held_out: HeldOut, number: int) -> Generator[list[PromptScores], None, None]:
        assert number in self.loaded
        self.do("replay")
        for place in range(held_out.num_prompts):
            is_compared = place < self.num_compared
            score = 1.0 if is_compared else None
            yield [PromptScores(name=str(place), candidate=score, stable=score)]
            if place == held_out.num_prompts // 4:
                self._moment()
                self.during_replay()
                if self.is_away:
                    raise Unavailable("it went away", reason="unreachable")
        yield []
        self._moment()

    def promote(self, number: int) -> None:
        self.do("promote")
        assert number in self.loaded
        self.stable = number
        self._moment()

    def settle(self) -> None:
        self.do("settle")
        self.canary = None
        self._moment()

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        assert drain_timeout_s > 0
        self.do("remove")
        assert number != self.stable
        self.loaded.discard(number)
        self.canary = None if self.canary == number else self.canary
        self._moment()

    def lives(self) -> Mapping[str, object]:
        if self.is_away:
            raise Unavailable("it is being started", reason="starting")
        return {"engine": self.engine}

    # The gate.

    def merge(
        self, evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None = None
    ) -> Mapping[str, object]:
        assert at_s is None, "a replay is no traffic"
        known = (evidence or {}).get("prompts", 0)
        assert isinstance(known, int)
        return {"prompts": known + len(outcomes) // 2}

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        if evidence is not None and "prompts" in evidence:
            verdict = self.prompts_verdict if evidence["prompts"] == 20 else "no data"
            return Judgement(verdict, "garbage", num_requests=0, is_final=False, report={"n": 2})
        num = self.num_requests
        return Judgement(self.verdict, "so it is", num_requests=num, is_final=num >= 100, report={"n": 1})

    # A life of the controller.

    def controller(self, store: Store, steering: Steering | None = None) -> Controller:
        return Controller(store, self.number, self, self, scores_judge=self, steering=steering, now=self.now)

    def live(self, num_ticks: int = 60, *, requests_per_tick: int = 6, steering: Steering | None = None) -> Rollout:
        """Tick until the rollout is over, or `num_ticks` times, and return the rollout."""
        with Store(self.path, self.now, patience_s=60.0) as store:
            controller = self.controller(store, steering)
            for _ in range(num_ticks):
                rollout = controller.tick()
                if rollout.phase.is_over:
                    return rollout
                self.now_s += 1
                self.num_requests += requests_per_tick
            return store.get(self.number)
