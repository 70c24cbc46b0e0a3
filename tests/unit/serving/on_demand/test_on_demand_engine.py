# SPDX-License-Identifier: Apache-2.0
"""Engines of one pool are in memory by turns: each comes when it is asked for, and goes when another one is wanted."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from process_words import words_of
from simulated_release import write_broken_release, write_release

from ensemble_configs.spec.release_spec import OnDemandSpec
from serving.engine_process.engine_sources import OwnedEngine
from serving.engine_process.on_demand_engine import OnDemandEngine
from serving.engine_process.residency import Residency
from serving.engines.seam.base import GenerationRequest, SamplingParams, TokenChunk
from serving.engines.seam.clock import WallClock
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import RequestError, ServerError

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0


def request(key: int, num_tokens: int = 3) -> GenerationRequest:
    return GenerationRequest(key=key, input_ids=[5, 6, 7], sampling=SamplingParams(max_tokens=num_tokens))


class Turns:
    """An engine that is stepped by a thread, as in its process.

    Attributes:
        came_s: a time just before the engine was last loaded; 0: in its constructor.
        went_s: a time just after the engine last went.
    """

    def __init__(self, folder: Path, name: str, spec: OnDemandSpec, **engine: object) -> None:
        self._release = (
            write_broken_release(folder / name)
            if engine.pop("is_broken", False)
            else write_release(folder / name, engine)
        )
        self._ledger = folder / "ledger"
        self._spec, self._name = spec, name
        self.chunks: dict[int, list[TokenChunk]] = {}
        self._lock = threading.Lock()
        self._is_over = False
        self.engine: OnDemandEngine | None = None
        self.came_s = self.went_s = 0.0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.engine = OnDemandEngine(
                lambda: OwnedEngine(self._release, is_inner=True),
                Residency(self._ledger, self._spec, member=self._name),
                self._spec,
                WallClock(),
                watchdog_s=3.0,
            )
            while not self._is_over:
                was_in, before_s = self.is_in, time.monotonic()
                with self._lock:
                    made = self.engine.step()
                if self.is_in and not was_in:
                    self.came_s = before_s
                if was_in and not self.is_in:
                    self.went_s = time.monotonic()
                for chunk in made:
                    self.chunks.setdefault(chunk.key, []).append(chunk)
                time.sleep(0.002 if self.engine.has_work else 0.02)
        except BaseException as exc:
            self.failure = exc

    def add(self, key: int, num_tokens: int = 3) -> None:
        assert self.engine is not None
        with self._lock:
            self.engine.add(request(key, num_tokens))

    def cancel(self, key: int) -> None:
        assert self.engine is not None
        with self._lock:
            self.engine.cancel(key)

    def wait_for(self, key: int) -> list[TokenChunk]:
        """Return all chunks of a request."""
        wait_until(lambda: self._is_ended(key))
        return self.chunks[key]

    def _is_ended(self, key: int) -> bool:
        assert self.failure is None, self.failure
        got = self.chunks.get(key, [])
        return bool(got) and (got[-1].finish_reason is not None or got[-1].error is not None)

    @property
    def is_in(self) -> bool:
        return self.engine is not None and self.engine._engine is not None

    @property
    def num_loads(self) -> int:
        assert self.engine is not None
        residency = self.engine.stats().residency
        assert residency is not None
        return residency.num_loads

    def close(self) -> None:
        self._is_over = True
        self._thread.join(PATIENCE_S)
        if self.engine is not None:
            self.engine.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.01)


def inner_processes() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if "--inner" in words_of(process)]


Start = Callable[..., Turns]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    started: list[Turns] = []

    def make(name: str, *, engine: dict[str, object] | None = None, **spec: object) -> Turns:
        given = {"pool_mib": 100, "memory_mib": 60, "min_resident_s": 0.0, "max_slice_s": 30.0} | spec
        turns = Turns(tmp_path, name, OnDemandSpec.model_validate(given), **(engine or {}))
        started.append(turns)
        return turns

    yield make
    for turns in started:
        turns.close()
    assert inner_processes() == []


def both(start: Start, **spec: object) -> tuple[Turns, Turns]:
    pair = (
        start("a", engine={"seed": 1, "step_ms": 1.0}, **spec),
        start("b", engine={"seed": 2, "step_ms": 1.0}, **spec),
    )
    wait_until(lambda: all(turns.engine is not None for turns in pair))
    return pair


def test_a_pool_may_have_the_longest_name_that_a_deployment_takes(tmp_path: Path) -> None:
    spec = OnDemandSpec(pool="n" * 64, pool_mib=100, memory_mib=60)
    assert Residency(tmp_path / "ledger", spec, member="first").try_enter()
    assert not Residency(tmp_path / "ledger", spec, member="second").try_enter()


def test_two_that_do_not_fit_take_turns_and_answer_as_if_alone(start: Start) -> None:
    a, b = both(start)
    alone = start("c", engine={"seed": 1}, pool="apart")
    wait_until(lambda: alone.engine is not None)
    alone.add(1, 20)
    expected = [chunk.token_ids for chunk in alone.wait_for(1)]
    for turn in range(3):
        a.add(turn, 20)
        assert [chunk.token_ids for chunk in a.wait_for(turn)] == expected
        assert not b.is_in
        b.add(turn, 20)
        assert [chunk.token_ids for chunk in b.wait_for(turn)] != expected
        assert not a.is_in
        assert len(inner_processes()) == 2, "one of the pool, and the one apart"
    assert a.num_loads >= 3


def test_two_that_fit_stay(start: Start) -> None:
    a, b = both(start, memory_mib=50)
    for turn in range(3):
        for turns in (a, b):
            turns.add(turn)
            turns.wait_for(turn)
    assert (a.num_loads, b.num_loads) == (1, 1)


def test_the_least_recently_used_goes_first(start: Start) -> None:
    a, b = both(start, memory_mib=50)
    for turns in (b, a):
        turns.add(1)
        turns.wait_for(1)
        time.sleep(0.05)
    c = start("c", memory_mib=50)
    wait_until(lambda: c.engine is not None)
    assert (a.is_in, b.is_in) == (True, False)


def test_a_large_one_has_as_many_go_as_it_needs(start: Start) -> None:
    a, b = both(start, memory_mib=50)
    c = start("c", memory_mib=100)
    wait_until(lambda: c.engine is not None)
    assert (a.is_in, b.is_in) == (False, False)


def test_one_that_was_just_loaded_stays_for_a_while(start: Start) -> None:
    a, b = both(start, min_resident_s=1.0)
    a.add(1)
    a.wait_for(1)
    for key in range(40):  # the other one asks all the time, and this one now and then
        b.add(key)
        time.sleep(0.02)
    b.wait_for(39)
    assert a.went_s - a.came_s >= 1.0
    assert b.num_loads <= 3


def test_one_that_always_has_something_to_do_gives_way_after_its_slice(start: Start) -> None:
    a, b = both(start, max_slice_s=0.5)
    a.add(1, 2000)  # two seconds and more of work, and nothing of it is lost
    wait_until(lambda: a.is_in and 1 in a.chunks)
    b.add(1)
    time.sleep(0.7)
    a.add(2)
    assert [chunk.error for chunk in b.wait_for(1)] == [None] * 3
    assert sum(len(chunk.token_ids) for chunk in a.wait_for(1)) == 2000
    assert [chunk.error for chunk in a.wait_for(2)] == [None] * 3, "it waited until the engine was back"
    assert a.num_loads >= 2


def test_who_waits_too_long_is_refused_with_the_time_to_come_back(start: Start) -> None:
    a, b = both(start, max_wait_s=0.3, max_slice_s=30.0)
    a.add(1, 1800)
    wait_until(lambda: 1 in a.chunks)
    b.add(1)
    [refused] = b.wait_for(1)
    assert refused.error is not None
    assert refused.error.startswith("[UNAVAILABLE reason=engine_not_loaded retry_after_ms=")
    assert "on_demand.max_wait_s" in refused.error
    a.cancel(1)


def test_one_that_is_killed_fails_what_it_ran_and_comes_back(start: Start) -> None:
    a, _ = both(start)
    a.add(1, 1800)
    wait_until(lambda: 1 in a.chunks)
    [inner] = inner_processes()
    os.kill(inner.pid, signal.SIGKILL)
    assert "[UNAVAILABLE reason=engine_died]" in (a.wait_for(1)[-1].error or "")
    a.add(2)
    assert [chunk.error for chunk in a.wait_for(2)] == [None] * 3


def test_one_that_hangs_is_ended_and_comes_back(start: Start) -> None:
    a, _ = both(start)
    a.add(1, 1800)
    wait_until(lambda: 1 in a.chunks)
    [inner] = inner_processes()
    os.kill(inner.pid, signal.SIGSTOP)
    assert "was silent for 3 s" in (a.wait_for(1)[-1].error or "")
    a.add(2)
    assert [chunk.error for chunk in a.wait_for(2)] == [None] * 3


def test_a_cancelled_request_is_neither_waited_for_nor_answered(start: Start) -> None:
    a, b = both(start)
    a.add(1, 1800)
    wait_until(lambda: 1 in a.chunks)
    b.add(1)
    b.cancel(1)
    a.cancel(1)
    time.sleep(0.3)
    num_chunks = len(a.chunks[1])
    time.sleep(0.3)
    assert len(a.chunks[1]) == num_chunks
    assert 1 not in b.chunks
    assert a.engine is not None
    wait_until(lambda: a.engine is not None and a.engine.stats().num_used_kv_blocks == 0)


def test_what_it_can_never_serve_is_refused_at_once(start: Start) -> None:
    a, _ = both(start)
    with pytest.raises(RequestError, match="max_seq_len"):
        a.add(1, 100_000)


def test_an_engine_that_cannot_be_loaded_says_so_at_the_start(start: Start) -> None:
    broken = start("a", engine={"is_broken": True})
    wait_until(lambda: broken.failure is not None)
    assert isinstance(broken.failure, ServerError)
    assert "vocab_size" in str(broken.failure)
    b = start("b")
    wait_until(lambda: b.engine is not None)
