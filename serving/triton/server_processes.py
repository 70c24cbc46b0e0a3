# SPDX-License-Identifier: Apache-2.0
"""The processes of a server beside tritonserver itself, found by their command lines: stubs, engines, guards."""

import contextlib
import os
from pathlib import Path

import psutil

from serving.process.run_dir import RUN_DIR_VARIABLE


def with_argument(pid: int, *ends: str) -> list[psutil.Process]:
    """Return the processes below `pid` that have an argument with one of these ends."""
    found = []
    for process in _descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(part.endswith(ends) for part in process.cmdline()):
                found.append(process)
    return found


def engine_pids(pid: int) -> dict[tuple[str, int], int]:
    """Return the process ids of the engines below a server, by model and version."""
    found = {}
    for process in _descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if "serving.engine_process.engine_loop" in command and "--inner" not in command:
                folder = Path(command[command.index("--release") + 1])
                found[folder.parent.name, int(folder.name)] = process.pid
    return found


def guards_of(run_dir: Path) -> list[psutil.Process]:
    """Return the guards of engines of the server with this folder; their stubs may be gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_guard = "serving.engine_guard" in process.cmdline()
            if is_guard and process.environ().get(RUN_DIR_VARIABLE) == str(run_dir):
                found.append(process)
    return found


def has_living_member(group: int) -> bool:
    """Return whether a process of a process group lives; a zombie does not."""
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
