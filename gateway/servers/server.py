# SPDX-License-Identifier: Apache-2.0
"""A server behind a gateway: its connection, and what is known of how it does."""

import itertools
import time
from collections.abc import Callable, Collection, Mapping

from clients.streaming import AsyncTritonClient
from gateway.servers.breaker import Breaker
from gateway.servers.cache_feed import CacheFeed
from gateway.servers.load_page import LoadPage
from gateway.servers.prefixes import Prefixes
from gateway.servers.server_load import EngineLoad, LoadFigures

_MISSES = 2  # in a row, before a server that does not say that it is ready gets no requests
_GONE = 5  # before its cache counts as empty
_LONGEST_FULL_S = 1.0
FRESH_S = 2.0  # what a server told of its load counts for so long
_turns = itertools.count(1)


class Server:
    """A server.

    Args:
        url: its address, which names it.
        models: Triton's names of the models that are asked there.
        page: that tells its load; None: nobody said where.
        feed: that tells what its caches hold; None: that is guessed.

    Attributes:
        num_running: requests of this gateway that run there.
        ready: models that take requests there, by its own word; None: nobody has asked yet.
        prefixes: that it has.
        turn: larger than that of each server that was asked before it.
        is_leaving: gets no new requests; those that run there go on.
    """

    def __init__(
        self,
        url: str,
        client: AsyncTritonClient,
        models: Collection[str],
        now_s: Callable[[], float] = time.monotonic,
        *,
        page: LoadPage | None = None,
        feed: CacheFeed | None = None,
    ) -> None:
        self.url, self.client, self.models, self.page = url, client, frozenset(models), page
        self.feed = feed
        self.num_running = self.turn = 0
        self.is_leaving = False
        self.ready: frozenset[str] | None = None
        self.breaker = Breaker(now_s)
        self.prefixes = Prefixes(now_s=now_s)
        self._now_s = now_s
        self._num_missed = 0
        self._full_until_s = 0.0
        self._figures: LoadFigures | None = None

    @property
    def figures(self) -> LoadFigures | None:
        """Return what the server told of its load; None: nothing, or nothing of late."""
        if self._figures is None or self._now_s() - self._figures.at_s > FRESH_S:
            return None
        return self._figures

    @property
    def takes_all(self) -> bool:
        """Return whether requests for every model may go there."""
        return all(self.takes(model) for model in self.models)

    @property
    def is_full(self) -> bool:
        """Return whether the server had no room a moment ago."""
        return self._now_s() < self._full_until_s

    def takes(self, model: str) -> bool:
        """Return whether a request for a model may go there."""
        is_there = self.ready is None or model in self.ready
        return is_there and self.breaker.is_closed and not self.is_leaving

    def begin(self) -> bool:
        """Note that a request goes there, and return whether that tries a server that failed."""
        self.num_running += 1
        self.turn = next(_turns)
        return self.breaker.begin()

    def note_full(self, retry_after_s: float) -> None:
        """Note that the server has no room, and when it expects some."""
        self._full_until_s = self._now_s() + min(retry_after_s, _LONGEST_FULL_S)

    async def read_load(self) -> None:
        """Ask the server for its load.

        Raises:
            PageError: it tells none.
        """
        assert self.page is not None
        at_s, num_own = self._now_s(), self.num_running
        self.note_load(await self.page.read(), at_s=at_s, num_own=num_own)

    def note_load(self, engines: Mapping[str, EngineLoad], *, at_s: float, num_own: int) -> None:
        """Note what the server tells of its load, by its word of a moment.

        Args:
            engines: load of each, by its name at Triton.
            num_own: requests of this gateway there at that moment.
        """
        before = None if self.figures is None else self.figures.engines
        self._figures = LoadFigures(at_s, num_own, {name: load.after(before, name) for name, load in engines.items()})

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()
        if self.page is not None:
            await self.page.close()
        if self.feed is not None:
            await self.feed.close()

    def note_ready(self, ready: frozenset[str]) -> bool:
        """Note which models take requests by the server's own word, and return whether that changes anything.

        A single answer that is missing, or late, changes nothing.
        """
        self._num_missed = 0 if ready == self.models else self._num_missed + 1
        if self._num_missed == _GONE and not ready:
            self.prefixes.clear()  # it may have been started again
        if self.ready is not None and 0 < self._num_missed < _MISSES:
            return False
        was, self.ready = self.ready, ready
        return was != ready
