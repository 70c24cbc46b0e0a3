# SPDX-License-Identifier: Apache-2.0
"""The guard's loop: it starts an engine, sees ranks die, and ends all processes with the engine or the adapter."""

import contextlib
import os
import selectors
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path

import psutil

from serving.engine_guard import guard_messages as messages
from serving.engine_guard.last_lines import LastLines
from serving.engine_guard.process_tree import (
    command_of,
    end_processes,
    end_with_parent,
    is_running,
    processes_below,
    reap_orphans,
)
from serving.engine_guard.shared_files import SharedFiles
from serving.process.process_identity import start_ticks
from trireme.base.unix_socket import UnixListener

_POLL_S = 0.1
_LOOK_S = 0.3  # between two searches for new ranks while the engine loads
_SETTLED_LOOK_S = 5.0  # and when it has loaded
# An engine that notices the end of a rank by itself reports more than the guard can.
_ENGINE_SPEAKS_S = 1.0
_MARGIN_S = 1.0


class Guard:
    """A guard over an engine and every process that the engine starts.

    Args:
        control: socket to the adapter; it is closed when the adapter ends.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._order, fds = messages.receive_order(control)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._is_loaded = False
        self._end_by_s: float | None = None  # time by which the engine is to end by itself
        self._is_closing = False
        self._engine_itself: psutil.Process | None = None  # `_engine`, or the process that it has launched
        self._ranks: dict[int, psutil.Process] = {}
        self._commands: dict[int, str] = {}
        self._looked_s = 0.0
        self._shared_files = SharedFiles(self._order.left_files)
        self._fds = fds
        self._door: UnixListener | None = self._open_door()
        if self._order.cpus is not None:
            with contextlib.suppress(OSError):  # the engine's process says which core is not there
                os.sched_setaffinity(0, self._order.cpus)
        self._engine = self._start()

    def run(self) -> None:
        """Run until no process of the engine is left."""
        while self._engine.poll() is None and not self._is_time_up():
            for ready, _ in self._selector.select(_POLL_S):
                if ready.fileobj is self._control:
                    self._heed(messages.receive(self._control, messages.FromAdapter))  # type: ignore[arg-type]
                else:
                    self._hand_over()
            self._look_at_ranks()
            if self._engine_itself is not None and not is_running(self._engine_itself):
                self._close_by(0.0)  # its launcher may wait for ranks that no process ends
            reap_orphans(but=self._engine.pid)
        self._finish()

    def end_soon(self) -> None:
        """End the engine and its processes soon, as at a signal."""
        self._end_by_s = time.monotonic()

    # The engine

    def _start(self) -> "subprocess.Popen[bytes]":
        read, write = os.pipe()
        self._lines = LastLines(read)
        try:
            return subprocess.Popen(
                self._order.command,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - the thread of LastLines holds no lock
            )
        finally:
            os.close(write)

    def _open_door(self) -> UnixListener:
        door = UnixListener(Path(self._order.socket_path))
        self._selector.register(door.socket, selectors.EVENT_READ)
        return door

    def _hand_over(self) -> None:
        assert self._door is not None
        caller, _ = self._door.socket.accept()
        with caller:
            self._engine_itself = psutil.Process(_pid_of(caller))
            socket.send_fds(caller, [b"\0"], self._fds)
        self._drop_fds()  # the adapter is to see the end of the engine, not of the guard
        self._close_door()

    def _close_door(self) -> None:
        if self._door is not None:
            self._selector.unregister(self._door.socket)
            self._door.remove()
            self._door.socket.close()
            self._door = None

    def _drop_fds(self) -> None:
        for descriptor in self._fds:
            os.close(descriptor)
        self._fds = []

    # The adapter

    def _heed(self, message: object) -> None:
        match message:
            case messages.Loaded():
                self._is_loaded = True
                self._looked_s = 0.0
            case messages.End():
                self.end_soon()
            case messages.Closing():
                self._close_by(self._order.close_timeout_s)
            case None:
                self._selector.unregister(self._control)
                self._close_by(self._order.close_timeout_s)

    def _close_by(self, timeout_s: float) -> None:
        self._is_closing = True
        end_by_s = time.monotonic() + timeout_s + _MARGIN_S
        self._end_by_s = end_by_s if self._end_by_s is None else min(end_by_s, self._end_by_s)

    def _is_time_up(self) -> bool:
        return self._end_by_s is not None and time.monotonic() >= self._end_by_s

    def _tell(self, message: messages.FromGuard) -> None:
        with contextlib.suppress(OSError):
            messages.send(self._control, message)

    # The ranks

    def _look_at_ranks(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._looked_s + (_SETTLED_LOOK_S if self._is_loaded else _LOOK_S):
            self._looked_s = now_s
            self._find_ranks()
        if self._is_closing:
            return
        for rank in self._ranks.values():
            if not is_running(rank):
                self._is_closing = True
                self._tell(messages.RankDied(rank.pid, self._commands[rank.pid]))
                self._end_by_s = now_s + _ENGINE_SPEAKS_S
                return

    def _find_ranks(self) -> None:
        processes = processes_below()
        self._find_shared_files(processes)
        # All are read each time: a process has its parent's command line until it runs its own program.
        for process in processes:
            if process.pid not in self._ranks and process.pid != self._engine.pid and self._is_rank(process):
                self._ranks[process.pid] = process
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._tell(messages.RankFound(process.pid, start_ticks(process.pid)))

    def _find_shared_files(self, processes: list[psutil.Process]) -> None:
        if found := self._shared_files.look([process.pid for process in processes]):
            self._tell(messages.SharedFilesFound(found))

    def _is_rank(self, process: psutil.Process) -> bool:
        command = command_of(process)
        if not any(word in command for word in self._order.rank_words):
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.ppid() in self._ranks:  # what a rank starts is none, and may end
                return False
        self._commands[process.pid] = command
        return True

    # The end

    def _finish(self) -> None:
        self._close_door()
        self._drop_fds()
        processes = processes_below()
        self._find_shared_files(processes)
        pids = [process.pid for process in processes]
        end_processes(self._reap)
        self._shared_files.remove()
        shutil.rmtree(self._order.folder, ignore_errors=True)  # the files that a killed launcher has left
        self._tell(
            messages.Ended(
                status=self._engine.poll() or 0,
                lines=self._lines.take(),
                pids=sorted({*pids, *self._ranks, self._engine.pid}),
            )
        )

    def _reap(self) -> None:
        self._engine.poll()
        reap_orphans(but=self._engine.pid)


def _pid_of(caller: socket.socket) -> int:
    """Return the id of the process at the other end of a socket."""
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)
