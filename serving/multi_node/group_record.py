# SPDX-License-Identifier: Apache-2.0
"""The leader's record of its server, which is a grandchild of `mpirun`: three small files.

Upstream's script splits its command at white space, and goes on when the server has failed. So the command lies in a
file, and so does the server's exit status.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from serving.process.process_identity import start_ticks
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError


class GroupRecord:
    """The record of one server, in the leader's folder."""

    def __init__(self, folder: Path) -> None:
        self._command = folder / "server.json"
        self._process = folder / "server.pid"
        self._status = folder / "server.status"

    def begin(self, command: Sequence[str]) -> None:
        """Record the command before `mpirun` starts, and forget what was recorded of an earlier server."""
        for path in (self._process, self._status):
            path.unlink(missing_ok=True)
        write_atomically(self._command, json.dumps(list(command)))

    def command(self) -> list[str]:
        """Return the server's command. Raises: SpecError: no leader has written one."""
        try:
            return [str(part) for part in json.loads(self._command.read_text())]
        except (OSError, ValueError) as exc:
            why = f"{self._command} cannot be read: the leader writes it (trireme group leader)"
            raise SpecError(why, file=self._command) from exc

    def note_start(self, server: int) -> None:
        """Record that the server runs, kept by this process."""
        write_atomically(self._process, f"{_name(server)} {_name(os.getpid())}")

    def note_end(self, status: int) -> None:
        """Record that the server has ended."""
        write_atomically(self._status, str(status))

    @property
    def status(self) -> int | None:
        """Return the server's exit status; None: it runs, or has not begun; -9: its keeper died without a record."""
        is_kept = not self._process.is_file() or self._found(1) is not None
        if self._status.is_file():  # read last: the keeper writes it before it ends
            return int(self._status.read_text())
        return None if is_kept else -signal.SIGKILL

    def send(self, number: int) -> bool:
        """Send a signal to the server; return False where there is no server."""
        server = self._found(0)
        if server is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            server.send_signal(number)
        return True

    def kill(self) -> None:
        """Kill the server with all processes that it has started."""
        server = self._found(0)
        if server is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*server.children(recursive=True), server]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=5)

    def _found(self, place: int) -> psutil.Process | None:
        """Return the recorded process at a place of the file, if it still runs: 0 for the server, 1 for its keeper."""
        try:
            name = self._process.read_text().split()[place]
            process = psutil.Process(int(name.partition("@")[0]))
            is_same = _name(process.pid) == name and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.NoSuchProcess):
            return None
        return process if is_same else None


def _name(pid: int) -> str:
    """Return a name of a process that holds for ever: process ids are used again."""
    return f"{pid}@{start_ticks(pid)}"


def run_server(record: GroupRecord, argv: Sequence[str]) -> int:
    """Run the server until it ends, record its start and its end, and return its exit status.

    Signals to the server are the leader's to send.
    """
    with subprocess.Popen(argv) as process:
        record.note_start(process.pid)
        status = process.wait()
    status = 128 - status if status < 0 else status  # ended by a signal: the number that a shell gives
    record.note_end(status)
    return status
