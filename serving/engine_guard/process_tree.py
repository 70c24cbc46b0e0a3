# SPDX-License-Identifier: Apache-2.0
"""The processes below this process, in any session or group: found, waited for and ended.

This process has to be their subreaper: processes that a launcher's daemon leaves behind then stay below it, and can be
found.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

import psutil

_LIBC = ctypes.CDLL(None)  # loaded before any fork: other threads run by then, and may hold the loader's lock
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TERMINATE_S = 3.0  # for mpirun to end its ranks
_KILL_S = 10.0  # for the kernel to take back what a GPU holds of a killed process
_POLL_S = 0.05


def adopt_orphans() -> None:
    """Make every process below this process stay below it, even if a process in between dies."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def processes_below() -> list[psutil.Process]:
    """Return the running processes below this process, without zombies."""
    return [process for process in psutil.Process().children(recursive=True) if is_running(process)]


def is_running(process: psutil.Process) -> bool:
    """Return whether a process is there and not a zombie; a new process with a reused number does not count."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process; empty: the process has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return ""


def reap_orphans(*, but: int) -> None:
    """Reap adopted children that have ended.

    Args:
        but: process id of the child that the caller waits for itself.
    """
    # The kernel is asked for one that has ended: looking through all processes of a machine ten times a second costs.
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, os.WNOHANG)


def end_processes(reap: Callable[[], object]) -> None:
    """Terminate, then kill all processes below this process; a process that cannot be killed is left.

    Args:
        reap: reaps children that have ended; called again and again.
    """
    for send, patience_s in ((psutil.Process.terminate, _TERMINATE_S), (psutil.Process.kill, _KILL_S)):
        deadline_s = time.monotonic() + patience_s
        told: set[psutil.Process] = set()
        while there := processes_below():
            for process in there:
                if process not in told:  # newcomers too
                    told.add(process)
                    with contextlib.suppress(psutil.NoSuchProcess):
                        send(process)
            if time.monotonic() > deadline_s:
                break
            time.sleep(_POLL_S)
            reap()
    reap()
