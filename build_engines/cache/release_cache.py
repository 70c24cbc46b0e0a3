# SPDX-License-Identifier: Apache-2.0
"""A cache of releases on a node's own disk, by address: copied whole or not at all, and evicted by age.

CACHE/ADDRESS/            a release, byte by byte that of the source
CACHE/.staging/ADDRESS/   a copy that is being made, or was interrupted; goes on where it ended
CACHE/.trash/             what is being removed
CACHE/.locks/ADDRESS      held by the release's users (`ensemble_configs.releases.release_lock`); has its size in bytes
CACHE/.locks/.eviction    held by the process that decides what to evict
"""

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from build_engines.cache.file_copies import FileCopy, OnBytes, copy_files, read_back
from ensemble_configs.releases.file_hashes import hash_file, hash_listing
from ensemble_configs.releases.release_lock import LOCKS, in_use, lock_file, locked
from ensemble_configs.releases.release_manifest import (
    MANIFEST_FILE,
    PROVENANCE_FILE,
    SIGNATURE_FILE,
    address,
    load_manifest,
    verify,
)
from trireme.base.durable_files import sync
from trireme.base.errors import SpecError

_STAGING, _TRASH, _EVICTION = ".staging", ".trash", ".eviction"
_BESIDE = (PROVENANCE_FILE, SIGNATURE_FILE)
_ADDRESS = re.compile(r"[0-9a-f]{64}")


class Pulled(NamedTuple):
    """The result of a pull."""

    folder: Path
    num_bytes: int  # of the release
    num_copied_bytes: int  # in this call; the rest was there from an earlier one
    copy_s: float  # until it was on the disk
    read_s: float  # to read it back, and hash it
    evicted: tuple[str, ...]


