# SPDX-License-Identifier: Apache-2.0
"""The adapter's handle of an engine's process: below a guard, or alone."""

import contextlib
import os
import secrets
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from serving.engine_guard import guard_messages as messages
from serving.engine_guard.failure_causes import describe_failure
from serving.engine_guard.shared_files import remove_shared_files
from serving.engines.seam.engine_start import EngineStart
from serving.process.process_identity import start_ticks

# The guard terminates, kills, and waits for the kernel (`process_tree`); then it is killed itself.
_GUARD_ENDS_S = 20.0
_SLICE_S = 0.1
_LAUNCH_VARIABLE = "TRIREME_LAUNCH"  # in the environment of each process below the guard


class PlainProcess:
    """An engine that starts no processes.

    Args:
        start: plan of the start.
        command: command line of the engine's process.
        fds: descriptors for the engine: its socket to the adapter, and the socket for clients.
        run_dir: folder of the server; the folder of this start is made there, if the plan asks for one.
    """

    def __init__(self, start: EngineStart, command: Sequence[str], *, fds: Sequence[int], run_dir: Path) -> None:
        self._left_files = start.left_files
        self._folder = _make_folder(run_dir) if start.folder_variables else None
        self._process = subprocess.Popen(command, env=start.environment_from(os.environ, self._folder), pass_fds=fds)

    @property
    def pid(self) -> int:
        """Return the process id of the engine."""
        return self._process.pid

    def note_loaded(self) -> None:
        """Do nothing: no guard has to know."""

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` after the connection was closed, and return whether the engine has ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            self._remove_files()
        return self._process.returncode is not None

    def end(self) -> None:
        """Kill the engine."""
        self._process.kill()
        self._process.wait()
        self._remove_files()

    def why_ended(self, timeout_s: float) -> str:
        """Return the engine's exit status; empty: it has not ended within `timeout_s`."""
        return f"status {self._process.returncode}; its log says why" if self.wait(timeout_s) else ""

    @property
    def pids(self) -> set[int]:
        """Return the engine's own process id."""
        return {self._process.pid}

    def _remove_files(self) -> None:
        for path in self._left_files:
            Path(path.format(pid=self._process.pid)).unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class GuardedProcess:
    """An engine with processes of its own, below a guard that is started here.

    Args:
        start: plan of the start.
        guard: command line of the guard's program.
        command: command line of the engine's process, without its launcher.
        fds: descriptors for the engine: its socket to the adapter, and the socket for clients.
        run_dir: folder of the server; the folder of this start is made there.
    """

    def __init__(
        self, start: EngineStart, guard: Sequence[str], command: Sequence[str], *, fds: Sequence[int], run_dir: Path
    ) -> None:
        self._lock = threading.Lock()  # of the fields read from the guard
        self._is_over = False
        self._ended: messages.Ended | None = None
        self._ranks: list[messages.RankFound] = []
        self._shared_files: list[str] = []
        self._dead_rank: messages.RankDied | None = None
        self._folder = _make_folder(run_dir)
        self._door = run_dir / f"door-{secrets.token_hex(3)}"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*guard, str(theirs.fileno())],
                env=start.environment_from(os.environ, self._folder) | {_LAUNCH_VARIABLE: self._folder.name},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        order = messages.Order(
            command=[*start.prefix, *command, "--fetch-fds", str(self._door)],
            socket_path=str(self._door),
            folder=str(self._folder),
            rank_words=list(start.rank_words),
            cpus=None if start.cpus is None else list(start.cpus),
            close_timeout_s=start.close_timeout_s or 0.0,
            left_files=list(start.left_files),
        )
        messages.send(self._control, order, fds=tuple(fds))

    @property
    def pid(self) -> int:
        """Return the process id of the guard."""
        return self._process.pid

    def note_loaded(self) -> None:
        """Make the guard look for new ranks less often."""
        self._say(messages.Loaded())

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`, and return whether the engine and all its processes have ended."""
        self._say(messages.Closing())
        return self._wait(timeout_s)

    def end(self) -> None:
        """Make the guard end the engine and all its processes."""
        self._say(messages.End())
        if not self._wait(_GUARD_ENDS_S):
            self._process.kill()
            self._process.wait()
            self._forget_guard()

    def why_ended(self, timeout_s: float) -> str:
        """Return the engine's exit status, a rank that ended before it, the last lines of the log and their meaning."""
        deadline_s = time.monotonic() + timeout_s
        while self._ended is None and self._read(deadline_s - time.monotonic()):
            pass
        parts = []
        if self._ended is not None:
            parts.append(f"status {self._ended.status}")
        if self._dead_rank is not None:
            parts.append(f"its rank in process {self._dead_rank.pid} ended before")
        if self._ended is not None:
            parts += describe_failure(self._ended.lines)
        return "; ".join(parts)

    @property
    def pids(self) -> set[int]:
        """Return the ids of all processes that ran below the guard, once the guard has ended."""
        return set() if self._ended is None else set(self._ended.pids)

    def _say(self, message: messages.FromAdapter) -> None:
        with contextlib.suppress(OSError):  # it has ended
            messages.send(self._control, message)

    def _wait(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while self._ended is None and self._read(deadline_s - time.monotonic()):
            pass
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()) if self._ended is None else _GUARD_ENDS_S)
        except subprocess.TimeoutExpired:
            return False
        self._forget_guard()
        return True

    def _forget_guard(self) -> None:
        while self._read(0.0):  # its last messages
            pass
        with self._lock:
            self._is_over = True
            self._control.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._door.unlink(missing_ok=True)
        if self._ended is None:  # it was killed itself, and no process below is its descendant any more
            for found in self._ranks:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank = psutil.Process(found.pid)
                    if start_ticks(found.pid) == found.start_ticks:
                        rank.kill()
            self._kill_launched()
            remove_shared_files(self._shared_files)

    def _kill_launched(self) -> None:
        """Kill what a guard that was killed had not told of: all that has this launch in its environment."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_LAUNCH_VARIABLE) == self._folder.name:
                    process.kill()

    def _read(self, left_s: float) -> bool:
        """Read the guard's next messages; False: there is no time left, or no message will come any more.

        Two threads may wait: one for the engine to load, and one that ends it.
        """
        with self._lock:
            if self._is_over or self._ended is not None:
                return False
            if select.select([self._control], [], [], max(0.0, min(left_s, _SLICE_S)))[0]:
                match messages.receive(self._control, messages.FromGuard):  # type: ignore[arg-type]
                    case messages.RankFound() as found:
                        self._ranks.append(found)
                    case messages.RankDied() as died:
                        self._dead_rank = died
                    case messages.SharedFilesFound() as files:
                        self._shared_files += files.names
                    case messages.Ended() as ended:
                        self._ended = ended
                    case None:
                        self._is_over = True
                return not self._is_over
            return left_s > 0


def _make_folder(run_dir: Path) -> Path:
    """Make the folder of a start."""
    folder = run_dir / f"launch-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return folder


EngineProcess = PlainProcess | GuardedProcess
