# SPDX-License-Identifier: Apache-2.0
"""The journal of outcomes: a line for each request that a split sent somewhere, written before its last response.

Each process of a model writes files of its own, so that nobody waits for another, and a process that is killed loses no
line of a request that was answered. A reader goes on from its cursor, how far it has read each file. It keeps the
cursor together with what it made of the lines, in one transaction: so each line counts once, whoever dies when.
"""

import contextlib
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import msgspec

from ensemble_configs.split.outcome import Outcome
from trireme.base.durable_files import draft_of
from trireme.base.errors import RequestError
from trireme.base.known_types import known

OUTCOMES = "outcomes"  # folder of the journals, in the server's

_MAX_FILE_BYTES = 16 << 20
_MAX_READ_BYTES = 4 << 20

Cursor = Mapping[str, int]


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the journal.

    Attributes:
        rollout, step: what the outcome counts for.
        release: release that the split gave the request.
        at_s: time of its end, in seconds since 1970.
    """

    rollout: int
    step: int
    release: int
    at_s: float
    outcome: Outcome


class JournalWriter:
    """The writer of one process, for any number of threads; a file is locked while its writer lives.

    Args:
        folder: folder of the journal; made if it is not there.
        name: name of the writer, for the names of its files.
    """

    def __init__(self, folder: Path, name: str, now_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._name = name
        self._now_s = now_s
        self._lock = threading.Lock()
        self._file: int | None = None
        self._num_bytes = 0

    def write(self, *, rollout: int, step: int, release: int, outcome: Outcome) -> None:
        """Write a line; it outlives this process when this returns.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        line = JournalLine(rollout=rollout, step=step, release=release, at_s=self._now_s(), outcome=outcome)
        data = msgspec.json.encode(line) + b"\n"
        with self._lock:
            if self._file is None or self._num_bytes >= _MAX_FILE_BYTES:
                self._begin_file()
            assert self._file is not None
            written = os.write(self._file, data)
            self._num_bytes += written
            if written < len(data):  # the disk is full: the line has no end, and is left out by readers
                self._close()
                raise OSError(f"only a part of a line could be written to {self._folder}")

    def close(self) -> None:
        """Close the file; a reader may remove it once it is read."""
        with self._lock:
            self._close()

    def _begin_file(self) -> None:
        self._close()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._name}-{secrets.token_hex(6)}.jsonl"
        draft = draft_of(path)  # no reader sees it before it is locked
        self._file = os.open(draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        draft.replace(path)
        self._num_bytes = 0

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class JournalPart(NamedTuple):
    """The lines behind a cursor, and the cursor behind them."""

    lines: list[JournalLine]
    cursor: Cursor


class Journal(Protocol):
    """A journal that can be read: on this machine (`JournalReader`), or on another one."""

    def read(self, cursor: Cursor) -> JournalPart:
        """Return the whole lines behind a cursor, some megabytes at most; call it again until there are none."""


class JournalReader:
    """The reader of a journal; one at a time.

    Args:
        folder: folder of the journal; it need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, cursor: Cursor, *, max_bytes: int = _MAX_READ_BYTES) -> JournalPart:
        """Return the whole lines behind a cursor, of some `max_bytes` together; call it again until there are none.

        Files that are read to their end, and whose writers are gone, are removed: the cursor that was given is one
        that the caller has kept. A file that is shorter than the cursor says is left as it is.

        Raises:
            RequestError: the cursor is in the middle of a line.
        """
        lines, ends = list[JournalLine](), dict[str, int]()
        num_left = max_bytes
        for path in sorted(self._folder.glob("*.jsonl")):
            begin = cursor.get(path.name, 0)
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                is_ended = _is_ended(file.fileno())  # before it is read: no line can follow what is read then
                size = os.fstat(file.fileno()).st_size
                if begin > size:
                    continue
                _seek(file, begin, path.name)
                data = file.read(num_left)
                if b"\n" not in data and len(data) == num_left:
                    data += file.readline()  # a line that is longer than a part comes whole
                whole = data[: data.rfind(b"\n") + 1]
                if is_ended and begin + len(data) == size and not whole:  # what follows, if anything, is no whole line
                    path.unlink()
                    continue
                lines += [msgspec.json.decode(line, type=known(JournalLine)) for line in whole.splitlines()]
                ends[path.name] = begin + len(whole)
                num_left -= len(whole)
            if num_left <= 0:
                break
        return JournalPart(lines, {**{name: cursor[name] for name in cursor if self._is_there(name)}, **ends})

    def _is_there(self, name: str) -> bool:
        return (self._folder / name).exists()


def _seek(file: BinaryIO, begin: int, name: str) -> None:
    """Go to the begin of a line. Raises: RequestError: it is none."""
    if begin:
        file.seek(begin - 1)
        if file.read(1) != b"\n":
            raise RequestError(
                f"the cursor {begin} of {name} is in the middle of a line; give one that was answered", field="cursor"
            )


def _is_ended(number: int) -> bool:
    """Return whether no process writes to an open file any more."""
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(number, fcntl.LOCK_UN)
    return True
