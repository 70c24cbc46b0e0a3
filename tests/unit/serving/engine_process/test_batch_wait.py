# SPDX-License-Identifier: Apache-2.0
"""Requests that come to an idle engine one after the other begin together; one alone does not wait for ever."""

import itertools
import socket
import threading
import time
from collections.abc import Callable

import pytest
from admission_runs import request, small_engine
from manual_clock import ManualClock

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engine_process import batch_wait
from serving.engine_process.batch_wait import wait_for_company
from serving.engine_process.connections import EngineConnections
from serving.engine_process.engine_loop import serve_admitting, serve_engine
from serving.engine_process.engine_messages import Channel, ChannelClosed, Command, Ready, Report, Step, Submit
from serving.engine_process.progress_watch import ProgressWatch
from serving.engines.seam.base import TokenChunk
from serving.engines.seam.clock import WallClock
from serving.engines.simulated.simulated_engine import SimulatedEngine

LONG_S = 20.0


class NotedEngine(SimulatedEngine):
    """An engine that notes how many requests its first step has."""

    def __init__(self) -> None:
        super().__init__(small_engine(step_ms=0.0), WallClock())
        self.in_first_step = 0

    def step(self) -> list[TokenChunk]:
        if not self.in_first_step:
            self.in_first_step = self.stats().num_running + self.stats().num_waiting
        return super().step()


class Served:
    """The loop of an engine, in a thread, with its owner."""

    def __init__(self, engine: NotedEngine, *, batch_wait_s: float, is_admitting: bool) -> None:
        ours, theirs = socket.socketpair()
        self.owner = Channel(ours, Report)
        served = AdmittingEngine(engine, AdmissionSpec(), SloSpec(), WallClock()) if is_admitting else engine
        connections = EngineConnections(Channel(theirs, Command), None, served.info)

        def serve() -> None:
            watch = ProgressWatch(WallClock(), watchdog_s=LONG_S)
            try:
                if isinstance(served, AdmittingEngine):
                    serve_admitting(served, connections, watch, batch_wait_s=batch_wait_s)
                else:
                    serve_engine(engine, connections, watch, batch_wait_s=batch_wait_s)
            except ChannelClosed:
                connections.close()

        self.thread = threading.Thread(target=serve)
        self.thread.start()
        assert self.owner.receive_one() == Ready(served.info)
        assert isinstance(self.owner.receive_one(), Step)  # the loop has found no work

    def wait_for_tokens(self, count: int) -> None:
        """Wait for the first token of as many requests."""
        begun: set[int] = set()
        while len(begun) < count:
            match self.owner.receive_one():
                case Step(chunks):
                    begun.update(chunk.key for chunk in chunks if chunk.token_ids)

    def close(self) -> None:
        self.owner.close()
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("is_admitting", [False, True], ids=["plain", "admitting"])
def test_requests_in_short_succession_share_the_first_step(is_admitting: bool) -> None:
    engine = NotedEngine()
    served = Served(engine, batch_wait_s=LONG_S / 40, is_admitting=is_admitting)
    for key in range(3):
        served.owner.send(Submit(request(key), ""))
        time.sleep(0.01)  # each is read by itself, as the requests of several clients are
    served.wait_for_tokens(3)
    served.close()
    assert engine.in_first_step == 3


@pytest.mark.parametrize("is_admitting", [False, True], ids=["plain", "admitting"])
@pytest.mark.parametrize("batch_wait_s", [0.0, 0.001])
def test_a_request_alone_begins(batch_wait_s: float, is_admitting: bool) -> None:
    engine = NotedEngine()
    served = Served(engine, batch_wait_s=batch_wait_s, is_admitting=is_admitting)
    served.owner.send(Submit(request(1), ""))
    served.wait_for_tokens(1)
    served.close()
    assert engine.in_first_step == 1


def arrivals(clock: ManualClock, *times_s: float) -> Callable[[float], bool]:
    """Return what takes requests that arrive at these times."""
    left = list(times_s)

    def take(timeout_s: float) -> bool:
        is_there = bool(left) and left[0] <= clock.now_s + timeout_s
        clock.now_s = max(clock.now_s, left.pop(0)) if is_there else clock.now_s + timeout_s
        return is_there

    return take


@pytest.mark.parametrize(
    ("times_ms", "begins_ms"),
    [
        ((), 1.0),
        ((0.9, 1.8, 2.7), 3.7),
        ((0.2, 0.3), 1.3),
        ((1.5,), 1.0),
        (tuple(n / 2 for n in range(1, 100)), 4.0),
    ],
    ids=["alone", "four within 3 ms", "three at once", "too late", "without an end"],
)
def test_the_wait_ends_a_moment_after_the_last_or_when_it_has_been_long_enough(
    times_ms: tuple[float, ...], begins_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(0.0)
    monkeypatch.setattr(batch_wait, "time", clock)
    wait_for_company(arrivals(clock, *(each / 1000 for each in times_ms)), 0.001)
    assert clock.now_s * 1000 == pytest.approx(begins_ms)


def test_without_a_wait_nothing_is_taken() -> None:
    calls = itertools.count()
    wait_for_company(lambda _: bool(next(calls)), 0.0)
    assert next(calls) == 0


def test_engines_that_share_prefills_wait_a_millisecond_and_the_simulated_one_not_at_all() -> None:
    assert OpenVinoEngineSpec.model_validate({"provider": "openvino", "dir": "/m"}).batch_wait_s == 0.001
    assert SimulatedEngineSpec(provider="simulated").batch_wait_s == 0.0
