# SPDX-License-Identifier: Apache-2.0
"""A server and a gate for rollouts that need neither, and a way to die at any step."""

from collections.abc import Mapping
from pathlib import Path

from clients.rollout.controller import Controller
from clients.rollout.gate.gate import Judgement
from clients.rollout.gate.verdict import Verdict
from clients.rollout.plan import Plan
from clients.rollout.state import Rollout
from clients.rollout.store import Store
from ensemble_configs.errors import ServerError, Unavailable


class Killed(BaseException):
    """What SIGKILL would be."""


class World:
    """What survives the controller's process: the server, the clock and the store's file.

    Attributes:
        stable, loaded: releases of the server.
        kill_at: the number of the deed, counted over all lives, at which the controller dies; even numbers before it
            is done, odd ones after.
    """

    def __init__(self, folder: Path, **plan: object) -> None:
        self.path = folder / "rollouts.sqlite"
        self.now_s = 1000.0
        self.stable, self.loaded = 1, {1}
        self.canary: int | None = None
        self.engine = 100
        self.is_away = False
        self.fails: dict[str, str] = {}
        self.deeds: list[str] = []
        self.kill_at: int | None = None
        self._num_moments = 0
        self.verdict: Verdict = "undecided"
        self.num_requests = 0
        defaults: dict[str, object] = {"candidate": 2, "stable": 1, "release": {"release": 2}, "salt": "s"}
        self.plan = Plan(**{**defaults, "step_requests": 10, "gate": {"max_requests": 100}, "lease_s": 5.0, **plan})  # type: ignore[arg-type]
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
        self.deeds.append(name)

    # The server.

    def add(self, release: Mapping[str, object]) -> None:
        self.do("add")
        self.loaded.add(int(str(release["release"])))
        self.canary = int(str(release["release"]))
        self._moment()

    def try_out(self) -> None:
        self.do("try_out")
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

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        del evidence
        return Judgement(verdict=self.verdict, reason="so it is", num_requests=self.num_requests, report={"n": 1})

    # A life of the controller.

    def live(self, num_ticks: int = 60, *, requests_per_tick: int = 6) -> Rollout:
        """Tick until it is over, or so often, or dead."""
        with Store(self.path, self.now) as store:
            controller = Controller(store, self.number, self, self, now=self.now)
            for _ in range(num_ticks):
                rollout = controller.tick()
                if rollout.phase.is_over:
                    return rollout
                self.now_s += 1
                self.num_requests += requests_per_tick
            return store.get(self.number)
