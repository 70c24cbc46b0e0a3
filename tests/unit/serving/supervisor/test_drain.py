# SPDX-License-Identifier: Apache-2.0
"""The order of a server's stop: not ready, a delay, admission closed, streams waited for, the rest ended."""

from collections.abc import Callable
from pathlib import Path

import pytest

from serving.supervisor import drain as module
from serving.supervisor.drain import Outcome, drain
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import Unavailable


class Server:
    """A server with streams that end by themselves after some questions, or when they are cancelled."""

    def __init__(self, num_questions: int, *, ends_when_cancelled: bool = True) -> None:
        self.run_dir = Path("/run/of/it")
        self.calls: list[str] = []
        self.now_s = 100.0
        self.is_dead = False
        self.fails_at_s = self.ends_at_s = float("inf")
        self.outcome: Outcome | None = None
        self._num_questions = num_questions
        self._ends_when_cancelled = ends_when_cancelled

    def turn_unready(self) -> None:
        self.calls.append("turn_unready")
        if self.is_dead:
            raise Unavailable("tritonserver does not answer", reason="no_answer")

    def close_doors(self, because: Unavailable) -> None:
        assert because.facts == {"reason": "draining"}
        self.calls.append("close_doors")

    @property
    def exit_status(self) -> int | None:
        return None if self.now_s < self.ends_at_s else -9

    def ask_all(self, run_dir: Path, operation: str, *, is_without_dead: bool) -> int:
        assert run_dir == self.run_dir
        assert is_without_dead
        if self.calls[-1:] != [operation]:  # a row of questions is one
            self.calls.append(operation)
        if operation == "cancel" and self._ends_when_cancelled:
            self._num_questions = 0
        self._num_questions -= 1
        return int(self._num_questions >= 0)

    def failure(self) -> str | None:
        if self.calls[-1:] != ["failure"]:
            self.calls.append("failure")
        return "the process of model ensemble died" if self.now_s >= self.fails_at_s else None

    # The clock of the module: time passes when it sleeps.

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


Drain = Callable[..., list[str]]


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> Drain:
    """Return a function that drains a server and returns the messages: `drained(server, timeout_s=30)`."""

    def run(
        server: Server, *, timeout_s: float = 30.0, delay_s: float = 0.0, is_hurried: Callable[[], bool] = lambda: False
    ) -> list[str]:
        monkeypatch.setattr(module, "ask_all", server.ask_all)
        monkeypatch.setattr(module, "time", server)
        told: list[str] = []
        triton: TritonProcess = server  # type: ignore[assignment]
        server.outcome = drain(
            triton,
            timeout_s=timeout_s,
            delay_s=delay_s,
            failure=server.failure,
            is_hurried=is_hurried,
            tell=told.append,
        )
        return told

    return run


def test_with_nothing_running_it_only_waits_for_what_is_on_its_way_to_the_clients(drained: Drain) -> None:
    server = Server(0)
    assert drained(server) == []
    assert server.calls == ["turn_unready", "close_doors", "drain", "status"]
    assert server.now_s == pytest.approx(100.3)


def test_running_streams_are_waited_for(drained: Drain) -> None:
    server = Server(50)
    assert drained(server) == ["not ready any more; running streams may take another 30 s"]
    assert server.calls == ["turn_unready", "close_doors", "drain", "status"]
    assert server.now_s == pytest.approx(100 + 49 * 0.02 + 0.3, abs=0.1)
    assert server.outcome is Outcome.FINISHED


def test_streams_that_take_too_long_are_ended(drained: Drain) -> None:
    server = Server(10**9)
    told = drained(server, timeout_s=2)
    assert told[-1] == "ending the streams that are not done"
    assert server.calls == ["turn_unready", "close_doors", "drain", "status", "cancel", "status"]
    assert server.now_s == pytest.approx(102.3, abs=0.1)
    assert server.outcome is Outcome.CUT


def test_streams_that_do_not_end_even_then_are_not_waited_for_forever(drained: Drain) -> None:
    server = Server(10**9, ends_when_cancelled=False)
    drained(server, timeout_s=2)
    assert server.now_s == pytest.approx(107.3, abs=0.1)


def test_a_hurry_ends_the_wait_at_once(drained: Drain) -> None:
    server = Server(10**9)
    drained(server, timeout_s=600, is_hurried=lambda: server.now_s > 101)
    assert server.calls == ["turn_unready", "close_doors", "drain", "status", "cancel", "status"]
    assert server.now_s == pytest.approx(101.3, abs=0.1)


def test_a_server_that_does_not_answer_is_given_up(drained: Drain) -> None:
    server = Server(10)
    server.is_dead = True
    assert drained(server) == ["cannot drain: tritonserver does not answer"]
    assert server.calls == ["turn_unready"]
    assert server.now_s == 100.0
    assert server.outcome is Outcome.LOST


def test_a_delay_comes_between_not_ready_and_the_refusal_of_requests(drained: Drain) -> None:
    server = Server(0)
    told = drained(server, delay_s=7)
    assert told == ["not ready any more; new requests are taken for another 7 s"]
    assert server.calls == ["turn_unready", "failure", "close_doors", "drain", "status"]
    assert server.now_s == pytest.approx(107.3, abs=0.1)


def test_a_hurry_ends_the_delay(drained: Drain) -> None:
    server = Server(10**9)
    drained(server, delay_s=600, is_hurried=lambda: server.now_s > 101)
    assert server.calls == ["turn_unready", "failure", "close_doors", "drain", "status", "cancel", "status"]
    assert server.now_s < 102


def test_a_server_that_fails_during_the_delay_is_given_up(drained: Drain) -> None:
    server = Server(10**9)
    server.fails_at_s = 105
    told = drained(server, delay_s=600)
    assert told[-1] == "cannot drain: the process of model ensemble died"
    assert server.calls == ["turn_unready", "failure"]
    assert server.now_s == pytest.approx(105, abs=0.3)
    assert server.outcome is Outcome.LOST


def test_a_server_that_ends_while_its_streams_are_waited_for_is_given_up(drained: Drain) -> None:
    server = Server(10**9)
    server.ends_at_s = 105
    assert drained(server, timeout_s=600)[-1] == "cannot drain: tritonserver ended with status -9"
    assert server.now_s == pytest.approx(105, abs=0.1)
    assert server.outcome is Outcome.LOST


def test_a_long_wait_is_told_of_now_and_then(drained: Drain) -> None:
    server = Server(25 * 50)  # 25 s
    told = drained(server, timeout_s=60)
    words = [line for line in told if line.startswith("streams still run")]
    assert words == ["streams still run, and may for another 50 s", "streams still run, and may for another 40 s"]
