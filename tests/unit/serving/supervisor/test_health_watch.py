# SPDX-License-Identifier: Apache-2.0
"""The watch's findings of dead and hung processes, on a clock of the test's."""

from pathlib import Path

import pytest
from manual_clock import ManualClock

from serving.process.control_channel import Pulse
from serving.supervisor import health_watch
from serving.supervisor.health_watch import HealthWatch
from serving.triton.triton_process import TritonProcess


class Server:
    """A server with adapters and an endpoint in the states that the test sets."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.exit_status: int | None = None
        self.is_answering = True
        self.stopped: set[str] = set()
        self.pulses = {"preprocessing": Pulse.ALIVE, "tensorrt_llm": Pulse.ALIVE}
        for name in self.pulses:
            (run_dir / f"{name}-1-00ff.sock").touch()

    def answers(self, *, timeout_s: float) -> bool:
        assert timeout_s > 0
        return self.is_answering

    def is_stopped(self, model: str = "", version: int = 1) -> bool:
        assert version == 1
        return model in self.stopped

    def feel_pulse(self, path: Path, *, timeout_s: float) -> Pulse:
        assert timeout_s > 0
        return self.pulses[path.name.partition("-")[0]]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(tmp_path)
    monkeypatch.setattr(health_watch, "feel_pulse", server.feel_pulse)
    return server


def watch(server: Server, clock: ManualClock) -> HealthWatch:
    triton: TritonProcess = server  # type: ignore[assignment]
    return HealthWatch(triton, hang_timeout_s=10, clock=clock)


def findings(health: HealthWatch, clock: ManualClock, seconds: int) -> list[str | None]:
    """Return the findings of one look each second."""
    found = []
    for _ in range(seconds):
        found.append(health.failure())
        clock.now_s += 1
    return found


def test_a_server_that_is_well_stays_well(server: Server) -> None:
    clock = ManualClock()
    assert findings(watch(server, clock), clock, 100) == [None] * 100


def test_a_server_that_has_ended_is_found_at_once(server: Server) -> None:
    server.exit_status = -9
    assert watch(server, ManualClock()).failure() == "tritonserver ended by itself with status -9"


def test_an_adapter_that_died_before_the_server_is_told_of(server: Server) -> None:
    lost = losses(server, [Pulse.DEAD, Pulse.ALIVE])
    assert lost == [("preprocessing", 1, "the process of model preprocessing died, and tritonserver with it")]


def test_adapters_that_died_with_the_server_are_not_told_of(server: Server) -> None:
    assert losses(server, [Pulse.DEAD, Pulse.DEAD]) == []


def losses(server: Server, pulses: list[Pulse]) -> list[tuple[str, int, str]]:
    """Return the adapters that are told of when the server ends just after its adapters had these pulses."""
    lost: list[tuple[str, int, str]] = []

    def lose(name: str, version: int, reason: str) -> bool:
        lost.append((name, version, reason))
        return True

    triton: TritonProcess = server  # type: ignore[assignment]
    health = HealthWatch(triton, hang_timeout_s=10, clock=ManualClock(), lose=lose)
    server.pulses = dict(zip(server.pulses, pulses, strict=True))
    assert health.failure() is None
    server.exit_status = -6
    assert health.failure() == "tritonserver ended by itself with status -6"
    return lost


def test_an_adapter_that_refuses_is_dead_at_the_second_question(server: Server) -> None:
    health = watch(server, ManualClock())
    server.pulses["preprocessing"] = Pulse.DEAD
    assert health.failure() is None  # it may be about to listen
    assert health.failure() == "the process of model preprocessing died"


def test_an_adapter_that_was_only_about_to_listen_is_not_dead(server: Server) -> None:
    health = watch(server, ManualClock())
    for pulse in (Pulse.DEAD, Pulse.ALIVE, Pulse.DEAD, Pulse.ALIVE):
        server.pulses["preprocessing"] = pulse
        assert health.failure() is None


def test_an_adapter_that_was_unloaded_is_not_dead(server: Server) -> None:
    clock = ManualClock()
    server.pulses["preprocessing"] = Pulse.CLOSED
    assert findings(watch(server, clock), clock, 100) == [None] * 100


def test_a_silent_adapter_is_hung_when_its_time_is_over(server: Server) -> None:
    clock = ManualClock()
    health = watch(server, clock)
    assert findings(health, clock, 5) == [None] * 5
    server.pulses["tensorrt_llm"] = Pulse.SILENT
    found = findings(health, clock, 10)  # the last sign of life was at 104, this is 105 to 114
    assert found == [None] * 9 + ["the process of model tensorrt_llm has not answered for 10 s"]


def test_an_adapter_that_is_slow_now_and_then_is_not_hung(server: Server) -> None:
    clock = ManualClock()
    health = watch(server, clock)
    for _ in range(5):
        server.pulses["tensorrt_llm"] = Pulse.SILENT
        assert findings(health, clock, 9) == [None] * 9
        server.pulses["tensorrt_llm"] = Pulse.ALIVE
        assert health.failure() is None


def test_a_silent_server_is_hung_when_its_time_is_over(server: Server) -> None:
    clock = ManualClock()
    health = watch(server, clock)
    assert health.failure() is None
    server.is_answering = False
    assert next(found for found in findings(health, clock, 12) if found) == "tritonserver has not answered for 10 s"


def test_a_process_that_waits_for_a_stopped_server_is_not_the_one_to_name(server: Server) -> None:
    clock, lost = ManualClock(), []

    def lose(name: str, version: int, _reason: str) -> bool:
        lost.append((name, version))
        return True

    triton: TritonProcess = server  # type: ignore[assignment]
    health = HealthWatch(triton, hang_timeout_s=10, clock=clock, lose=lose)
    assert health.failure() is None
    server.pulses["tensorrt_llm"] = Pulse.SILENT
    server.is_answering = False
    server.stopped = {""}
    found = next(found for found in findings(health, clock, 12) if found)
    assert found == "tritonserver has not answered for 10 s, stopped by a signal (SIGSTOP)"
    assert lost == []  # a release on trial is not taken out for it


def test_a_stopped_process_is_named_as_that(server: Server) -> None:
    clock = ManualClock()
    health = watch(server, clock)
    server.pulses["preprocessing"] = Pulse.SILENT
    server.stopped = {"preprocessing"}
    found = next(found for found in findings(health, clock, 12) if found)
    assert found == "the process of model preprocessing has not answered for 10 s, stopped by a signal (SIGSTOP)"


def test_what_the_server_can_do_without_is_lost_once(server: Server) -> None:
    clock, lost = ManualClock(), []

    def lose(name: str, version: int, reason: str) -> bool:
        lost.append((name, version, reason))
        return name == "preprocessing"

    triton: TritonProcess = server  # type: ignore[assignment]
    health = HealthWatch(triton, hang_timeout_s=10, lose=lose, clock=clock)
    server.pulses["preprocessing"] = Pulse.DEAD
    assert findings(health, clock, 5) == [None] * 5
    assert lost == [("preprocessing", 1, "the process of model preprocessing died")]
    server.pulses["tensorrt_llm"] = Pulse.DEAD
    assert findings(health, clock, 2) == [None, "the process of model tensorrt_llm died"]


def test_an_engine_that_is_started_again_is_told_and_is_no_failure(server: Server) -> None:
    health = watch(server, ManualClock())
    server.pulses["tensorrt_llm"] = Pulse.ENGINE_DEAD
    assert health.failure() is None
    assert health.dead_engines == {("tensorrt_llm", 1)}
    server.pulses["tensorrt_llm"] = Pulse.ALIVE
    assert health.failure() is None
    assert health.dead_engines == set()
