# SPDX-License-Identifier: Apache-2.0
"""The command `trireme serve` in a child process, and what a test asks of it."""

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import psutil
import yaml
from process_words import words_of

from serving.process.control_channel import ask_all
from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.process.shared_memory import PREFIX
from trireme.base.free_ports import free_ports

PROJECT = Path(__file__).resolve().parents[3]
SUPPORT = PROJECT / "tests/triton/support"  # programs of this folder find its modules when they run in it
READY_S = 60.0
MOST_ENDING = 1  # more would take the time of the test that runs
SHARED_MEMORY = Path("/dev/shm")


# Of each server that a test starts, a process: most tests ask the first alone.
ENDPOINTS = ("ensemble", "ensemble_graph", "tensorrt_llm_bls")


def deployment_text(
    name: str,
    *,
    engine: Mapping[str, object],
    triton: Mapping[str, object] | None = None,
    endpoints: Sequence[str] = ENDPOINTS[:1],
    **more: object,
) -> str:
    """Return a deployment file with the demo's tokenizer, of the endpoint `ensemble` where no others are named."""
    tokenizer = {"dir": str(PROJECT / "examples/demo_model/target")}
    spec = {"name": name, "tokenizer": tokenizer, "engine": dict(engine), "triton": dict(triton or {}), **more}
    return yaml.safe_dump(spec | {"endpoints": [*endpoints]})


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended, and are no zombies."""
    left = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two questions
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


class RunningServer:
    """A server that is ready when entered.

    When left it is told to end, and does so while the next test begins; `stop` waits for it.
    """

    _ending: ClassVar["deque[RunningServer]"] = deque()

    def __init__(
        self,
        deployment: str,
        folder: Path,
        *,
        options: tuple[str, ...] = (),
        below: tuple[str, ...] = (),
        shared_memory: Path = SHARED_MEMORY,
        ready_s: float = READY_S,
    ) -> None:
        """Start a server.

        Args:
            deployment: the deployment file's text.
            folder: of the server.
            options: of `trireme serve`.
            below: a command that starts the one behind it.
            shared_memory: the folder that the server has for /dev/shm, where `below` mounts one there.
            ready_s: seconds that its start may take.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        (folder / "deployment.yaml").write_text(deployment)
        self._options = options
        self._below = below
        self._shared_memory = shared_memory
        self._ready_s = ready_s
        self._is_spoiled = False
        self.url = f"127.0.0.1:{self.grpc_port}"

    def __enter__(self) -> Self:
        ports = {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
        self.log_path = self.folder / "serve.log"
        self._log = self.log_path.open("wb")
        self.process = subprocess.Popen(
            [
                *self._below,
                sys.executable,
                "-m",
                "trireme",
                "serve",
                "--deployment",
                "deployment.yaml",
                "--verbose",
                *self._options,
            ]
            + [argument for name, port in ports.items() for argument in (f"--{name}-port", str(port))],
            cwd=self.folder,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self._is_spoiled = True
            self.process.terminate()
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.interrupt()
        self.leave()

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + self._ready_s
        while not (self.is_ready() and "ready after" in self.log()):  # Triton is a moment earlier than its parent
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)

    def leave(self) -> None:
        """Let the server end, as it has been told to."""
        self._ending.append(self)
        self.wait_for_ends(MOST_ENDING)

    @classmethod
    def wait_for_ends(cls, num_left: int = 0) -> None:
        """Wait until no more than `num_left` servers that were left are still there."""
        while len(cls._ending) > num_left:
            cls._ending.popleft().discard()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample of the metrics page, by name and some of its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as response:
            page = response.read().decode()
        for line in page.splitlines():
            match = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line)
            if match and match[1] == name and all(f'{key}="{value}"' in match[2] for key, value in labels.items()):
                return float(match[3])
        raise AssertionError(f"no {name} with {labels} in\n{page}")

    def used_kv_blocks(self, model: str = "tensorrt_llm") -> float:
        return self.metric("nv_trt_llm_kv_cache_block_metrics", model=model, kv_cache_block_type="used")

    def num_streams(self) -> int:
        """Return the streams that the adapters hold, as `trireme serve` asks them before it stops."""
        return ask_all(Path(self.tritonserver().environ()[RUN_DIR_VARIABLE]), "status")

    def descendants(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def own_http_port(self) -> int:
        """Return the port that Triton has behind the frontends."""
        flags = [part for each in self.descendants() for part in words_of(each) if part.startswith("--http-port=")]
        return int(flags[0].partition("=")[2])

    def triton_processes(self) -> list[psutil.Process]:
        """Return the processes of Triton, which may be started again; the frontends stay."""
        if (triton := self.tritons()) == []:
            return []
        try:
            return [*triton, *triton[0].children(recursive=True)]
        except psutil.NoSuchProcess:  # ended since it was listed
            return []

    def tritons(self) -> list[psutil.Process]:
        found = []
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended since it was listed
                found += [process] if process.name() == "tritonserver" else []
        return found

    def tritonserver(self) -> psutil.Process:
        [triton] = self.tritons()
        return triton

    def stub(self, model: str) -> psutil.Process:
        """Return the process that Triton runs a Python model in."""
        return self.stubs()[model]

    def stubs(self) -> dict[str, psutil.Process]:
        """Return the processes that Triton runs Python models in, each by its model."""
        found = [(process, " ".join(words_of(process))) for process in self.descendants()]
        return {match[1]: process for process, line in found if (match := re.search(r"/(\w+)/1/model\.py", line))}

    def engine_process(self) -> psutil.Process:
        [engine] = [p for p in self.descendants() if "serving.engine_process.engine_loop" in words_of(p)]
        return engine

    def shared_memory(self) -> list[str]:
        """Return the regions in /dev/shm that this server made."""
        return [path.name for path in self._shared_memory.glob(f"{PREFIX}{self.process.pid}_*")]

    def interrupt(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop(self, timeout_s: float = 60.0) -> int:
        """Send SIGTERM, and return the exit status."""
        if self.process.poll() is None:
            self.interrupt()
        status = self.process.wait(timeout_s)
        self._log.close()
        return status

    def hurry(self) -> None:
        """Ask a server that a test may have spoiled to end without waiting for its streams.

        Triton unloads, which takes 2 s more.
        """
        self._is_spoiled = True
        for _ in range(2):
            if self.process.poll() is None:
                self.interrupt(signal.SIGINT)
                time.sleep(0.1)

    def discard(self) -> None:
        """Wait for the end, by force if need be; leave nothing behind. Only a server that is spoiled may need force."""
        was_forced = False
        try:
            self.process.wait(30 if self._is_spoiled else 60)
        except subprocess.TimeoutExpired:
            was_forced = True
            for process in self.descendants():
                process.kill()
            self.process.kill()
            self.process.wait()
        for region in self.shared_memory():
            (self._shared_memory / region).unlink()
        self._log.close()
        assert self._is_spoiled or not was_forced, f"did not end: {self.log()[-2000:]}"
