# SPDX-License-Identifier: Apache-2.0
"""Many files copied at once: each is hashed on the way, and continued where an earlier copy ended."""

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ensemble_configs.releases.file_hashes import hash_files
from trireme.base.durable_files import sync
from trireme.base.errors import SpecError

_BLOCK_BYTES = 4 << 20
_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

OnBytes = Callable[[int], object]


class FileCopy(NamedTuple):
    """A file to copy, and the size and hash that its copy must have."""

    source: Path
    target: Path
    sha256: str
    size: int


def copy_files(copies: Sequence[FileCopy], *, num_jobs: int, on_bytes: OnBytes) -> int:
    """Copy all files, the largest first, and return the bytes copied, without those of earlier attempts.

    Args:
        copies: a target that is there already counts as the beginning of a copy.
        num_jobs: files at a time.
        on_bytes: called with every step forward (and back, where an earlier beginning turns out to be wrong), from any
            thread.

    Raises:
        SpecError: a source cannot be read or is not what it must be, or a target cannot be written. What was copied
            stays, for the next attempt.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(num_jobs) as pool:
        try:
            largest_first = sorted(copies, key=lambda copy: copy.size, reverse=True)
            running = [pool.submit(_copy, copy, on_bytes, stop) for copy in largest_first]
            return sum(future.result() for future in as_completed(running))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _copy(copy: FileCopy, on_bytes: OnBytes, stop: threading.Event) -> int:
    with _writing(copy.target):
        copy.target.parent.mkdir(parents=True, exist_ok=True)
        num_kept = copy.target.stat().st_size if copy.target.exists() else 0
    if num_kept and (num_copied := _try(copy, num_kept, on_bytes, stop)) is not None:
        return num_copied
    num_copied = _try(copy, 0, on_bytes, stop)
    if num_copied is None:
        raise SpecError(
            f"{copy.source} is not what its release lists ({copy.size} bytes with SHA-256 {copy.sha256}); "
            "build the release again, or pull it again if it was sealed meanwhile",
            file=copy.source,
        )
    return num_copied


def _try(copy: FileCopy, num_kept: int, on_bytes: OnBytes, stop: threading.Event) -> int | None:
    """Return the bytes copied behind those that are kept.

    None: kept and copied bytes together are not the file.
    """
    digest = hashlib.sha256()
    num_read = 0

    def count(block: bytes) -> None:
        nonlocal num_read
        if stop.is_set():
            raise _Stopped
        digest.update(block)
        num_read += len(block)
        on_bytes(len(block))

    with _writing(copy.target), copy.target.open("r+b" if num_kept else "wb") as target:
        for block in _blocks(target, min(num_kept, copy.size)):
            count(block)
        with _reading(copy.source):
            source = copy.source.open("rb")
        with source:
            source.seek(num_read)
            # One byte more than there should be tells a source that has grown.
            for block in _from_source(copy.source, source, copy.size - num_read + 1):
                count(block)
                target.write(block)
        target.truncate()
        target.flush()
        os.fsync(target.fileno())
    if num_read == copy.size and digest.hexdigest() == copy.sha256:
        return max(0, num_read - num_kept)
    on_bytes(-num_read)
    copy.target.unlink()
    return None


def _blocks(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    while num_bytes > 0 and (block := file.read(min(num_bytes, _BLOCK_BYTES))):
        num_bytes -= len(block)
        yield block


def _from_source(path: Path, file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    blocks = _blocks(file, num_bytes)
    while True:
        with _reading(path):
            block = next(blocks, None)
        if block is None:
            return
        yield block


class _Stopped(Exception):
    """Raised in a copy to stop it because another file could not be copied."""


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise SpecError(
            f"cannot read {path}: {exc.strerror}; see that the source is there, and pull again to go on", file=path
        ) from exc


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        next_step = "free some space, or lower --max-bytes" if exc.errno in _IS_FULL else "see who may write there"
        raise SpecError(
            f"cannot write {path}: {exc.strerror}; {next_step}, and pull again to go on", file=path
        ) from exc


def read_back(copies: Sequence[FileCopy]) -> None:
    """Read all targets from the disk, not from memory as far as the kernel lets us, and compare them.

    Raises:
        SpecError: the disk gives back something else than was written; those files are removed.
    """
    for copy in copies:
        sync(copy.target)
        with copy.target.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    hashes = hash_files([copy.target for copy in copies])
    wrong = [copy.target for copy, found in zip(copies, hashes, strict=True) if found != copy.sha256]
    for path in wrong:
        path.unlink()
    if wrong:
        raise SpecError(
            f"{wrong[0]} was read back with other bytes than were written; see to the disk, and pull again",
            file=wrong[0],
        )
