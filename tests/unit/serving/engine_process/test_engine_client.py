# SPDX-License-Identifier: Apache-2.0
"""The engine's own process, started, driven, killed and restarted: nothing is lost in silence, and nothing is left."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from process_words import words_of
from simulated_release import write_broken_release, write_release

from serving.engine_process import engine_client, engine_sources
from serving.engine_process.engine_client import EngineClient
from serving.engine_process.engine_messages import Step
from serving.engine_process.engine_sources import OwnedEngine
from serving.engines.seam.base import FinishReason, GenerationRequest, SamplingParams, TokenChunk
from trireme.base.errors import ServerError, Unavailable
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

SLOW = {"step_ms": 20.0}


class Recorder:
    """A record of everything that a client reports, in order."""

    def __init__(self) -> None:
        self.chunks: queue.Queue[TokenChunk] = queue.Queue()
        self.deaths: queue.Queue[Unavailable] = queue.Queue()
        self.last_step: Step | None = None

    def on_steps(self, steps: list[Step]) -> None:
        for step in steps:
            for chunk in step.chunks:
                self.chunks.put(chunk)
        self.last_step = steps[-1]

    def chunk(self) -> TokenChunk:
        """Return the next chunk, without its times and the work beside it."""
        return msgspec.structs.replace(self.chunks.get(timeout=10), perf=None, work=None)

    def death(self) -> Unavailable:
        return self.deaths.get(timeout=10)

    def last_chunk(self) -> TokenChunk:
        """Return the next chunk that ends a request."""
        while True:
            chunk = self.chunk()
            if chunk.finish_reason is not None or chunk.error is not None:
                return chunk


Connected = tuple[EngineClient, Recorder]
Connect = Callable[..., Connected]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Yield `connect(step_ms=20)`, which returns a started client of a simulated engine."""
    clients: list[EngineClient] = []

    def start(**engine: object) -> tuple[EngineClient, Recorder]:
        recorder = Recorder()
        release = write_release(tmp_path, engine)
        clients.append(EngineClient(OwnedEngine(release), on_steps=recorder.on_steps, on_death=recorder.deaths.put))
        clients[-1].start()
        return clients[-1], recorder

    yield start
    for client in clients:
        client.close()


def engines_of_ours() -> list[psutil.Process]:
    """Return the engines that this process started; servers of other tests have their own."""
    return [child for child in psutil.Process().children() if "serving.engine_process.engine_loop" in words_of(child)]


@pytest.fixture(autouse=True)
def no_engine_is_left() -> Iterator[None]:
    before = engines_of_ours()
    yield
    assert engines_of_ours() == before


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    """Yield an engine that repeats the prompt, shared by tests that leave it unchanged."""
    recorder = Recorder()
    release = write_release(tmp_path_factory.mktemp("echo"), {"mode": "echo"})
    client = EngineClient(OwnedEngine(release), on_steps=recorder.on_steps, on_death=recorder.deaths.put)
    client.start()
    yield client, recorder
    client.close()
    assert recorder.chunks.empty()


@pytest.fixture
def engine_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Return `engine_program("exit 3")`, which puts a shell script in the engine's place."""

    def use(script: str) -> None:
        program = tmp_path / "engine"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(engine_sources, "_python", lambda: str(program))

    return use


def generation(key: int, max_tokens: int = 3, *, num_prompt_tokens: int = 2) -> GenerationRequest:
    return GenerationRequest(
        key=key, input_ids=[20] * num_prompt_tokens, sampling=SamplingParams(max_tokens=max_tokens)
    )


def test_a_request_runs_to_its_end(echo: Connected) -> None:
    client, recorder = echo
    client.submit(generation(7))
    chunks = [recorder.chunk() for _ in range(3)]
    assert chunks == [TokenChunk(7, [20]), TokenChunk(7, [20]), TokenChunk(7, [20], FinishReason.LENGTH)]


def test_the_largest_numbers_get_across(echo: Connected) -> None:
    client, recorder = echo
    sampling = SamplingParams(max_tokens=1, top_p=0.5, seed=2**64 - 1)
    client.submit(GenerationRequest(key=2**63 - 1, input_ids=[4095], sampling=sampling))
    assert recorder.chunk() == TokenChunk(2**63 - 1, [4095], FinishReason.LENGTH)


def test_what_the_engine_refuses_comes_back_as_the_requests_last_chunk_and_it_goes_on(echo: Connected) -> None:
    client, recorder = echo
    client.submit(generation(1, max_tokens=5000))
    refused = recorder.chunk()
    assert refused.key == 1
    assert refused.error is not None
    assert refused.error.startswith("[INVALID_ARG field=max_tokens value=5000")
    client.submit(generation(2, max_tokens=1))
    assert recorder.chunk() == TokenChunk(2, [20], FinishReason.LENGTH)


def test_cancelling_what_is_not_there_is_answered_too(echo: Connected) -> None:
    client, recorder = echo
    client.cancel(99)
    assert recorder.chunk() == TokenChunk(99, [], FinishReason.CANCELLED)


