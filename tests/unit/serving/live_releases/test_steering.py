# SPDX-License-Identifier: Apache-2.0
"""A server is steered by one rollout at a time: by its lease, over restarts of its process, in long operations."""

from collections.abc import Mapping
from typing import Any

import pytest
from manual_clock import ManualClock

from serving.live_releases.steering import Steering
from trireme.base.errors import RequestError, Unavailable


class Server:
    """A server with one operation that changes it, and one that does not."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0)
        steering = Steering(self.clock)
        handlers: Any = {"add": self._add, "status": lambda *_: {"is_ready": True}}
        self._handlers = steering.guarded(handlers, ["add"]) | steering.handlers()
        self.questions: list[Mapping[str, object]] = []
        self.add_takes_s = 0.0

    def _add(self, question: Mapping[str, object], _: object) -> Mapping[str, object]:
        self.questions.append(question)
        self.clock.now_s += self.add_takes_s / 2
        if self.add_takes_s:
            with pytest.raises(Unavailable, match="steered by a of test"):
                self.steer("b")
        self.clock.now_s += self.add_takes_s / 2
        return {}

    def ask(self, operation: str, **question: object) -> Mapping[str, object]:
        return self._handlers[operation](question, lambda _: None)

    def steer(self, rollout: str, process: str = "", *, lease_s: float = 30.0, is_first: bool = False) -> None:
        process = process or f"process of {rollout}"
        who = f"{rollout} of test"
        self.ask("steer", rollout=rollout, process=process, who=who, lease_s=lease_s, is_first=is_first)


def test_another_rollout_is_refused_and_told_of_the_first() -> None:
    server = Server()
    server.steer("a")
    server.clock.now_s = 7.0
    for ask in (
        lambda: server.steer("b", is_first=True),
        lambda: server.ask("add", controller="process of b"),
        lambda: server.ask("add"),
    ):
        with pytest.raises(Unavailable, match=r"steered by a of test, heard of 7 s ago; .* or wait 30 s") as refusal:
            ask()
        assert refusal.value.facts["reason"] == "steered"
    assert server.ask("status") == {"is_ready": True}
    server.ask("add", controller="process of a", release=2)
    assert server.questions == [{"release": 2}]


def test_a_lease_ends_by_itself_or_is_given_back() -> None:
    server = Server()
    server.steer("a")
    server.clock.now_s = 29.0
    server.steer("a")
    server.clock.now_s = 58.0
    with pytest.raises(Unavailable):
        server.steer("b")
    server.clock.now_s = 59.0
    server.steer("b")
    with pytest.raises(Unavailable, match="steered by b of test"):
        server.ask("add", controller="process of a")
    server.steer("a", lease_s=0)
    with pytest.raises(Unavailable):
        server.steer("a")
    server.steer("b", lease_s=0)
    server.steer("a")


def test_a_new_process_takes_the_place_of_an_earlier_one_of_its_rollout() -> None:
    server = Server()
    server.steer("a", "first", is_first=True)
    with pytest.raises(Unavailable):
        server.steer("a", "second")
    server.steer("a", "second", is_first=True)
    with pytest.raises(Unavailable):
        server.steer("a", "first")
    with pytest.raises(Unavailable):
        server.ask("add", controller="first")
    server.ask("add", controller="second")


def test_a_lease_does_not_end_while_its_operation_runs() -> None:
    server = Server()
    server.steer("a")
    server.add_takes_s = 3600.0
    server.ask("add", controller="process of a")
    with pytest.raises(Unavailable):
        server.steer("b")
    server.clock.now_s += 30.0
    server.steer("b")


def test_without_a_rollout_anybody_may_change_a_server() -> None:
    server = Server()
    server.ask("add")
    server.ask("add", controller="one that the server has forgotten")
    assert server.questions == [{}, {}]


@pytest.mark.parametrize("change", [{"lease_s": -1}, {"lease_s": 1e9}, {"who": ""}, {"rollout": "x" * 300}])
def test_a_wish_that_cannot_be_read_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="the wish to steer cannot be read"):
        Server().ask("steer", **{"rollout": "a", "process": "p", "who": "w", "lease_s": 1.0, **change})