class ReleaseCache:
    """A cache in one folder; any number of processes may use it at once.

    Args:
        folder: is made if it is not there.
        max_bytes: limit for all releases in the cache.
        tell: called with lines that a waiting person may want to read.
    """

    def __init__(self, folder: Path, *, max_bytes: int, tell: Callable[[str], None]) -> None:
        self._folder = folder.resolve()
        self._max_bytes = max_bytes
        self._tell = tell

    def pull(self, source: Path, *, num_jobs: int, on_bytes: OnBytes) -> Pulled:
        """Copy a release into the cache; a release that is there already is read and compared.

        Raises:
            SpecError: the source is no release or not what it lists, there is no room, the disk fails, or what is in
                the cache is another user's. No release is added to the cache then; the next pull continues.
        """
        with self._named_refusals(), in_use(source):  # it may lie in a cache itself
            name, copies = _copies(source, self._folder / _STAGING)
            target = self._folder / name
            lock = lock_file(target)
            lock.parent.mkdir(parents=True, exist_ok=True)
            while True:
                lock.touch()
                is_there = target.is_dir()
                # Shared where it is there, for it may be in use; alone where it is to be made.
                with locked(lock, is_shared=is_there, on_wait=lambda: self._tell("waiting for another pull of it")):
                    if target.is_dir() != is_there:
                        continue  # somebody has made it, or evicted it, meanwhile
                    if is_there:
                        return self._check(target, copies)
                    evicted = self._make_room(target, copies)
                    return self._copy(target, copies, evicted, num_jobs=num_jobs, on_bytes=on_bytes)

    @contextlib.contextmanager
    def _named_refusals(self) -> Iterator[None]:
        """Raise a SpecError for files of the cache that another user owns and does not let us write."""
        try:
            yield
        except PermissionError as exc:
            path = Path(exc.filename or self._folder)
            if not path.is_relative_to(self._folder):
                raise
            raise SpecError(f"cannot write {path}: {exc.strerror}; {_owner_advice(path)}", file=path) from exc

    def _check(self, target: Path, copies: list[FileCopy]) -> Pulled:
        started_s = time.monotonic()
        staging = self._folder / _STAGING / target.name
        try:
            verify(target)
        except SpecError as exc:
            raise SpecError(
                f"{exc.message}. Stop what serves it, remove {target}, and pull again", file=target
            ) from exc
        for name in _BESIDE:
            self._replace(target / name, [copy for copy in copies if copy.target == staging / name])
        return Pulled(target, _num_bytes(copies), 0, 0.0, time.monotonic() - started_s, ())

    def _replace(self, path: Path, copies: list[FileCopy]) -> None:
        """Replace a file beside the content that may have come later, such as a signature."""
        for copy in copies:
            content = copy.source.read_bytes()
            if not path.is_file() or path.read_bytes() != content:
                draft = self._folder / _STAGING / f"{path.parent.name}.{path.name}.{os.getpid()}"
                draft.write_bytes(content)
                draft.replace(path)

    def _copy(
        self, target: Path, copies: list[FileCopy], evicted: tuple[str, ...], *, num_jobs: int, on_bytes: OnBytes
    ) -> Pulled:
        staging = self._folder / _STAGING / target.name
        _remove_others(staging, keep={copy.target for copy in copies})
        started_s = time.monotonic()
        num_copied = copy_files(copies, num_jobs=num_jobs, on_bytes=on_bytes)
        for folder in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
            sync(folder)
        copied_s = time.monotonic()
        read_back(copies)
        read_s = time.monotonic() - copied_s
        if address(staging) != target.name:
            raise SpecError("the source was sealed again while it was copied; pull again", file=target)
        staging.rename(target)
        sync(self._folder)
        return Pulled(target, _num_bytes(copies), num_copied, copied_s - started_s, read_s, evicted)

    def _make_room(self, target: Path, copies: list[FileCopy]) -> tuple[str, ...]:
        """Evict what was used longest ago until the release fits, under the limit and on the disk.

        Raises:
            SpecError: the release does not fit, even without all that is not in use; nothing was evicted.
        """
        locks = self._folder / LOCKS
        (locks / _EVICTION).touch()
        with locked(locks / _EVICTION, is_shared=False, on_wait=lambda: self._tell("waiting for another's eviction")):
            shutil.rmtree(self._folder / _TRASH, ignore_errors=True)  # of one that was killed meanwhile
            others = {lock: _size(lock) for lock in locks.iterdir() if self._is_other(lock, target)}
            need = _num_bytes(copies)
            on_disk = sum(copy.target.stat().st_size for copy in copies if copy.target.exists())
            too_much = max(
                sum(others.values()) + need - self._max_bytes, need - on_disk - shutil.disk_usage(self._folder).free
            )
            evicted = self._evict(others, too_much, need)
            # From here on others count us in.
            lock_file(target).write_text(str(need))
            (self._folder / _STAGING / target.name).mkdir(parents=True, exist_ok=True)
            return evicted

    def _is_other(self, lock: Path, target: Path) -> bool:
        is_release = _ADDRESS.fullmatch(lock.name) and lock.name != target.name
        return bool(is_release) and any(folder.exists() for folder in self._folders(lock.name))

    def _folders(self, name: str) -> tuple[Path, Path]:
        return self._folder / name, self._folder / _STAGING / name

    def _evict(self, others: dict[Path, int], too_much: int, need: int) -> tuple[str, ...]:
        """Evict at least `too_much` bytes."""
        evicted: list[str] = []
        with contextlib.ExitStack() as held:
            by_age = sorted(others, key=lambda lock: lock.stat().st_mtime_ns)
            idle = [lock for lock in by_age if too_much > 0 and held.enter_context(locked(lock, is_shared=False))]
            if too_much > sum(others[lock] for lock in idle):
                raise SpecError(
                    f"{self._folder} has no room for {need:,} bytes: {too_much:,} too many under --max-bytes "
                    f"{self._max_bytes:,} or on the disk, and of {len(others)} other releases "
                    f"{len(others) - len(idle)} are in use; raise --max-bytes, free some space, or name another folder",
                    file=self._folder,
                )
            for lock in idle:
                if too_much > 0:
                    self._remove(lock.name)
                    too_much -= others[lock]
                    evicted.append(lock.name)
        return tuple(evicted)

    def _remove(self, name: str) -> None:
        trash = self._folder / _TRASH
        trash.mkdir(exist_ok=True)
        for folder in self._folders(name):
            if folder.exists():  # at one stroke, so that nobody loads half of it
                shutil.rmtree(folder.rename(trash / name))


def _owner_advice(path: Path) -> str:
    there = next(each for each in (path, *path.parents) if os.access(each, os.F_OK))
    status = there.stat()
    owner = f"user {status.st_uid} and group {status.st_gid} ({stat.filemode(status.st_mode)})"
    return (
        f"{there} belongs to {owner}, and this is user {os.geteuid()}; let all who share a cache run as one user, or "
        "name another folder"
    )


def _size(lock: Path) -> int:
    text = lock.read_text()
    return int(text) if text.isdecimal() else 0  # another pull is about to write it


def _copies(source: Path, staging: Path) -> tuple[str, list[FileCopy]]:
    """Return the address of a release, and its files with their targets in `staging`."""
    manifest = load_manifest(source)
    content = {name: (file.sha256, file.size) for name, file in manifest.files.items()}
    content[MANIFEST_FILE] = _fact(source / MANIFEST_FILE)
    name = hash_listing({path: digest for path, (digest, _) in content.items()})
    for beside in _BESIDE:
        if (source / beside).is_file():
            content[beside] = _fact(source / beside)
    return name, [FileCopy(source / path, staging / name / path, *fact) for path, fact in content.items()]


def _fact(path: Path) -> tuple[str, int]:
    return hash_file(path), path.stat().st_size


def _num_bytes(copies: list[FileCopy]) -> int:
    return sum(copy.size for copy in copies)


def _remove_others(staging: Path, *, keep: set[Path]) -> None:
    """Remove staged files of an earlier attempt that are not in the release any more."""
    for path in [path for path in staging.rglob("*") if not path.is_dir() and path not in keep]:
        path.unlink()
