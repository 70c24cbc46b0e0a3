# SPDX-License-Identifier: Apache-2.0
"""The feed of what a server tells of its KV caches: the beginnings of prompts that it has, as they come and go."""

import math
import ssl
from collections.abc import AsyncIterator, Iterable

import aiohttp
import msgspec

from clients.access import Access
from clients.tls_context import tls_context
from gateway.servers.prefixes import Prefixes
from trireme.base.errors import ServingError
from trireme.base.known_types import known

_PAGE, _FEED = "/metrics", "/kv_events?prefixes=true"
_CONNECT_S = 2.0
_SILENCE_S = 15.0  # three times as long as between two signs of life
_MOST_BYTES = 1 << 28  # of one event: a server tells all it has at the beginning


class FeedError(Exception):
    """The end of a feed, and why. Attributes: `is_untold`: the server tells nothing."""

    def __init__(self, message: str, *, is_untold: bool = False) -> None:
        super().__init__(message)
        self.is_untold = is_untold


class _Event(msgspec.Struct, frozen=True):
    type: str
    numbers: list[int] = []
    ends: list[int] = []


class _Engine(msgspec.Struct, frozen=True):
    engine: str
    events: list[_Event]


class _Snapshot(msgspec.Struct, frozen=True):
    engines: list[_Engine]


class CacheFeed:
    """The feed of one server.

    Args:
        page: URL of its metrics, on whose port it is.
        access: certificates and the key, for a page over https.
    """

    def __init__(self, page: str, access: Access) -> None:
        self.url = page.removesuffix(_PAGE) + _FEED if page.endswith(_PAGE) else ""
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def follow(self, prefixes: Prefixes) -> None:
        """Keep what a server tells up to date in `prefixes`, until it tells no more; then nothing is told there.

        Raises:
            FeedError: always, and why.
        """
        try:
            async for kind, data in self._events():
                if kind == b"snapshot":
                    engines = msgspec.json.decode(data, type=known(_Snapshot)).engines
                    prefixes.begin_to_tell(engine.engine for engine in engines)
                    for engine in engines:  # after which nothing is cleared: the server's cache is what it was
                        held = [event for event in engine.events if event.type != "AllBlocksCleared"]
                        _apply(prefixes, engine.engine, held)
                elif kind == b"batch":
                    told = msgspec.json.decode(data, type=known(_Engine))
                    _apply(prefixes, told.engine, told.events)
            raise FeedError(f"{self.url} has ended")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise FeedError(f"{self.url}: {str(exc) or type(exc).__name__}") from exc
        except ServingError as exc:
            raise FeedError(exc.message) from exc
        finally:
            prefixes.stop_telling()

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _events(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the kind and the data of each event."""
        if not self.url:
            raise FeedError("the page of metrics is not at /metrics, beside which a server tells", is_untold=True)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, ssl=self._tls()),
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=_CONNECT_S, sock_read=_SILENCE_S, ceil_threshold=math.inf
                ),
            )
        # As for the page of metrics: without TLS no key is sent.
        headers = dict(self._access.headers()) if self.url.startswith("https:") else {}
        async with self._session.get(self.url, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise FeedError(f"{self.url}: HTTP {answer.status}", is_untold=answer.status == 404)
            rest = bytearray()
            async for part in answer.content.iter_any():
                rest += part
                if b"\n\n" in rest[-len(part) - 1 :]:  # not in the whole of it: what is long comes in many parts
                    *whole, rest = rest.split(b"\n\n")
                    for event in whole:
                        yield _read(bytes(event))
                if len(rest) > _MOST_BYTES:
                    raise FeedError(f"{self.url} has an event of more than {_MOST_BYTES >> 20} MiB")

    def _tls(self) -> ssl.SSLContext | bool:
        return tls_context(self._access) if self.url.startswith("https:") else True


def _read(event: bytes) -> tuple[bytes, bytes]:
    fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
    return fields.get(b"event", b""), fields.get(b"data", b"")


def _apply(prefixes: Prefixes, engine: str, events: Iterable[_Event]) -> None:
    for event in events:
        match event.type:
            case "PrefixesStored":
                prefixes.note_stored(engine, event.numbers, event.ends)
            case "PrefixesRemoved":
                prefixes.note_removed(engine, event.numbers)
            case "AllBlocksCleared":
                prefixes.note_cleared(engine)
