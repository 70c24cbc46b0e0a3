# SPDX-License-Identifier: Apache-2.0
"""Parts of an engine's guard: the causes that it finds in a log, and its wait for the memory of GPUs."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.engine_guard import gpu_memory
from serving.engine_guard import guard_messages as messages
from serving.engine_guard.failure_causes import CAUSES, describe_failure, find_cause
from serving.engine_guard.gpu_memory import GpuMemory
from serving.engine_guard.guard_messages import MAX_LINES
from serving.engine_guard.last_lines import LastLines
from serving.process.process_identity import start_ticks

GIB = 1 << 30


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mpi4py.MPI.Exception: MPI_ERR_SPAWN: could not spawn processes", "MPI could not start the ranks"),
        ("All nodes which are allocated for this job are already filled.", "MPI could not start the ranks"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "a GPU's memory is full"),
        ("[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc: out of memory", "a GPU's memory is full"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver is too old"),
        ("ImportError: libnvinfer.so.10: cannot open shared object file: No such file", "a library is missing"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "shared memory or a disk is full"),
        ("host:1:2 [0] NCCL WARN Cuda failure 'invalid argument'", "through NCCL"),
        ("RuntimeError: CUDA error: invalid device ordinal", "fewer GPUs here than ranks"),
        ("prterun noticed that process rank 1 exited on signal 9 (Killed).", "something has killed a process"),
    ],
)
def test_a_well_known_line_is_explained(line: str, words: str) -> None:
    cause = find_cause(["loading", line, "more"])
    assert cause is not None
    assert words in cause


def test_every_cause_has_a_case_and_other_lines_have_none() -> None:
    assert len(CAUSES) == 8
    assert find_cause(["[TRT-LLM] [I] Rank 0 loading", "warning: slow"]) is None


def test_a_failure_shows_the_line_that_tells_its_cause_and_the_last_ones_before_our_own() -> None:
    lines = ["CUDA out of memory", *(f"line {n}" for n in range(20)), "x the engine has failed", "Traceback"]
    cause, shown = describe_failure(lines)
    assert cause.startswith("a GPU's memory is full")
    assert shown == "its log ends: CUDA out of memory | line 15 | line 16 | line 17 | line 18 | line 19"


def test_a_telling_line_is_kept_though_many_follow(capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    lines = LastLines(read)
    text = "MPI_ERR_SPAWN\n" + "".join(f"line {number}\n" for number in range(100)) + "begun"
    os.write(write, text.encode())
    os.close(write)
    kept = lines.take()
    assert kept[0] == "MPI_ERR_SPAWN"
    assert kept[-1] == "begun"
    assert len(kept) == MAX_LINES + 1
    assert capfd.readouterr().err == text, "all of it goes on to the server's log"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuMemory]:
    """Return `memory([80, 20, 80], holders)`: free GiB at each look, and the named holders."""
    monkeypatch.setattr(gpu_memory, "_POLL_S", 0.01)
    monkeypatch.setattr(gpu_memory, "_SETTLED_S", 0.05)

    def make(free: list[int], holders: dict[int, str] | None = None) -> GpuMemory:
        rest = list(free)

        def read() -> tuple[int, ...]:
            return ((rest.pop(0) if len(rest) > 1 else rest[0]) * GIB,)

        made = GpuMemory(read, lambda: holders or {})
        made.note_before_start()
        return made

    return make


def test_memory_that_comes_back_late_is_waited_for(memory: Callable[..., GpuMemory]) -> None:
    assert memory([80, 20, 20, 50, 80]).wait_until_free([7], timeout_s=5) is None


def test_memory_that_another_engine_has_taken_is_not_waited_for(memory: Callable[..., GpuMemory]) -> None:
    assert memory([80, 40], {8: "process 8 (python3, 40000 MiB)"}).wait_until_free([7], timeout_s=5) is None


def test_memory_that_a_process_of_the_ended_engine_holds_is_told_by_name(memory: Callable[..., GpuMemory]) -> None:
    held = memory([80, 20], {7: "process 7 (python3, 60000 MiB)"}).wait_until_free([7], timeout_s=0.1)
    assert held == (
        "0.1 s after the engine's end 61440 MiB of GPU 0 are not free again, held by process 7 (python3, 60000 MiB)"
    )


def test_a_machine_without_gpus_has_nothing_to_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = GpuMemory()
    made.note_before_start()
    assert made.wait_until_free([1]) is None


def test_a_rank_that_runs_its_program_late_is_found_and_what_a_rank_starts_is_none(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.sh"
    launcher.write_text("(sleep 1; exec bash -c '(sleep 3; exit); sleep 3600' works) & echo $! >pid; wait; sleep 3600")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = tmp_path / "launch"
    order = messages.Order(
        command=["bash", "-c", f"cd {tmp_path}; . {launcher}"],
        socket_path=str(tmp_path / "door"),
        folder=str(folder),
        rank_words=["works"],
        cpus=None,
        close_timeout_s=0.0,
    )
    guard = subprocess.Popen(
        [sys.executable, "-m", "serving.engine_guard", str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    try:
        messages.send(ours, order)
        found = messages.receive(ours, messages.RankFound)
        assert isinstance(found, messages.RankFound)
        assert found.pid == int((tmp_path / "pid").read_text())
        assert found.start_ticks == start_ticks(found.pid)
        ours.settimeout(1.0)
        with pytest.raises(TimeoutError):
            ours.recv(1)
    finally:
        messages.send(ours, messages.End())
        guard.wait(20)
        ours.close()
