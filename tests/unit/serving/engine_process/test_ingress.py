# SPDX-License-Identifier: Apache-2.0
"""Requests that come while the engine steps are answered at once; only the stepping thread touches the engine."""

import queue
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from admission_runs import request, small_engine
from simulated_release import write_release

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engine_process import engine_sources
from serving.engine_process.connections import EngineConnections
from serving.engine_process.engine_client import EngineClient
from serving.engine_process.engine_loop import serve_admitting
from serving.engine_process.engine_messages import Cancel, Channel, ChannelClosed, Command, Ready, Report, Step, Submit
from serving.engine_process.engine_sources import OwnedEngine
from serving.engine_process.progress_watch import ProgressWatch
from serving.engines.seam.base import EngineStats, FinishReason, GenerationRequest, TokenChunk
from serving.engines.seam.clock import WallClock
from serving.engines.simulated.simulated_engine import SimulatedEngine
from trireme.base.errors import Unavailable
from trireme.base.project_files import CODE_ROOT

ONE_WAITS = AdmissionSpec.model_validate({"queue": {"max_requests": 1}})


class HeldEngine(SimulatedEngine):
    """An engine for one request; every step with work waits until it is released, and each caller's thread is noted."""

    def __init__(self) -> None:
        super().__init__(small_engine(max_num_seqs=1, step_ms=0.0), WallClock())
        self.callers = set[int]()
        self.is_stepping = threading.Event()
        self.may_go = threading.Event()
        self.failure: Exception | None = None

    def add(self, request: GenerationRequest) -> None:
        self.callers.add(threading.get_ident())
        super().add(request)

    def cancel(self, key: int) -> None:
        self.callers.add(threading.get_ident())
        super().cancel(key)

    def stats(self) -> EngineStats:
        self.callers.add(threading.get_ident())
        return super().stats()

    def step(self) -> list[TokenChunk]:
        self.callers.add(threading.get_ident())
        if self.has_work:
            self.is_stepping.set()
            assert self.may_go.wait(20)
        if self.failure is not None:
            raise self.failure
        return super().step()


class Held:
    """The loop of a held engine, in a thread, with its owner."""

    def __init__(self) -> None:
        self.engine = HeldEngine()
        ours, theirs = socket.socketpair()
        self.owner = Channel(ours, Report)
        admitting = AdmittingEngine(self.engine, ONE_WAITS, SloSpec(), WallClock())
        self.connections = EngineConnections(Channel(theirs, Command), None, admitting.info)
        self._told = deque[tuple[TokenChunk, bool]]()
        self.ends = queue.Queue[BaseException]()
        self.thread = threading.Thread(target=self._serve, args=(admitting,))
        self.thread.start()
        assert self.owner.receive_one() == Ready(admitting.info)

    def _serve(self, engine: AdmittingEngine) -> None:
        try:
            serve_admitting(engine, self.connections, ProgressWatch(WallClock(), watchdog_s=30.0))
        except Exception as exc:
            self.ends.put(exc)

    def submit(self, one: GenerationRequest) -> None:
        self.owner.send(Submit(one))

    def hold(self) -> None:
        """Start request 1, in a step that lasts."""
        self.submit(request(1))
        assert self.engine.is_stepping.wait(10)

    def told(self) -> tuple[TokenChunk, bool]:
        """Return the next chunk, and whether it came beside a step."""
        until_s = time.monotonic() + 10
        while not self._told:
            assert time.monotonic() < until_s, "nothing was told"
            for report in self.owner.receive(is_blocking=True, timeout_s=10):
                assert isinstance(report, Step)
                self._told += [(chunk, report.stats is None) for chunk in report.chunks]
        return self._told.popleft()

    def end(self) -> BaseException:
        """Wait for the end of the loop, and return its error."""
        self.engine.may_go.set()
        self.owner.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.ends.get(timeout=0)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    made.hold()
    yield made
    assert isinstance(made.end(), ChannelClosed)
    made.connections.close()
    assert made.engine.callers == {made.thread.ident}


def test_who_is_refused_is_told_while_the_engine_steps(held: Held) -> None:
    held.submit(request(2))
    held.submit(request(3))
    refusal, is_beside = held.told()
    assert refusal.key == 3
    assert "reason=queue_full retry_after_ms=" in str(refusal.error)
    assert is_beside


