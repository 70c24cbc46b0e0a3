# SPDX-License-Identifier: Apache-2.0
"""A name that stands for servers: each address that DNS has for it is one, such as the pods of a headless Service."""

import asyncio
import re
import socket
from typing import NamedTuple

from trireme.base.errors import RequestError

_NAME = re.compile(
    r"(?P<tls>grpcs\+)?dns:///(?P<host>[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9.])?):(?P<port>\d{1,5})"
)


class ServerName(NamedTuple):
    """A name of servers.

    Attributes:
        url: as it was given.
    """

    url: str
    host: str
    port: int
    is_tls: bool

    @property
    def certified_host(self) -> str:
        """Return the name that the certificate of each of its servers is for, which is for no address."""
        return self.host.rstrip(".")

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


def is_server_name(url: str) -> bool:
    """Return whether a URL stands for all servers of a name."""
    return url.partition(":///")[0] in ("dns", "grpcs+dns")


def read_server_name(url: str, *, field: str = "--url") -> ServerName:
    """Return what a URL such as `dns:///chat-pods.llm.svc.cluster.local:8001` means.

    Args:
        field: the option or key that has it, for the error.

    Raises:
        RequestError: it is no such URL.
    """
    found = _NAME.fullmatch(url)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise RequestError(
            f"{field} must be dns:///NAME:PORT, or grpcs+dns:///NAME:PORT with TLS, where it begins so, got {url!r}; "
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
