# SPDX-License-Identifier: Apache-2.0
"""The loader of the journal of requests: from the files to the rows of the ledger, each once, whoever dies when.

The rows have ids, and the ledger takes each id once. So a loader that has lost its place begins a file anew.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from gateway.ledger.ledger_row import LedgerRow, unsettled
from gateway.ledger.request_journal import SUFFIX

_MAX_READ_BYTES = 1 << 20
_LOCK = "loader.lock"
_DECODER = msgspec.json.Decoder(LedgerRow)
_log = logging.getLogger("trireme.gateway")


@dataclass
class _Place:
    """A place in a file up to which it is read, and the requests that have begun there and not ended."""

    offset: int = 0
    running: dict[str, LedgerRow] = field(default_factory=dict)


class JournalLoader:
    """The loader of a folder; of several processes with the same folder, one loads at a time.

    Args:
        folder: of the journal; it need not be there.
        add: takes rows to where they are kept; it has them all when it returns, and may be given a row again.
    """

    def __init__(self, folder: Path, add: Callable[[Sequence[LedgerRow]], None]) -> None:
        self._folder, self._add = folder, add
        self._places: dict[str, _Place] = {}
        self._lock: int | None = None

    def num_waiting_bytes(self) -> int:
        """Return how much of the journal is not loaded."""
        num_bytes = 0
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # loaded meanwhile
                num_bytes += path.stat().st_size - self._places.get(path.name, _Place()).offset
        return num_bytes

    def load(self) -> None:
        """Load what is there; a file that is read to its end, and that nobody writes to, is removed.

        What a dead process left without an end is loaded as unsettled.

        Raises:
            Exception: whatever `add` raises; what it did not take is loaded the next time.
        """
        if not self._is_our_turn():
            return
        for path in self._files():
            while self._load_part(path):
                pass

    def close(self) -> None:
        """Let another process load."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{SUFFIX}"))

    def _place(self, path: Path) -> _Place:
        return self._places.setdefault(path.name, _Place())

    def _load_part(self, path: Path) -> bool:
        """Load some of a file, and return whether there may be more of it now."""
        place = self._place(path)
        with path.open("rb") as file:
            is_ended = _is_ended(file)  # before it is read: no line can follow what is read then
            file.seek(place.offset)
            data = file.read(_MAX_READ_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        is_last = is_ended and len(data) < _MAX_READ_BYTES
        running, ended = dict(place.running), list[LedgerRow]()
        for row in _rows(whole, path):
            if row.finish:
                running.pop(row.id, None)
                ended.append(row)
            else:
                running[row.id] = row
        if is_last:
            ended += map(unsettled, running.values())
        if ended:
            self._add(ended)
        if is_last:
            path.unlink(missing_ok=True)
            del self._places[path.name]
            return False
        self._places[path.name] = _Place(place.offset + len(whole), running)
        return len(data) == _MAX_READ_BYTES

    def _is_our_turn(self) -> bool:
        if self._lock is not None:
            return True
        self._folder.mkdir(parents=True, exist_ok=True)
        number = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(number)
            if isinstance(exc, BlockingIOError):
                return False
            raise
        self._places.clear()  # another one has loaded meanwhile
        self._lock = number
        return True


def _rows(data: bytes, path: Path) -> list[LedgerRow]:
    rows = []
    for line in data.splitlines():
        try:
            rows.append(_DECODER.decode(line))
        except msgspec.DecodeError:  # a full disk has cut it off
            _log.error("%s: a line of %d bytes is no row of the ledger, and left out", path, len(line))
    return rows


def _is_ended(file: BinaryIO) -> bool:
    """Return whether no process writes to an open file any more."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file.fileno(), fcntl.LOCK_UN)
    return True
