# SPDX-License-Identifier: Apache-2.0
"""The processes of the fake `tensorrt_llm`: ranks that MPI spawns, hold memory of a GPU, and have to answer each step.

It imports nothing of the project. What it does is upstream's, a row of docs/trtllm_behaviour.md each:

- B1 `MPI_NEEDS_A_LAUNCHER`: without `mpirun` around this process a thread ends with MPI_ERR_SPAWN, and the LLM waits
  for ever (llmapi/mpi_session.py, `MpiPoolSession`; executor/proxy.py, `_start_executor_workers`: `poll(1)` in a loop).
- B2: one launch by upstream's script serves one LLM (llmapi/mpi_session.py, `RemoteMpiCommSessionClient`: its socket is
  a PAIR).
- B3 `RANKS_LEAVE_THE_SESSION`: Open MPI's daemon has a session of its own, and ranks outlive the process that asked for
  them (orte/mca/ess/singleton: `orted --set-sid`). `FAKE_SLOW_SHUTDOWN_S`: `shutdown` joins what every rank frees.
- D2 `DEAD_RANKS_ARE_NOT_NOTICED`: the futures of a rank that was killed never complete (executor/proxy.py; upstream's
  executor/worker_process_monitor.py came in 2026, "without relying on MPI futures").
- D3: an error of a background thread makes the next call shut down in the caller's thread, which waits for the ranks
  (executor/executor.py, `_handle_background_error`). `FAKE_BACKGROUND_ERROR` names a file that is such an error.

What is no behaviour of upstream but an accident that a test wants is told by environment, all names begin with FAKE_:
FAKE_RANKS=off starts none; FAKE_RANK_ACCIDENT is what happens to the last rank while it loads (`killed`, `oom`,
`stuck`); while FAKE_BUSY_RANKS names a file that is there, ranks spin.
"""

import itertools
import math
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MIB_OF_A_RANK = 60_000
_SERVER = "mpi4py.futures.server"
_TICK_S = 0.05
_LOAD_S = 1.0
_FOREVER_S = 3600.0

# Behaviours that a test may take away, by FAKE_WITHOUT: names with commas between them.
BEHAVIOURS = ("MPI_NEEDS_A_LAUNCHER", "RANKS_LEAVE_THE_SESSION", "DEAD_RANKS_ARE_NOT_NOTICED")


def is_on(behaviour: str) -> bool:
    """Return whether no test has taken a behaviour away."""
    assert behaviour in BEHAVIOURS, behaviour
    return behaviour not in os.environ.get("FAKE_WITHOUT", "").split(",")


def world_size_of(args: Any) -> int:
    """Return the number of ranks, as upstream multiplies it."""
    sizes = (getattr(args, f"{name}_parallel_size", None) or 1 for name in ("tensor", "pipeline", "context"))
    return math.prod(sizes)