def test_a_cancelled_request_ends_at_once_and_ctrl_c_is_left_to_the_parent(connect: Connect) -> None:
    client, recorder = connect(**SLOW)
    client.submit(generation(1, max_tokens=1000))
    assert recorder.chunk().finish_reason is None
    assert client.pid is not None
    os.kill(client.pid, signal.SIGINT)
    client.cancel(1)
    assert recorder.last_chunk() == TokenChunk(1, [], FinishReason.CANCELLED)
    assert recorder.last_step is not None
    assert recorder.last_step.stats is not None
    assert recorder.last_step.stats.num_used_kv_blocks == 0
    time.sleep(0.06)
    assert recorder.chunks.empty()


def test_a_killed_engine_is_told_once_and_comes_back(connect: Connect) -> None:
    client, recorder = connect(**SLOW)
    client.submit(generation(1, max_tokens=1000))
    recorder.chunk()
    first_pid = kill(client)
    assert recorder.death().facts == {"reason": "engine_died"}
    wait_until(lambda: can_submit(client, generation(2, max_tokens=1)))
    while recorder.last_chunk().key != 2:
        pass
    assert client.pid != first_pid
    assert recorder.deaths.empty()


def test_while_there_is_no_engine_requests_are_refused_cancels_do_nothing_and_it_is_tried_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, engine_program: Callable[[str], None]
) -> None:
    monkeypatch.setattr(engine_client, "_RESTART_DELAYS_S", (0.0, 0.05))
    client, recorder = connect()
    python = engine_sources._python
    engine_program("exit 3")
    kill(client)
    recorder.death()
    for _ in range(10):
        with pytest.raises(Unavailable) as caught:
            client.submit(generation(1))
        assert caught.value.facts["reason"] in {"engine_died", "engine_restarting"}
        client.cancel(1)
        time.sleep(0.02)
    monkeypatch.setattr(engine_sources, "_python", python)
    wait_until(lambda: can_submit(client, generation(2)))


def test_an_engine_that_hangs_is_noticed_ended_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_sources, "_KILL_AFTER_S", 0.1)
    recorder = Recorder()
    source = OwnedEngine(write_release(tmp_path, {"mode": "echo"}), watchdog_s=2.0)
    client = EngineClient(source, on_steps=recorder.on_steps, on_death=recorder.deaths.put)
    client.start()
    assert client.pid is not None
    hung = psutil.Process(client.pid)
    time.sleep(2.5)  # idle is not hung: its process is heard of all the same
    assert recorder.deaths.empty()
    hung.suspend()
    stopped_s = time.monotonic()
    assert recorder.death().facts == {"reason": "engine_hung"}
    assert time.monotonic() - stopped_s < 3
    wait_until(lambda: can_submit(client, generation(1, max_tokens=1)))
    assert recorder.chunk() == TokenChunk(1, [20], FinishReason.LENGTH)
    assert not hung.is_running()
    client.close()


def test_an_engine_that_cannot_load_says_why_in_its_own_words(tmp_path: Path) -> None:
    release = write_broken_release(tmp_path)
    client = EngineClient(OwnedEngine(release), on_steps=print, on_death=print)
    with pytest.raises(ServerError, match=r"not be loaded: \[INVALID_SPEC .*vocab_size: input should be greater"):
        client.start()
    client.close()


def test_a_release_that_is_not_there_is_named_by_the_engine(tmp_path: Path) -> None:
    client = EngineClient(OwnedEngine(tmp_path / "nowhere"), on_steps=print, on_death=print)
    with pytest.raises(ServerError, match=r"could not be loaded: \[INVALID_SPEC .*nowhere"):
        client.start()


def test_an_engine_that_ends_while_it_loads_is_reported_with_its_status(
    tmp_path: Path, engine_program: Callable[[str], None]
) -> None:
    engine_program("exit 3")
    client = EngineClient(OwnedEngine(write_release(tmp_path)), on_steps=print, on_death=print)
    with pytest.raises(ServerError, match="ended with status 3 while loading"):
        client.start()


BREAKING_ENGINE = """
from serving.engine_process import engine_loop as engine_process
from serving.engine_process import stopping_engine

def break_down(self):
    raise MemoryError("no more blocks")

stopping_engine.StoppingEngine.step = break_down
engine_process.main()
"""


def test_an_engine_that_breaks_says_why_in_the_log_and_is_restarted(
    tmp_path: Path, engine_program: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "breaking.py").write_text(BREAKING_ENGINE)
    project = CODE_ROOT
    engine_program(f'shift 2; PYTHONPATH={project} exec {sys.executable} {tmp_path}/breaking.py "$@"')
    recorder = Recorder()
    client = EngineClient(
        OwnedEngine(write_release(tmp_path)), on_steps=recorder.on_steps, on_death=recorder.deaths.put
    )
    client.start()
    pid = client.pid
    client.submit(generation(1))
    assert recorder.death().facts == {"reason": "engine_died"}
    assert "engine: [INTERNAL] the engine broke: MemoryError('no more blocks')" in caplog.text
    wait_until(lambda: client.pid != pid and client._channel is not None)
    client.close()


