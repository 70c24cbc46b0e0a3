# SPDX-License-Identifier: Apache-2.0
"""The journal of requests on the disk of one gateway: a line when a request begins, and a line when it has ended.

The second line is written before the caller gets the end of the answer. So a gateway that is killed has told of every
answer that anybody has whole, and of those that ran then there is the first line. A file is locked while a process
writes to it, and holds both lines of its requests.
"""

import contextlib
import fcntl
import os
import secrets
import time
from pathlib import Path

import msgspec

from gateway.ledger.ledger_row import LedgerRow
from trireme.base.durable_files import draft_of

SUFFIX = ".jsonl"
_MAX_FILE_BYTES = 4 << 20
_CLOSED = -1


class RequestJournal:
    """The writer of one process, for one thread.

    Args:
        folder: folder of the journal; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: _File | None = None

    def begin(self, row: LedgerRow) -> "Begun":
        """Write the first line of a request; without it, should the disk be full, the request is told of by its end.

        Raises:
            OSError: the folder cannot be written, and so not even the end could be.
        """
        if self._file is not None and self._file.num_bytes >= _MAX_FILE_BYTES:
            self.close()
        file = self._file
        if file is None:
            file = self._file = _File(self._folder)
        with contextlib.suppress(OSError):
            file.write(row)
        file.num_open += 1
        return Begun(file)

    def close(self) -> None:
        """Leave the file, once the requests that are told of in it have ended."""
        file, self._file = self._file, None
        if file is not None:
            file.retire()


class Begun:
    """A request that has begun, and has not ended."""

    def __init__(self, file: "_File") -> None:
        self._file = file

    def end(self, row: LedgerRow) -> None:
        """Write the second line; it outlives the process when this returns. Called once.

        Raises:
            OSError: the disk is full.
        """
        try:
            self._file.write(row)
        finally:
            self._file.num_open -= 1
            self._file.close_unless_used()


class _File:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{time.time_ns():020}-{secrets.token_hex(4)}{SUFFIX}"  # the oldest is read first
        draft = draft_of(path)  # no reader sees it before it is locked
        self._fd = os.open(draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            draft.replace(path)
        except BaseException:
            os.close(self._fd)
            draft.unlink(missing_ok=True)
            raise
        self.num_bytes = self.num_open = 0
        self._is_retired = self._is_torn = False

    def write(self, row: LedgerRow) -> None:
        data = msgspec.json.encode(row) + b"\n"
        if self._is_torn:  # the disk was full: what is there of the last line gets an end of its own
            data = b"\n" + data
        written = os.write(self._fd, data)
        self.num_bytes += written
        self._is_torn = written < len(data)
        if self._is_torn:
            raise OSError("only a part of a line could be written")

    def retire(self) -> None:
        """Take no more requests."""
        self._is_retired = True
        self.close_unless_used()

    def close_unless_used(self) -> None:
        if self._is_retired and not self.num_open and self._fd >= 0:
            fd, self._fd = self._fd, _CLOSED
            os.close(fd)