def test_what_could_never_run_is_refused_while_the_engine_steps(held: Held) -> None:
    held.submit(request(2, max_tokens=5000))
    refusal, is_beside = held.told()
    assert str(refusal.error).startswith("[INVALID_ARG field=max_tokens")
    assert is_beside


def test_whose_time_passes_is_told_while_the_engine_steps(held: Held) -> None:
    held.submit(request(2, queue_timeout_ms=30.0))
    refusal, is_beside = held.told()
    assert str(refusal.error).startswith("[DEADLINE reason=queue_timeout_ms]")
    assert is_beside
    held.submit(request(3))  # its place is free
    held.submit(request(4))
    assert held.told()[0].key == 4


def test_who_leaves_the_queue_is_told_at_once_and_who_runs_when_the_step_is_over(held: Held) -> None:
    held.submit(request(2))
    for key in (1, 2):
        held.owner.send(Cancel(key))
    assert held.told() == (TokenChunk(2, [], FinishReason.CANCELLED), True)
    held.engine.may_go.set()
    first, is_beside = held.told()
    assert (first.key, len(first.token_ids), is_beside) == (1, 1, False)
    last, is_beside = held.told()
    assert (last.key, last.finish_reason, is_beside) == (1, FinishReason.CANCELLED, False)


def test_chunks_come_in_their_order_whoever_is_refused_between_them(held: Held) -> None:
    held.engine.may_go.set()
    chunks: dict[int, list[TokenChunk]] = {key: [] for key in range(1, 200)}
    for key in range(2, 200):
        held.submit(request(key))
    while any(not ended(own) for own in chunks.values()):
        for report in held.owner.receive(is_blocking=True, timeout_s=10):
            assert isinstance(report, Step)
            for chunk in report.chunks:
                assert not ended(chunks[chunk.key]), "it had ended"
                chunks[chunk.key].append(chunk)
    served = [own for own in chunks.values() if own[-1].error is None]
    assert all(sum(len(chunk.token_ids) for chunk in own) == 8 for own in served)
    assert len(served) >= 2


def ended(chunks: list[TokenChunk]) -> bool:
    return bool(chunks) and (chunks[-1].error is not None or chunks[-1].finish_reason is not None)


def test_an_engine_that_breaks_ends_the_ingress_with_it() -> None:
    held = Held()
    held.hold()
    held.engine.failure = MemoryError("no more blocks")
    assert isinstance(held.end(), MemoryError)
    assert not [thread for thread in threading.enumerate() if thread.name == "ingress"]
    held.connections.close()


HANGING_ENGINE = """
import time
from serving.engine_process import engine_loop as engine_process
from serving.engine_process import stopping_engine

def hang(self):
    time.sleep(600)

stopping_engine.StoppingEngine.step = hang
engine_process.main()
"""


def test_an_engine_that_hangs_is_noticed_though_refusals_still_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_sources, "_KILL_AFTER_S", 0.1)
    (tmp_path / "hanging.py").write_text(HANGING_ENGINE)
    program = tmp_path / "engine"
    project = CODE_ROOT
    program.write_text(f'#!/bin/sh\nshift 2; PYTHONPATH={project} exec {sys.executable} {tmp_path}/hanging.py "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(engine_sources, "_python", lambda: str(program))
    refusals, deaths = queue.Queue[TokenChunk](), queue.Queue[Unavailable]()

    def on_steps(steps: list[Step]) -> None:
        for step in steps:
            for chunk in step.chunks:
                refusals.put(chunk)

    source = OwnedEngine(write_release(tmp_path, admission=ONE_WAITS), watchdog_s=2.0)
    client = EngineClient(source, on_steps=on_steps, on_death=deaths.put)
    client.start()
    try:
        for key in range(200):
            client.submit(request(key, max_tokens=5000))  # each is refused at once
            assert refusals.get(timeout=10).key == key
            time.sleep(0.05)
            if not deaths.empty():
                break
        assert deaths.get(timeout=0).facts == {"reason": "engine_hung"}
    finally:
        client.close()
