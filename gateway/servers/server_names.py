# SPDX-License-Identifier: Apache-2.0
"""A name that stands for servers: each address that DNS has for it is one, and DNS is asked again and again.

The headless Service of a cluster is such a name. Its pods come and go, and so do its addresses.
"""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import msgspec

from clients.access import Access
from gateway.servers.server import Server
from gateway.servers.server_pool import ServerPool
from trireme.base.errors import RequestError

_ASK_S = 2.0  # between two questions; a pod that ends is out of DNS for seconds before it takes no requests
_NAME = re.compile(
    r"(?P<tls>grpcs\+)?dns:///(?P<host>[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9.])?):(?P<port>\d{1,5})"
)
_log = logging.getLogger("trireme.gateway")


class ServerName(NamedTuple):
    """A name of servers.

    Attributes:
        url: as it was given.
    """

    url: str
    host: str
    port: int
    is_tls: bool

    def url_of(self, address: str) -> str:
        """Return the URL of one server, by its address."""
        host = f"[{address}]" if ":" in address else address
        return f"{'grpcs://' if self.is_tls else ''}{host}:{self.port}"

    def page_of(self, url: str) -> str:
        """Return the address of the page of metrics of one server, where this name has the port of such pages.

        Args:
            url: of the server, as `url_of` of its own name returns it.
        """
        host = url.removeprefix("grpcs://").rpartition(":")[0]
        return f"http://{host}:{self.port}/metrics"

    def access(self, access: Access) -> Access:
        """Return the access to its servers, whose certificate is for the name, and not for an address."""
        if not self.is_tls:
            return access
        return msgspec.structs.replace(access, is_tls=True, server_name=access.server_name or self.host.rstrip("."))


def is_server_name(url: str) -> bool:
    """Return whether a URL stands for all servers of a name."""
    return url.partition(":///")[0] in ("dns", "grpcs+dns")


def read_server_name(url: str) -> ServerName:
    """Return what a URL such as `dns:///chat-pods.llm.svc.cluster.local:8001` means.

    Raises:
        RequestError: it is no such URL.
    """
    found = _NAME.fullmatch(url)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise RequestError(
            f"--url must be dns:///NAME:PORT, or grpcs+dns:///NAME:PORT with TLS, where it begins so, got {url!r}; "
            "write such as dns:///chat-pods.llm.svc.cluster.local:8001, or HOST:PORT for one server",
            field="url",
            value=url,
        )
    return ServerName(url, found["host"], int(found["port"]), found["tls"] is not None)


async def addresses_of(name: ServerName) -> list[str]:
    """Return the addresses of a name; none where DNS has none, or does not answer."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(address[0]) for *_, address in found})


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
