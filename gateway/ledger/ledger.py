# SPDX-License-Identifier: Apache-2.0
"""The ledger of one gateway process: requests go to a journal on its disk, and from there to the database beside them.

No request waits for the database. While it is away the journal grows, and is loaded once the database is back.
"""

import hashlib
import logging
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gateway.ledger.journal_loader import JournalLoader
from gateway.ledger.ledger_row import LedgerRow
from gateway.ledger.request_journal import Begun, RequestJournal
from trireme.base.errors import ServingError
from trireme.base.store_place import StorePlace

if TYPE_CHECKING:
    from gateway.ledger.ledger_store import LedgerStore  # needs an extra

_LOAD_S = 1.0
_LAST_LOAD_S = 5.0  # at the end of the process; what is not loaded then, the next one loads
_log = logging.getLogger("trireme.gateway")


def journal_of(folder: Path, place: StorePlace) -> Path:
    """Return the folder of the journal of one ledger below that of all: another ledger must not load its rows."""
    name = str(place.absolute() if isinstance(place, Path) else place)
    return folder / hashlib.sha256(name.encode()).hexdigest()[:12]


class Ledger:
    """The ledger of a process, inside a `with`.

    Args:
        store: of the rows; whoever opened it closes it.
        folder: of the journal, on a disk of this machine that outlives the process.
        load_s: seconds between two loads of the journal.

    Attributes:
        store: of the rows.
    """

    def __init__(self, store: "LedgerStore", folder: Path, *, load_s: float = _LOAD_S) -> None:
        self.store, self._load_s = store, load_s
        self._journal = RequestJournal(folder)
        self._loader = JournalLoader(folder, store)
        self._unwritten = deque[LedgerRow]()  # the disk was full
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._load_always, name="ledger", daemon=True)
        self._told = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._journal.close()
        finally:
            self._is_over.set()
            self._thread.join(_LAST_LOAD_S)

    def num_waiting_bytes(self) -> int:
        """Return how much of the journal is not in the database."""
        return self._loader.num_waiting_bytes()

    def begin(self, row: LedgerRow) -> "LedgerEntry":
        """Write down that a request has begun."""
        try:
            return LedgerEntry(self, self._journal.begin(row))
        except OSError as exc:
            self._tell(f"the journal of the ledger cannot be written: {exc}")
            return LedgerEntry(self, None)

    def keep(self, row: LedgerRow, cause: OSError | None) -> None:
        """Keep a row in memory that the journal did not take, until it is in the database."""
        if cause is not None:
            self._tell(f"the journal of the ledger cannot be written: {cause}")
        self._unwritten.append(row)

    def _load_always(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(self._load_s)
            try:
                self._load()
            except Exception as exc:  # whatever it is, the next time may be better, and the journal keeps the rows
                self._tell(f"the ledger is behind: {exc.message if isinstance(exc, ServingError) else repr(exc)}")
            else:
                if self._told and not self._unwritten:
                    _log.info("the ledger is written again")
                    self._told = ""
        self._loader.close()

    def _load(self) -> None:
        rows = list(self._unwritten)
        if rows:
            self.store.add(rows)
            for _ in rows:
                self._unwritten.popleft()
        self._loader.load()

    def _tell(self, text: str) -> None:
        """Say what is wrong, once until all is well again."""
        if not self._told:
            _log.error("%s", text)
        self._told = text


class LedgerEntry:
    """A request in the ledger that has not ended."""

    def __init__(self, ledger: Ledger, begun: Begun | None) -> None:
        self._ledger, self._begun = ledger, begun

    def end(self, row: LedgerRow) -> None:
        """Write down how the request has ended; called once."""
        if self._begun is None:
            self._ledger.keep(row, None)
            return
        try:
            self._begun.end(row)
        except OSError as exc:
            self._ledger.keep(row, exc)
