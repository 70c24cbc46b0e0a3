# SPDX-License-Identifier: Apache-2.0
"""The servers of a name in a pool: DNS is asked again and again, for pods come and go, and so do their addresses."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from clients.access import Access
from gateway.servers.server import Server
from gateway.servers.server_pool import ServerPool
from trireme.base.server_names import ServerName, addresses_of

_ASK_S = 2.0  # between two questions; a pod that ends is out of DNS for seconds before it takes no requests
_log = logging.getLogger("trireme.gateway")


def access_of(name: ServerName, access: Access) -> Access:
    """Return the access to the servers of a name, whose certificate is for the name, and not for an address."""
    if not name.is_tls:
        return access
    return msgspec.structs.replace(access, is_tls=True, server_name=access.server_name or name.certified_host)


class NamedServers:
    """The servers of one name in a pool, as DNS has them.

    A name without addresses, or a DNS that is away, changes nothing: which servers are well the pool asks them itself.

    Args:
        make: returns the server of a URL.
    """

    def __init__(self, name: ServerName, pool: ServerPool, make: Callable[[str], Server]) -> None:
        self._name, self._pool, self._make = name, pool, make
        self._servers: dict[str, Server] = {}
        self._has_addresses = True

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Ask DNS inside the block again and again; its servers' connections are closed at the end."""
        await self._ask()
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            following.cancel()
            for server in self._servers.values():
                self._pool.remove(server)
                await server.close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_ASK_S)
            try:
                await self._ask()
            except Exception:  # the next answer may be a better one
                _log.exception("the servers of %s cannot be brought up to date", self._name.url)

    async def _ask(self) -> None:
        addresses = await addresses_of(self._name)
        if bool(addresses) != self._has_addresses:
            self._has_addresses = bool(addresses)
            if addresses:
                _log.info("%s has addresses again", self._name.url)
            else:
                _log.warning("%s has no addresses; those that were known stay", self._name.url)
        if addresses:
            await self._change([self._name.url_of(address) for address in addresses])
        await self._close_those_at_rest()

    async def _change(self, urls: Sequence[str]) -> None:
        new = [url for url in urls if url not in self._servers]
        for url in new:
            self._servers[url] = self._make(url)
            _log.info("server %s has come (%s)", url, self._name.url)
        for url, server in self._servers.items():
            if server.is_leaving != (url not in urls):
                server.is_leaving = not server.is_leaving
                _log.info("server %s %s (%s)", url, "goes" if server.is_leaving else "stays", self._name.url)
        await asyncio.gather(*(self._pool.add(self._servers[url]) for url in new))

    async def _close_those_at_rest(self) -> None:
        """Close the connections of servers that go and have no requests any more."""
        for url, server in list(self._servers.items()):
            if server.is_leaving and server.num_running == 0:
                del self._servers[url]
                self._pool.remove(server)
                await server.close()
