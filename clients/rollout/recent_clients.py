# SPDX-License-Identifier: Apache-2.0
"""The division of a rollout's shadow requests among its clients."""

import threading
import time
from collections.abc import Callable


class RecentClients:
    """A division of the shadow requests of all clients among the clients that have asked of late."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._asked_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def part(self, client: str, total: int, lease_s: float) -> int:
        """Return one client's part of `total`; 0 for a client without a name.

        All parts add up to `total` once each client has asked again.
        """
        if not client:
            return 0
        now = self._now()
        with self._lock:
            self._asked_s[client] = now
            self._asked_s = {name: asked for name, asked in self._asked_s.items() if now - asked <= lease_s}
            names = sorted(self._asked_s)
        return total // len(names) + (names.index(client) < total % len(names))
