# SPDX-License-Identifier: Apache-2.0
"""The page of metrics of a server, read for its load: often, so over one connection and without a parser of it all."""

import math
import ssl

import aiohttp

from clients.access import Access
from clients.tls_context import tls_context
from gateway.servers.server_load import EngineLoad, engines_on
from trireme.base.errors import ServingError

_MOST_BYTES = 8 << 20
_ANSWER_S = 1.0  # what comes later is old


class PageError(Exception):
    """A page that tells no load, and why."""


class LoadPage:
    """The page of one server.

    Args:
        url: of the page.
        access: certificates and the key, for a page over https.
    """

    def __init__(self, url: str, access: Access) -> None:
        self.url, self._access = url, access
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> dict[str, EngineLoad]:
        """Return the load of each engine there, by its name at Triton.

        Raises:
            PageError: nobody answers in time, or what answers is no page of engines.
        """
        try:
            page = await self._page()
            engines = engines_on(page)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise PageError(f"{self.url}: {str(exc) or type(exc).__name__}") from exc
        except ServingError as exc:
            raise PageError(exc.message) from exc
        if not engines:
            raise PageError(f"{self.url} tells of no engine")
        return engines

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _page(self) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, ssl=self._tls()),
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S, ceil_threshold=math.inf),
            )
        # Without TLS no key is sent, as in `http_call`: anybody on the way could read it.
        headers = dict(self._access.headers()) if self.url.startswith("https:") else {}
        async with self._session.get(self.url, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise PageError(f"{self.url}: HTTP {answer.status}")
            page = bytearray()
            async for part in answer.content.iter_any():
                page += part
                if len(page) > _MOST_BYTES:
                    raise PageError(f"{self.url} is longer than {_MOST_BYTES >> 20} MiB")
            return bytes(page)

    def _tls(self) -> ssl.SSLContext | bool:
        return tls_context(self._access) if self.url.startswith("https:") else True