class Ranks:
    """The workers of one LLM; none where the executor runs in the process of its caller."""

    def __init__(self, args: Any) -> None:
        self._connections: list[socket.socket] = []
        self._is_over = threading.Event()
        num_ranks = world_size_of(args)
        is_single = num_ranks == 1 and os.environ.get("TLLM_WORKER_USE_SINGLE_PROCESS") == "1"
        is_bound_to_others = os.environ.get("TLLM_SPAWN_PROXY_PROCESS") == "1"
        if is_single or is_bound_to_others or os.environ.get("FAKE_RANKS") == "off":
            if is_single and os.environ.get("FAKE_GPU_MEMORY"):
                hold_memory()
            return
        self._listener = socket.socket(socket.AF_UNIX)
        address = f"fake-trtllm-{os.getpid()}-{secrets.token_hex(4)}"
        self._listener.bind(f"\0{address}")
        self._listener.listen(num_ranks)
        spawner = threading.Thread(target=self._spawn, args=(num_ranks, address), name="Thread-3 (_manager_spawn)")
        spawner.daemon = True
        spawner.start()
        self._wait_until_ready(num_ranks)

    def _spawn(self, num_ranks: int, address: str) -> None:
        is_launched = "OMPI_COMM_WORLD_RANK" in os.environ or "PMIX_RANK" in os.environ
        if is_on("MPI_NEEDS_A_LAUNCHER") and not is_launched:
            from mpi4py import MPI  # type: ignore[import-not-found]  # noqa: PLC0415 - the generated one

            raise MPI.Exception("MPI_ERR_SPAWN: could not spawn processes")
        # What MPI starts has the environment of its launcher, and of ours only what the pool hands on.
        initial = Path("/proc/self/environ").read_bytes().split(b"\0")
        environ = {
            name.decode(): value.decode() for name, _, value in (entry.partition(b"=") for entry in initial) if name
        }
        environ |= {name: value for name, value in os.environ.items() if name.startswith(("TRTLLM", "TLLM"))}
        subprocess.Popen(
            [sys.executable, "-m", "trtllm_ranks", "orted", str(num_ranks), address],
            env=environ,
            start_new_session=is_on("RANKS_LEAVE_THE_SESSION"),
        )

    def _wait_until_ready(self, num_ranks: int) -> None:
        while len(self._connections) < num_ranks:
            if select.select([self._listener], [], [], _TICK_S)[0]:
                self._connections.append(self._listener.accept()[0])
        self._listener.close()
        said = [self._ask(connection, b"load") for connection in self._connections]
        if any(answer == b"oom" for answer in said):
            # What a worker says before the first request is raised here, when all of them have been shut down.
            self.shutdown()
            raise RuntimeError("Executor worker returned error")

    def step(self) -> None:
        """Return when every rank has done its part of an iteration."""
        for connection in self._connections:
            self._ask(connection, b"step")

    def _ask(self, connection: socket.socket, what: bytes) -> bytes:
        try:
            connection.sendall(what)
            answer = connection.recv(16)
        except OSError:
            answer = b""
        if not answer and not self._is_over.is_set():
            if not is_on("DEAD_RANKS_ARE_NOT_NOTICED"):
                raise RuntimeError("a rank has died")
            time.sleep(_FOREVER_S)  # the others wait for it in NCCL
        return answer

    def check_background(self) -> None:
        """Meet an error of a background thread as upstream does: shut down here and now, then raise it."""
        if Path(os.environ.get("FAKE_BACKGROUND_ERROR", "/nowhere")).exists():
            time.sleep(_FOREVER_S)  # joining the futures of ranks that do not end

    def shutdown(self) -> None:
        """Make every rank free what it holds, and wait for that."""
        self._is_over.set()
        time.sleep(float(os.environ.get("FAKE_SLOW_SHUTDOWN_S", "0")))
        for connection in self._connections:
            self._ask(connection, b"quit")
            connection.close()


def hold_memory(mib: int = MIB_OF_A_RANK) -> None:
    """Make this process hold memory of a GPU, as the stand-in of nvidia-smi shows it."""
    folder = os.environ.get("FAKE_GPU_MEMORY")
    if folder:
        gpu = int(os.environ.get("FAKE_RANK", "0"))
        Path(folder, str(os.getpid())).write_text(f"{gpu} {mib}", encoding="utf-8")


def run_orted(num_ranks: int, address: str) -> None:
    """Run as Open MPI's daemon: the parent of the ranks, which ends when they have."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", _SERVER, address, str(rank), str(num_ranks)],
            env=os.environ | {"FAKE_RANK": str(rank)},
            start_new_session=is_on("RANKS_LEAVE_THE_SESSION"),
        )
        for rank in range(num_ranks)
    ]
    for rank in ranks:
        rank.wait()


def run_rank(address: str, rank: int, num_ranks: int) -> None:
    """Run as a rank: load, take part in each step, and outlive the process that asked for it."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{address}")
    hold_memory()
    for number in itertools.count():
        try:
            asked = connection.recv(16)
        except OSError:
            asked = b""
        if not asked:
            time.sleep(_FOREVER_S)  # nobody tells it to end
        answer = asked
        if number == 0 and rank == num_ranks - 1:
            answer = _meet_accident(asked)
        while Path(os.environ.get("FAKE_BUSY_RANKS", "/nowhere")).exists():
            pass
        connection.sendall(answer)
        if asked == b"quit":
            return


def _meet_accident(asked: bytes) -> bytes:
    # Upstream measured 50 to 65 s from the spawn to the end of the import (llmapi/mpi_session.py, on its timeouts).
    time.sleep(_LOAD_S)
    match os.environ.get("FAKE_RANK_ACCIDENT"):
        case "killed":
            sys.stderr.write("NCCL WARN Call to ibv_modify_qp failed\n")
            os.kill(os.getpid(), signal.SIGKILL)
        case "oom":
            sys.stderr.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
            return b"oom"
        case "stuck":
            time.sleep(_FOREVER_S)
    return asked


if __name__ == "__main__":
    run_orted(int(sys.argv[2]), sys.argv[3])
