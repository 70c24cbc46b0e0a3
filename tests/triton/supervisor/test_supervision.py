# SPDX-License-Identifier: Apache-2.0
"""`trireme serve` starts the server again when it or one of its models' processes dies or hangs."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest
from process_words import words_of
from raw_calls import StreamFailed, stream
from running_server import ENDPOINTS, RunningServer, deployment_text, still_running
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.spec.model_names import PYTHON_MODELS
from serving.process.shared_memory import PREFIX
from trireme.base.errors import Unavailable

StartServer = Callable[..., RunningServer]

SLOW = {"provider": "simulated", "step_ms": 20.0}
# Root may make namespaces; others may where the machine lets them become root of a user namespace.
UNSHARE_MOUNTS = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")
ASK = GenerateRequest(text_input="hello", max_tokens=3, return_num_output_tokens=True)


def victim(server: RunningServer, name: str) -> psutil.Process:
    return server.tritonserver() if name == "tritonserver" else server.stub(name)


def stubs_of(server: RunningServer, model: str) -> list[psutil.Process]:
    """Return the processes of a model of a server that may still be starting."""
    try:
        found = server.descendants()
    except (AttributeError, psutil.NoSuchProcess):  # it has not been started yet
        return []
    return [process for process in found if any(f"/{model}/1/model.py" in part for part in words_of(process))]


def prefixes(server: RunningServer) -> set[str]:
    """Return the prefixes of the shared memory: one for each server process that was not cleaned up after."""
    return {name[: name.rindex("_")] for name in server.shared_memory()}


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    """Return what servers of a test have for /dev/shm: each start of another test cleans up the one that all share."""
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


@pytest.fixture
def start_beside(tmp_path: Path, shm: Path) -> Iterator[Callable[[], RunningServer]]:
    """Yield a starter of servers that share `shm` with each other and with nothing else."""
    mount = ("sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', str(shm))
    probe = subprocess.run([*UNSHARE_MOUNTS, *mount, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this machine lets us make no mount namespaces: {probe.stderr.strip()}")
    text = deployment_text("spoiled", engine={"provider": "simulated", "step_ms": 5.0}, endpoints=ENDPOINTS)
    with contextlib.ExitStack() as started:

        def start() -> RunningServer:
            server = RunningServer(
                text, Path(tempfile.mkdtemp(dir=tmp_path)), below=(*UNSHARE_MOUNTS, *mount), shared_memory=shm
            )
            started.callback(server.leave)
            started.callback(server.hurry)
            return server.__enter__()

        yield start


class Caller:
    """A client that goes on asking from a thread, and keeps what it got."""

    def __init__(self, url: str, model: str = "ensemble") -> None:
        self._url = url
        self._model = model
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.outcomes: list[tuple[float, str | BaseException]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._is_over.wait(0.02):
            try:
                with TritonClient(self._url) as client:
                    outcome: str | BaseException = "".join(
                        chunk.text for chunk in client.generate(ASK, model=self._model)
                    )
            except Exception as exc:
                outcome = exc
            self.outcomes.append((time.monotonic(), outcome))

    def is_served_since(self, start_s: float) -> bool:
        return any(when_s > start_s and isinstance(outcome, str) for when_s, outcome in self.outcomes)


@pytest.mark.parametrize(
    "name",
    ["tritonserver", "tensorrt_llm"]
    + [pytest.param(name, marks=pytest.mark.soak) for name in PYTHON_MODELS if name != "tensorrt_llm"],
)
def test_what_is_killed_is_noticed_and_the_server_is_back_by_itself(start_server: StartServer, name: str) -> None:
    server = start_server(engine=SLOW, endpoints=ENDPOINTS)
    processes = server.triton_processes()
    [owner] = prefixes(server)
    running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 2000, "stream": True})
    next(running)
    with Caller(server.url) as caller:
        wait_until(lambda: len(caller.outcomes) > 0, 5)
        victim(server, name).kill()
        killed_s = time.monotonic()
        wait_until(lambda: not server.is_ready(), 5)
        with pytest.raises(StreamFailed, match="UNAVAILABLE"):
            list(running)
        assert time.monotonic() - killed_s < 5
        wait_until(server.is_ready, 30)
        wait_until(lambda: caller.is_served_since(killed_s + 1), 10)
    failures = [outcome for _, outcome in caller.outcomes if not isinstance(outcome, str)]
    assert failures
    assert [failure for failure in failures if not isinstance(failure, Unavailable)] == []
    assert "starting it again" in server.log()
    assert still_running(processes) == []
    [new_owner] = prefixes(server)
    assert new_owner != owner
    assert server.stop() == 0
    assert server.shared_memory() == []


@pytest.mark.parametrize(
    "name",
    ["tritonserver", "ensemble"]
    + [pytest.param(name, marks=pytest.mark.soak) for name in PYTHON_MODELS if name != "ensemble"],
)
def test_what_hangs_is_found_within_the_stated_time(start_server: StartServer, name: str) -> None:
    server = start_server(engine=SLOW, endpoints=ENDPOINTS, triton={"hang_timeout_s": 2.0})
    hung = victim(server, name)
    hung.suspend()
    # The timeout, a question under way, and a question that another adapter may be slow to answer.
    wait_until(lambda: not still_running([hung]), 2 + 5)
    wait_until(lambda: "ready again" in server.log(), 30)
    process = "tritonserver" if name == "tritonserver" else f"the process of model {name}"
    assert f"{process} has not answered for 2 s, stopped by a signal (SIGSTOP); starting it again" in server.log()
    with TritonClient(server.url) as client:
        assert sum(chunk.num_output_tokens or 0 for chunk in client.generate(ASK)) == 3


def test_a_process_that_goes_on_after_triton_has_given_it_up_answers_nobody(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, endpoints=["ensemble_graph"])
    with TritonClient(server.url) as client:
        expected = "".join(chunk.text for chunk in client.generate(ASK, model="ensemble_graph"))
    stopped = server.stub("preprocessing")
    with contextlib.ExitStack() as callers:
        asking = [callers.enter_context(Caller(server.url, "ensemble_graph")) for _ in range(4)]
        wait_until(lambda: all(caller.outcomes for caller in asking), 10)
        stopped.suspend()
        wait_until(lambda: any("is not healthy" in str(outcome) for c in asking for _, outcome in c.outcomes), 5)
        resumed_s = time.monotonic()
        stopped.resume()
        wait_until(lambda: not still_running([stopped]), 5)
        wait_until(lambda: all(caller.is_served_since(resumed_s + 1) for caller in asking), 30)
    outcomes = [outcome for caller in asking for _, outcome in caller.outcomes]
    assert {outcome for outcome in outcomes if isinstance(outcome, str)} == {expected}
    assert [outcome for outcome in outcomes if not isinstance(outcome, str | Unavailable)] == []
    assert "starting it again" in server.log()


def test_a_busy_server_is_not_taken_for_a_hung_one(start_server: StartServer) -> None:
    server = start_server(triton={"hang_timeout_s": 1.0})
    before = server.descendants()
    callers = [Caller(server.url) for _ in range(16)]
    for caller in callers:
        caller.__enter__()
    time.sleep(5)
    for caller in callers:
        caller.__exit__()
    outcomes = [outcome for caller in callers for _, outcome in caller.outcomes]
    assert len(outcomes) > 50
    assert [outcome for outcome in outcomes if not isinstance(outcome, str)] == []
    assert server.descendants() == before


def test_after_too_many_restarts_it_ends_with_an_error(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, triton={"max_restarts": 2, "restart_backoff_s": 0.5})
    for count in range(3):
        wait_until(server.is_ready, 30)
        wait_until(lambda count=count: server.log().count("ready again") == count, 5)  # type: ignore[misc]
        server.tritonserver().kill()
        wait_until(lambda: not server.is_ready(), 5)
    assert server.process.wait(10) == 1
    assert "starting it again in 0.5 s" in server.log()
    assert "given up after 2 restarts in 600 s (triton.max_restarts)" in server.log()
    assert server.shared_memory() == []


def test_with_no_restarts_allowed_a_dead_server_is_the_end(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, triton={"max_restarts": 0})
    server.tritonserver().kill()
    assert server.process.wait(10) == 1
    assert "tritonserver ended by itself with status -9" in server.log()
    assert server.shared_memory() == []


def test_ctrl_c_while_it_waits_to_start_again_ends_it_at_once(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, triton={"restart_backoff_s": 60.0})
    server.tritonserver().kill()
    wait_until(lambda: "ready again" in server.log(), 30)
    server.tritonserver().kill()
    wait_until(lambda: "starting it again in 60 s" in server.log(), 5)
    server.interrupt(signal.SIGINT)
    assert server.process.wait(5) == 0
    assert server.shared_memory() == []


def test_a_process_that_is_held_up_while_it_loads_costs_a_start_at_most(tmp_path: Path) -> None:
    """A busy machine does so: Triton 2.51 takes the process for dead after a second, and then crashes or waits."""
    server = RunningServer(deployment_text("spoiled", engine=SLOW, endpoints=["ensemble", "ensemble_graph"]), tmp_path)

    def hold_up() -> None:
        while not (found := stubs_of(server, "postprocessing")):
            time.sleep(0.01)
        found[0].suspend()
        time.sleep(3)
        found[0].resume()

    holding = threading.Thread(target=hold_up)
    holding.start()
    with server, TritonClient(server.url) as client:
        holding.join()
        assert sum(chunk.num_output_tokens or 0 for chunk in client.generate(ASK)) == 3


def test_the_next_start_removes_the_shared_memory_of_a_killed_server_and_of_no_other(
    start_beside: Callable[[], RunningServer], shm: Path
) -> None:
    alive, killed = start_beside(), start_beside()
    regions, orphans = set(alive.shared_memory()), killed.shared_memory()
    assert len(orphans) > 3
    processes = killed.descendants()
    for process in [psutil.Process(killed.process.pid), *processes]:  # all at once: nobody is left to clean up
        process.kill()
    killed.process.wait()
    wait_until(lambda: not still_running(processes), 5)
    assert set(killed.shared_memory()) == set(orphans)
    stranger = shm / f"{PREFIX}{killed.process.pid}_of_somebody_else"
    stranger.touch()
    third = start_beside()
    assert killed.shared_memory() == [stranger.name]
    assert "removed the shared memory of a server that is gone" in third.log()
    assert set(alive.shared_memory()) >= regions
    with TritonClient(alive.url) as client:
        assert sum(chunk.num_output_tokens or 0 for chunk in client.generate(ASK)) == 3
