# SPDX-License-Identifier: Apache-2.0
"""The folder in which a build keeps what it has finished: a folder for each stage's outputs, with a stamp.

OUT/.building-<recipe>/lock                held by the build and by whatever it has started
OUT/.building-<recipe>/<stage>/            outputs of a finished stage
OUT/.building-<recipe>/<stage>.stamp.json  written after them: their hashes, and the hash of what made them
OUT/.building-<recipe>/<stage>.partial/    outputs of a stage that runs
OUT/.building-<recipe>/logs/               what the tools wrote
OUT/.removing-<random>/                    a folder that nobody needs any more; the next build removes the rest of it
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from ensemble_configs.releases.file_hashes import HashMemory, hash_files, hash_listing
from trireme.base.durable_files import sync, write_atomically
from trireme.base.errors import BuildError
from trireme.base.known_types import known

_PREFIX = ".building-"
_REMOVING = ".removing-"
_LOCK_WAIT_S = 20.0  # what is left of a build that was killed is gone sooner


def partial_of(stage: str) -> str:
    """Return the folder that a stage writes to until it is finished, relative to the work folder."""
    return f"{stage}.partial"


class Stamp(msgspec.Struct, frozen=True):
    """A record of a finished stage and the hashes of its outputs."""

    key: str  # SHA-256 of what its outputs were made from
    outputs: dict[str, str]  # relative path to SHA-256
    duration_s: float
    finished_at: str

    @property
    def sha256(self) -> str:
        """Return one SHA-256 for all outputs."""
        return hash_listing(self.outputs)


class WorkFolder:
    """The folder of one recipe's builds, locked while this is open."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock

    @classmethod
    def at(cls, out: Path, recipe_sha256: str) -> Path:
        """Return the path of a recipe's work folder."""
        return out / f"{_PREFIX}{recipe_sha256[:16]}"

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, *, wait_s: float = _LOCK_WAIT_S, on_wait: Callable[[], None] | None = None
    ) -> Iterator[Self]:
        """Make the folder, if need be, and lock it.

        Args:
            path: the folder.
            wait_s: how long another build may take to be done with it.
            on_wait: called once, if another build has it.

        Raises:
            BuildError: another build has it.
        """
        deadline = time.monotonic() + wait_s
        while (lock := _try_lock(path)) is None:
            if on_wait is not None:
                on_wait()
                on_wait = None
            if time.monotonic() > deadline:
                raise BuildError(
                    f"another build of this recipe is running in {path}; wait for it, or end it", file=path
                )
            time.sleep(0.05)
        try:
            for leftover in path.parent.glob(f"{_REMOVING}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield cls(path, lock)
        finally:
            os.close(lock)

    @property
    def logs(self) -> Path:
        """Return the folder of the logs."""
        return self.path / "logs"

    def log(self, number: int, stage: str) -> Path:
        """Return the path of a stage's log; a stage that runs no tool has none."""
        return self.logs / f"{number:02}-{stage}.log"

    def finished(self) -> list[str]:
        """Return the stages that have a stamp, in the order in which they were finished."""
        stamps = sorted(self.path.glob("*.stamp.json"), key=lambda path: path.stat().st_mtime_ns)
        return [path.name.removesuffix(".stamp.json") for path in stamps]

    def reusable(self, stage: str, key: str) -> Stamp | None:
        """Return the stamp of a stage with an equal key and untouched outputs, or None."""
        stamp = self._stamp(stage)
        if stamp is None or stamp.key != key:
            return None
        folder = self.path / stage
        if stamp.outputs.keys() != _files(folder).keys():
            return None
        return stamp if self._hashes(stage, folder) == stamp.outputs else None

    def begin(self, stage: str) -> Path:
        """Return an empty folder for a stage's outputs; what earlier attempts of the stage left is removed."""
        self.discard(stage)
        partial = self.path / partial_of(stage)
        partial.mkdir()
        return partial

    def discard(self, stage: str) -> None:
        """Remove all files of a stage."""
        self._stamp_file(stage).unlink(missing_ok=True)
        for folder in (self.path / stage, self.path / partial_of(stage)):
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)

    def finish(self, stage: str, key: str, duration_s: float) -> Stamp:
        """Make what lies in the partial folder the stage's outputs.

        The stamp is written last: outputs without one are those of a build that was killed just then.
        """
        partial, final = self.path / partial_of(stage), self.path / stage
        for file in _files(partial).values():
            sync(file)
        partial.rename(final)
        sync(self.path)
        stamp = Stamp(key, self._hashes(stage, final), round(duration_s, 3), time.strftime("%FT%T%z"))
        write_atomically(self._stamp_file(stage), json.dumps(msgspec.to_builtins(stamp), indent=1) + "\n")
        return stamp

    def remove(self) -> None:
        """Remove the folder with all that is in it.

        The folder first loses its name, in one system call: a build that waits for its lock makes a folder of its own
        instead of a new lock in the one that is being removed, and nobody reuses anything of a folder that was half
        removed when a kill came.
        """
        removed = self.path.with_name(f"{_REMOVING}{secrets.token_hex(8)}")
        self.path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)  # the next build may be removing it as well

    def _stamp_file(self, stage: str) -> Path:
        return self.path / f"{stage}.stamp.json"

    def _stamp(self, stage: str) -> Stamp | None:
        try:
            return msgspec.json.decode(self._stamp_file(stage).read_bytes(), type=known(Stamp))
        except (OSError, msgspec.MsgspecError):
            return None

    def _hashes(self, stage: str, folder: Path) -> dict[str, str]:
        files = _files(folder)
        memory = HashMemory(self.path / f"{stage}.hashes.json")  # resumed, gigabytes are not read again
        return dict(zip(files, hash_files(list(files.values()), memory=memory), strict=True))


def _files(folder: Path) -> dict[str, Path]:
    paths = (path for path in folder.rglob("*") if not path.is_dir())
    return {path.relative_to(folder).as_posix(): path for path in sorted(paths)}


def _try_lock(path: Path) -> int | None:
    """Return the lock's descriptor, or None while another process has it."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:  # perhaps not any more: a build that has just finished removes it
        if path.exists() and not path.is_dir():
            raise
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # removed by a build that has just finished
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino == (path / "lock").stat().st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None
