# SPDX-License-Identifier: Apache-2.0
"""A worker of a node group: an sshd through which the leader starts ranks here, and the wait until they have ended."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from serving.engine_guard.process_tree import adopt_orphans
from serving.multi_node.group_key import program
from serving.multi_node.node_group import SEEN_FILE
from serving.supervisor.stop_signal import StopSignal
from trireme.base.errors import ServerError, SpecError

_CHECK_S = 30.0
_POLL_S = 0.2
_SSHD_END_S = 5.0
_ORPHANS_S = 5.0
_DAEMONS = ("orted", "prted")  # the parents of ranks, in Open MPI 4 and 5


class GroupWorker:
    """An sshd, with the processes that are started through it.

    Args:
        folder: holds `sshd_config`, and the files that it names.
    """

    def __init__(self, folder: Path, tell: Callable[[str], object]) -> None:
        self._folder = folder
        self._tell = tell
        self._daemon_s = time.monotonic()

    def run(self, stop: StopSignal, *, leader_timeout_s: float, exit_timeout_s: float) -> None:
        """Run sshd; return when a stop is asked for and no rank runs here any more.

        Args:
            leader_timeout_s: how long the leader may be silent.
            exit_timeout_s: how long ranks may go on.

        Raises:
            SpecError: sshd refuses its configuration.
            ServerError: sshd has ended, the leader is gone, or ranks go on for too long.
        """
        sshd = program("sshd")
        config = str(self._folder / "sshd_config")
        checked = subprocess.run(
            [sshd, "-t", "-f", config], capture_output=True, text=True, timeout=_CHECK_S, check=False
        )
        if checked.returncode:
            raise SpecError(f"sshd refuses to start here: {' '.join(checked.stderr.split())}", file=config)
        # Open MPI's daemons leave their session; they and their ranks are to stay descendants of this process, even if
        # it is not the first process of a container.
        adopt_orphans()
        process = subprocess.Popen([sshd, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL)
        try:
            self._tell("sshd runs; waiting for the leader")
            self._serve(process, stop, leader_timeout_s)
            self._let_end(process.pid, exit_timeout_s)
        finally:
            _end(process)

    def _serve(self, sshd: "subprocess.Popen[bytes]", stop: StopSignal, leader_timeout_s: float) -> None:
        """Watch sshd and the leader until a stop is asked for."""
        heard_s, seen = time.monotonic(), 0.0
        while not stop.wait(_POLL_S):
            if sshd.poll() is not None:
                raise ServerError(f"sshd has ended with exit status {sshd.returncode}; its last lines are above")
            last = self._last_session()
            if self._processes_of_group(sshd.pid) or last != seen:
                heard_s, seen = time.monotonic(), last
            elif time.monotonic() - heard_s > leader_timeout_s:
                raise ServerError(f"nothing was heard of the leader for {leader_timeout_s:g} s, and no rank runs here")

    def _last_session(self) -> float:
        try:
            return (self._folder / SEEN_FILE).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _let_end(self, sshd_pid: int, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        if there := self._processes_of_group(sshd_pid):
            self._tell(f"asked to stop; {len(there)} processes of the group may run here for {timeout_s:g} s more")
        while there := self._processes_of_group(sshd_pid):
            if time.monotonic() > deadline_s:
                names = ", ".join(sorted({_name(process) for process in there}))
                raise ServerError(f"after {timeout_s:g} s {len(there)} processes of the group still run here: {names}")
            time.sleep(_POLL_S)

    def _processes_of_group(self, sshd_pid: int) -> list[psutil.Process]:
        """Return every process of the group here except sshd itself; end ranks that their daemon has left behind."""
        there = self._descendants(sshd_pid)
        orphans = [process for process in there if _parent(process) == os.getpid()]
        if not orphans or any(_name(process) in _DAEMONS for process in there):
            self._daemon_s = time.monotonic()
        elif time.monotonic() - self._daemon_s > _ORPHANS_S:
            self._tell(f"ending {len(there)} processes of the group, whose daemon is gone")
            for process in there:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        return there

    def _descendants(self, sshd_pid: int) -> list[psutil.Process]:
        """Return all descendants except sshd itself, and reap those that have ended."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if process.pid == sshd_pid:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
                elif process.ppid() == os.getpid():
                    os.waitpid(process.pid, os.WNOHANG)
            except (psutil.NoSuchProcess, ChildProcessError):
                continue
        return found


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "one that has just ended"


def _end(sshd: "subprocess.Popen[bytes]") -> None:
    sshd.terminate()
    try:
        sshd.wait(_SSHD_END_S)
    except subprocess.TimeoutExpired:
        sshd.kill()
        sshd.wait()
