# SPDX-License-Identifier: Apache-2.0
"""The pool of the servers that URLs name, with their connections; those of a name come and go."""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from clients.access import NO_ACCESS, Access
from clients.streaming import AsyncTritonClient
from gateway.servers.cache_feed import CacheFeed
from gateway.servers.load_page import LoadPage
from gateway.servers.named_servers import NamedServers, access_of
from gateway.servers.server import Server
from gateway.servers.server_pool import SILENCE_S, ServerPool
from trireme.base.server_names import ServerName, is_server_name, read_server_name


class ServerPlaces(NamedTuple):
    """The places of servers that serve alike.

    Attributes:
        urls: as `AsyncTritonClient` or `read_server_name` takes them.
        models: Triton's names of the models that are asked there.
        access: certificates and key for them.
        pages: of metrics, by the URLs; a name has a name with the port of such pages.
        has_feeds: whether servers with a page are asked what their caches hold, too.
    """

    urls: Sequence[str]
    models: frozenset[str]
    access: Access = NO_ACCESS
    pages: Mapping[str, str] = MappingProxyType({})
    has_feeds: bool = False

    def server(self, url: str) -> Server:
        """Return the server of a URL."""
        return self._server(url, self.access, self.pages.get(url))

    def named_server(self, name: ServerName, url: str) -> Server:
        """Return a server of a name, by its own URL."""
        pages = self.pages.get(name.url)
        page = None if pages is None else read_server_name(pages).page_of(url)
        return self._server(url, access_of(name, self.access), page)

    def _server(self, url: str, access: Access, page: str | None) -> Server:
        client = AsyncTritonClient(url, access=access)
        if page is None:
            return Server(url, client, self.models)
        feed = CacheFeed(page, self.access) if self.has_feeds else None
        return Server(url, client, self.models, page=LoadPage(page, self.access), feed=feed)


@contextlib.asynccontextmanager
async def open_pool(
    places: ServerPlaces,
    *,
    is_always_followed: bool = False,
    has_affinity: bool = True,
    silence_s: float = SILENCE_S,
    on_move: Callable[[float], None] = lambda _: None,
) -> AsyncIterator[ServerPool]:
    """Yield a pool that watches its servers inside the block; connections are closed at its end.

    Args:
        is_always_followed: whether a server alone is watched, too.
        has_affinity, silence_s, on_move: of `ServerPool`.
    """
    names = [read_server_name(url) for url in places.urls if is_server_name(url)]
    async with contextlib.AsyncExitStack() as stack:
        servers = [places.server(url) for url in places.urls if not is_server_name(url)]
        for server in servers:
            stack.push_async_callback(server.close)
        pool = ServerPool(
            servers,
            is_changing=is_always_followed or bool(names),
            has_affinity=has_affinity,
            silence_s=silence_s,
            on_move=on_move,
        )
        await stack.enter_async_context(pool.followed())
        for name in names:
            make = functools.partial(places.named_server, name)
            await stack.enter_async_context(NamedServers(name, pool, make).followed())
        yield pool
