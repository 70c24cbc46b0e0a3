# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of many files at once, and a memory of hashes, so that an unchanged file is not read again."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NUM_THREADS = min(8, os.cpu_count() or 1)  # hashing runs without the GIL; more only fight for the disk
# A file that changed so lately may change again within one tick of its clock, and look the same.
_SETTLED_NS = 2_000_000_000


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_listing(hashes: Mapping[str, str]) -> str:
    """Return one hash for a whole folder: the SHA-256 of its sorted file list, from relative path to SHA-256.

    The list is what `sha256sum` prints: "<sha256>  <path>" and a newline for each, sorted by the bytes of the path.
    """
    lines = (f"{hashes[path]}  {path}\n" for path in sorted(hashes, key=str.encode))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class HashMemory:
    """The hashes of files, with size, inode and times of each file when it was hashed; kept in a file of the user's.

    A file whose size, inode and times of change are the same has the same bytes, unless the disk lost some: its change
    time cannot be set back. A memory that cannot be read or written is an empty one.
    """

    def __init__(self, file: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._file = file
        self._now_ns = now_ns
        self._known: dict[str, list[object]] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._known = dict(json.loads(file.read_text(encoding="utf-8")).items())
        self._seen: dict[str, list[object]] = {}

    @classmethod
    def of_folder(cls, folder: Path) -> "HashMemory":
        """Return the memory of the files of one folder, kept below the user's cache folder (`XDG_CACHE_HOME`)."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        return cls(cache / "trireme" / "hashes" / f"{name}.json")

    def hash(self, path: Path) -> str:
        """Return the SHA-256 of a file, which is read only if it may have changed."""
        before = _stamp(path)
        known = self._known.get(str(path))
        if known and known[1:] == before:
            self._seen[str(path)] = known
            return str(known[0])
        is_settled = self._now_ns() - path.stat().st_ctime_ns > _SETTLED_NS
        digest = hash_file(path)
        if is_settled and _stamp(path) == before:
            self._seen[str(path)] = [digest, *before]
        return digest

    def save(self) -> None:
        """Keep the hashes that were asked for, and forget everything else."""
        if self._seen == self._known:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self._file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(self._seen), encoding="utf-8")
            draft.replace(self._file)


def _stamp(path: Path) -> list[object]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def hash_files(paths: Sequence[Path], *, memory: HashMemory | None = None) -> list[str]:
    """Return the SHA-256 of each file, several at a time; with a `memory`, only files that may have changed are read.

    Raises:
        OSError: a file cannot be read.
    """
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        hashes = list(pool.map(memory.hash if memory else hash_file, paths))
    if memory:
        memory.save()
    return hashes
