# SPDX-License-Identifier: Apache-2.0
"""Connections to a store that threads take in turn: to open one for each request would cost more than the request."""

import contextlib
import threading
from collections.abc import Iterator

from clients.rollout.records.store import Store
from trireme.base.store_place import StorePlace

_MOST = 4
_PATIENCE_S = 2.0  # a restart; who asks asks again


class StorePool:
    """The open connections to one store, until it is closed."""

    def __init__(self, place: StorePlace) -> None:
        self._place = place
        self._idle: list[Store] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[Store]:
        """Yield a connection that nobody else uses meanwhile.

        Raises:
            SpecError, Unavailable: the store cannot be opened (`clients.rollout.records.store.Store`).
        """
        with self._lock:
            store = self._idle.pop() if self._idle else None
        store = store or Store(self._place, patience_s=_PATIENCE_S)
        try:
            yield store
        finally:
            with self._lock:
                is_kept = not self._is_closed and len(self._idle) < _MOST
                if is_kept:
                    self._idle.append(store)
            if not is_kept:
                store.close()

    def close(self) -> None:
        """Close the connections; one that is used now is closed by who uses it."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for store in idle:
            store.close()