CLOSING_ENGINE = """
import pathlib, sys, time
from serving.engine_process import engine_loop as engine_process
from serving.engine_process import stopping_engine

def close(self):
    time.sleep({seconds})
    pathlib.Path({mark!r}).touch()

stopping_engine.StoppingEngine.close = close
engine_process.CLOSE_TIMEOUT_S = {timeout_s}
engine_process.main()
"""


@pytest.mark.parametrize(("seconds", "timeout_s", "is_closed"), [(0.3, 60, True), (600, 0.2, False)])
def test_an_engine_may_end_what_it_has_started_but_not_take_for_ever(
    tmp_path: Path,
    engine_program: Callable[[str], None],
    seconds: float,
    timeout_s: float,
    is_closed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_sources, "_KILL_AFTER_S", 60.0)
    mark = tmp_path / "closed"
    (tmp_path / "closing.py").write_text(CLOSING_ENGINE.format(seconds=seconds, mark=str(mark), timeout_s=timeout_s))
    project = CODE_ROOT
    engine_program(f'shift 2; PYTHONPATH={project} exec {sys.executable} {tmp_path}/closing.py "$@"')
    client = EngineClient(OwnedEngine(write_release(tmp_path)), on_steps=lambda _: None, on_death=print)
    client.start()
    assert client.pid is not None
    process = psutil.Process(client.pid)
    started_s = time.monotonic()
    client.close()
    assert time.monotonic() - started_s < 30, "it ended by itself"
    assert not process.is_running()
    assert mark.exists() == is_closed


def test_closing_ends_the_process_whatever_it_does(connect: Connect) -> None:
    client, recorder = connect(**SLOW)
    client.submit(generation(1, max_tokens=1000))
    recorder.chunk()
    pid = client.pid
    client.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert recorder.deaths.empty(), "nobody has died"
    with pytest.raises(Unavailable):
        client.submit(generation(2))
    client.close()  # twice is once


def test_closing_a_stopped_engine_kills_it_even_while_a_sender_waits_for_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_sources, "_KILL_AFTER_S", 0.1)
    client, _ = connect()
    assert client.pid is not None
    process = psutil.Process(client.pid)
    process.suspend()
    refused = queue.Queue[Unavailable]()

    def submit_forever() -> None:
        try:
            while True:
                client.submit(generation(1, num_prompt_tokens=1000))
        except Unavailable as exc:
            refused.put(exc)

    sender = threading.Thread(target=submit_forever, daemon=True)
    sender.start()
    sender.join(0.2)
    assert sender.is_alive(), "the pipe is full"
    closer = threading.Thread(target=client.close, daemon=True)
    closer.start()
    closer.join(5)
    stuck = closer.is_alive()
    if stuck:
        process.kill()
    assert not stuck
    assert isinstance(refused.get(timeout=5), Unavailable)
    assert not process.is_running()


@pytest.mark.parametrize("delay_s", [0.0, 0.1])
def test_closing_while_it_is_being_restarted_leaves_no_process(connect: Connect, delay_s: float) -> None:
    before = engines_of_ours()
    client, recorder = connect()
    kill(client)
    recorder.death()
    time.sleep(delay_s)
    client.close()
    assert engines_of_ours() == before


def test_no_process_is_started_behind_a_close(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    # The moment between two engines: close() finds nothing to end.
    about_to_start, is_closed = threading.Event(), threading.Event()
    threads = set(threading.enumerate())
    client, recorder = connect()
    python = engine_sources._python()

    def wait_until_closed() -> str:
        about_to_start.set()
        is_closed.wait(5)
        return python

    monkeypatch.setattr(engine_sources, "_python", wait_until_closed)
    monkeypatch.setattr(engine_sources, "_KILL_AFTER_S", 0.1)
    kill(client)
    recorder.death()
    assert about_to_start.wait(5)
    client.close()
    monkeypatch.setattr(subprocess, "Popen", None)  # nobody may call it any more
    is_closed.set()
    wait_until(lambda: set(threading.enumerate()) <= threads)


def test_an_engine_outlives_nobody(tmp_path: Path) -> None:
    """Its parent is killed without a word: the end of the pipe is the end of the engine."""
    release = write_release(tmp_path, SLOW)
    script = (
        "import sys, time; from pathlib import Path\n"
        "from serving.engine_process.engine_client import EngineClient\n"
        "from serving.engine_process.engine_sources import OwnedEngine\n"
        "client = EngineClient(OwnedEngine(Path(sys.argv[1])), on_steps=print, on_death=print); client.start()\n"
        "print(client.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(release)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        engine = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


def kill(client: EngineClient) -> int:
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    return client.pid


def can_submit(client: EngineClient, request: GenerationRequest) -> bool:
    try:
        client.submit(request)
    except Unavailable:
        return False
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.005)
