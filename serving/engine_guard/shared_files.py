# SPDX-License-Identifier: Apache-2.0
"""The files in shared memory that an engine's processes have made, removed when they have ended.

A process that is killed leaves them: they are found while it lives, by what it maps. vLLM's ranks leave rings of
messages (`psm_*`), semaphores (`sem.mp-*`) and memory for their sums (`*-cpushm_*`).
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


class SharedFiles:
    """The files that came since this was made, and that are of some processes: mapped by one, or named by its id.

    Args:
        named: paths of files that a process makes and does not map, with its id for `{pid}`.
        folder: where POSIX shared memory is.
    """

    def __init__(self, named: Sequence[str] = (), folder: Path = SHARED_MEMORY) -> None:
        self._named = named
        self._folder = folder
        self._others = set(_files_in(folder))
        self._seen: set[str] = set()  # in the last look, and of none of ours yet
        self._ours: set[str] = set()

    def look(self, pids: Sequence[int]) -> list[str]:
        """Return the files of these processes that no look before has found, by name."""
        new = {
            name: inode
            for name, inode in _files_in(self._folder).items()
            if name not in self._others and name not in self._ours
        }
        if not new:
            return []
        mapped = {inode for pid in pids for inode in _inodes_mapped_by(pid, self._folder)}
        named = {Path(path.format(pid=pid)).name for pid in pids for path in self._named}
        found = {name for name, inode in new.items() if inode in mapped or name in named}
        self._ours |= found
        # A file is mapped at once when it has been made; one that is not by the next look is somebody else's.
        self._others |= (new.keys() - found) & self._seen
        self._seen = new.keys() - found
        return sorted(found)

    def remove(self) -> None:
        """Remove all that was found and is still there."""
        remove_shared_files(self._ours, self._folder)


def remove_shared_files(names: Iterable[str], folder: Path = SHARED_MEMORY) -> None:
    """Remove files of shared memory by name; one that is gone is none."""
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def _files_in(folder: Path) -> dict[str, int]:
    """Return the inodes of the files in a folder, by name; a semaphore is mapped under a name that it has no more."""
    files = {}
    with contextlib.suppress(OSError):  # a machine without such a folder
        for entry in os.scandir(folder):
            files[entry.name] = entry.inode()
    return files


def _inodes_mapped_by(pid: int, folder: Path) -> set[int]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:  # it has ended
        return set()
    return {int(line.split(maxsplit=5)[4]) for line in lines if f" {folder}/" in line}
