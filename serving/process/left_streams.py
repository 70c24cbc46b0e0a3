# SPDX-License-Identifier: Apache-2.0
"""The streams that have lost their clients, as the frontends report them (`serving.frontend.common.departures`)."""

import threading
from collections.abc import Callable, Iterable

_MAX_KEPT = 50_000  # the names of streams that ended long ago are of no use


class LeftStreams:
    """The names of streams without a client, kept for a while: a request may arrive after word of its client's end."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._lock = threading.Lock()
        self._listeners: dict[object, Callable[[], None]] = {}

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` at each word; return a function that ends the calls, and may be called again."""
        key = object()
        self._listeners[key] = listener
        return lambda: (self._listeners.pop(key, None), None)[1]

    def note(self, names: Iterable[str]) -> None:
        """Record the names of streams which have lost their clients."""
        with self._lock:
            self._names.update(dict.fromkeys(names))
            while len(self._names) > _MAX_KEPT:
                del self._names[next(iter(self._names))]
        for listener in list(self._listeners.values()):
            listener()

    def __contains__(self, name: str) -> bool:
        """Return whether the client of a stream has left."""
        return name in self._names


LEFT_STREAMS = LeftStreams()
"""Those of this process: a stub has one control channel and may have the pipelines of several releases."""
