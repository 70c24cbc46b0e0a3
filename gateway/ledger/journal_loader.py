# SPDX-License-Identifier: Apache-2.0
"""The loader of the journal of requests: from the files to the rows of the ledger, each once, whoever dies when.

The ledger has the place up to which a file is loaded, written together with the rows. A loader that has lost its place
reads a file anew from its beginning, for the requests that ran there, and loads what is behind that place.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from gateway.ledger.journal_place import JournalPlace
from gateway.ledger.ledger_row import LedgerRow, unsettled
from gateway.ledger.request_journal import SUFFIX
from trireme.base.durable_files import draft_of
from trireme.base.known_types import known

_MAX_READ_BYTES = 1 << 20
_LOCK = "loader.lock"
_DRAFT_S = 60.0  # a process names its file at once; one that was stopped meanwhile keeps its rows in memory
_DECODER = msgspec.json.Decoder(known(LedgerRow))
_log = logging.getLogger("trireme.gateway")


class JournalStore(Protocol):
    """A place where rows are kept, each once, with how far each file of a journal is loaded."""

    def add(self, rows: Sequence[LedgerRow], place: JournalPlace | None = None) -> None:
        """Add rows and the place behind them, all or none; a row may be given again."""

    def journal_place(self, file: str) -> JournalPlace:
        """Return how far a file is loaded."""
        ...

    def forget_journal(self, file: str) -> None:
        """Forget a file that is no more."""


@dataclass
class _Place:
    """A place in a file up to which it is read, and the requests that have begun there and not ended.

    Attributes:
        loaded: place up to which the ledger has what ended; reading may be behind it.
    """

    loaded: JournalPlace
    offset: int = 0
    running: dict[str, LedgerRow] = field(default_factory=dict)


class JournalLoader:
    """The loader of a folder; of several processes with the same folder, one loads at a time.

    Args:
        folder: of the journal; it need not be there.
        store: where the rows are kept.
    """

    def __init__(self, folder: Path, store: JournalStore) -> None:
        self._folder, self._store = folder, store
        self._places: dict[str, _Place] = {}
        self._lock: int | None = None

    def num_waiting_bytes(self) -> int:
        """Return how much of the journal is not loaded."""
        num_bytes = 0
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # loaded meanwhile
                place = self._places.get(path.name)
                num_bytes += path.stat().st_size - (0 if place is None else place.offset)
        return num_bytes

    def load(self) -> None:
        """Load what is there; a file that is read to its end, and that nobody writes to, is removed.

        What a dead process left without an end is loaded as unsettled.

        Raises:
            Exception: whatever the store raises; what it did not take is loaded the next time.
        """
        if not self._is_our_turn():
            return
        self._remove_drafts()
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

    def _remove_drafts(self) -> None:
        """Remove files that a process was killed before it could name; nothing was ever written to them."""
        for draft in self._folder.glob(draft_of(self._folder / f"*{SUFFIX}").name):
            with contextlib.suppress(FileNotFoundError):  # it has its name now
                if time.time() - draft.stat().st_mtime > _DRAFT_S:
                    draft.unlink()

    def _place(self, path: Path) -> _Place:
        if path.name not in self._places:
            self._places[path.name] = _Place(self._store.journal_place(path.name))
        return self._places[path.name]

    def _load_part(self, path: Path) -> bool:
        """Load some of a file, and return whether there may be more of it now."""
        place = self._place(path)
        if place.loaded.is_whole:  # a process was killed before it could remove the file
            self._remove(path)
            return False
        with path.open("rb") as file:
            is_ended = _is_ended(file)  # before it is read: no line can follow what is read then
            file.seek(place.offset)
            data = file.read(_MAX_READ_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        is_last = is_ended and len(data) < _MAX_READ_BYTES
        running, ended = dict(place.running), list[LedgerRow]()
        for end, row in _rows(whole, path):
            if not row.finish:
                running[row.id] = row
                continue
            running.pop(row.id, None)
            if place.offset + end > place.loaded.num_bytes:
                ended.append(row)
        if is_last:
            ended += map(unsettled, running.values())
        offset, loaded = place.offset + len(whole), place.loaded
        if ended:
            loaded = JournalPlace(path.name, offset, is_whole=is_last)
            self._store.add(ended, loaded)
        if is_last:
            self._remove(path)
            return False
        self._places[path.name] = _Place(loaded, offset, running)
        return len(data) == _MAX_READ_BYTES

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        del self._places[path.name]
        self._store.forget_journal(path.name)

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


def _rows(data: bytes, path: Path) -> Iterator[tuple[int, LedgerRow]]:
    """Yield the rows of whole lines, each with the end of its line."""
    end = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        try:
            yield end, _DECODER.decode(line)
        except msgspec.DecodeError:  # a full disk has cut it off
            _log.error("%s: a line of %d bytes is no row of the ledger, and left out", path, len(line))


def _is_ended(file: BinaryIO) -> bool:
    """Return whether no process writes to an open file any more."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file.fileno(), fcntl.LOCK_UN)
    return True
