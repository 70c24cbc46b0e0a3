# SPDX-License-Identifier: Apache-2.0
"""A server of somebody else's in child processes: started, waited for, and ended with every process that it started."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from trireme.base.errors import ServerError

READY_S = 300.0  # vLLM compiles for one or two minutes when it is started for the first time
_STOP_S = 20.0
_SHOWN_LINES = 20  # of what a server said before it died


class CpuTime:
    """The CPU time of some programs, and of all that they started. Args: `pids` of the programs."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    def __call__(self) -> float:
        """Return the core seconds up to now."""
        return sum(map(cpu_s, self._pids))

    def processes(self) -> list[psutil.Process]:
        """Return the programs and what they started, as they are now."""
        return [process for pid in self._pids for process in family(pid)]


@contextlib.contextmanager
def serving(
    *commands: Sequence[str],
    ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[CpuTime]:
    """Start programs that make one server together; yields what tells their CPU time when `ready` says so.

    Args:
        environment: besides this process's own.
        folder: in which they run. None: this process's own.

    Raises:
        ServerError: one of them ended, or they were not ready in time; with the last of what they said.
    """
    with tempfile.TemporaryFile() as said, contextlib.ExitStack() as stack:
        children = [stack.enter_context(_child(command, environment or {}, folder, said)) for command in commands]
        deadline_s = time.monotonic() + READY_S
        while not ready():
            if any(child.poll() is not None for child in children) or time.monotonic() > deadline_s:
                commanded = " and ".join(shlex.join(command) for command in commands)
                raise ServerError(f"{commanded} did not become ready; its last lines:\n{_last_lines(said)}")
            time.sleep(0.5)
        yield CpuTime([child.pid for child in children])


def cpu_s(pid: int) -> float:
    """Return the core seconds of a process and of all that it started, up to now."""
    total = 0.0
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that it started, as they are now."""
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


@contextlib.contextmanager
def _child(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None, said: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    # A process group, that all of it can be ended; not a session, to which Linux would give its time apart.
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_lines(said: IO[bytes]) -> str:
    said.seek(0)
    return "\n".join(said.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:])


def without_root(command: Sequence[str], root: Path) -> str:
    """Return a command for a shell in the checkout, wherever that is."""
    return shlex.join(map(str, command)).replace(f"{root}/", "")
