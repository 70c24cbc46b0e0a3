# SPDX-License-Identifier: Apache-2.0
"""A client of OpenAI-compatible servers in the manner of `clients.streaming`; `openai_stream` reads the events."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from typing import Self

import aiohttp

from clients.access import NO_ACCESS, Access, with_port
from clients.access_errors import refused_connection, tried_handshake
from clients.infer_messages import IDLE_TIMEOUT_S, GenerateChunk, GenerateRequest
from clients.load.openai.openai_errors import http_error
from clients.load.openai.openai_stream import (
    OK,
    CompletionStream,
    completion_body,
    completions_url,
    headers,
    with_api_key,
)
from clients.load.server_down import not_ready
from clients.tls_context import check_access, tls_context
from trireme.base.errors import (
    AccessDenied,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServingError,
    Unavailable,
)

# Shorter than any server's own (mostly 5 s): one that closes a connection while a request is on its way loses it.
_KEEP_ALIVE_S = 2.0
# CPython before 3.12.8 and 3.13.1 leaves TLS connections open that their server has half closed, and aiohttp can end
# them; remove when no older one is supported. aiohttp warns where it is needless.
_CLEANS_UP = sys.version_info < (3, 12, 8) or (3, 13, 0) <= sys.version_info < (3, 13, 1)
_PROBE = GenerateRequest(text_input="a", max_tokens=1)


class AsyncOpenAIClient:
    """A client with a connection for each request that runs, kept for the next.

    Create it inside a running event loop.

    Args:
        url: ``http://host:port/v1``, or ``https://...``.
        access: certificates and the key; without a key, OPENAI_API_KEY is the key.

    Attributes:
        counts_each: requests ask for the tokens of every chunk; `is_ready` finds out whether the server takes that.

    Raises:
        RequestError: the address is not valid.
        SpecError: a file of `access` cannot be read.
    """

    def __init__(self, url: str, *, access: Access = NO_ACCESS) -> None:
        self.counts_each = False
        self._url = completions_url(url)
        self._access = with_api_key(url, access)
        check_access(self._access)
        context = tls_context(self._access) if self._access.uses_tls else True
        self._is_closed = False
        self._bodies: set[aiohttp.StreamReader] = set()  # of the answers that run
        self._session = _session(
            aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEP_ALIVE_S, ssl=context, enable_cleanup_closed=_CLEANS_UP
            )
        )
        # llama.cpp offers to keep a connection and closes it behind a stream, which shows when it is used again.
        self._new_connections = _session(
            aiohttp.TCPConnector(limit=0, force_close=True, ssl=context, enable_cleanup_closed=_CLEANS_UP)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; requests that run raise `RequestCancelled`."""
        self._is_closed = True
        for body in self._bodies:  # aiohttp 3.14 closes the connection, and leaves who reads from it waiting
            body.set_exception(aiohttp.ClientConnectionError("closed"))
        await self._session.close()
        await self._new_connections.close()
        await asyncio.sleep(0)  # what aiohttp aborts is closed in the loop's next round

    async def is_ready(self, *, model: str, timeout_s: float = 60.0) -> bool:
        """Return whether the server answers a request for one token; False where nothing answers, too.

        Raises:
            RequestError: it refuses this request, in its own words: the model or the url may be wrong.
            AccessDenied: it is not trusted, or does not accept the client's certificate or key.
            ServerError: it broke.
        """
        refusal = None
        for self.counts_each in (True, False):
            try:
                async for _ in self.generate(_PROBE, model=model, timeout_s=timeout_s):
                    pass
            except RequestError as exc:
                refusal = exc
            except (Unavailable, RequestTimeout):
                return False
            else:
                return True
        assert refusal is not None
        raise refusal

    async def generate(
        self,
        request: GenerateRequest,
        *,
        model: str,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = IDLE_TIMEOUT_S,
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Send a request and yield its chunks, each as soon as the one behind it came.

        Args:
            timeout_s: limit of the whole request; None: no limit.
            idle_timeout_s: limit of the wait for the next bytes; None: no limit.

        Raises:
            RequestError: the server says that the request is wrong, or OpenAI's API has no name for what it asks.
            AccessDenied: it is not trusted, or does not accept the client's certificate or key.
            RequestTimeout: `timeout_s` passed.
            Unavailable: refused (with `retry_after_ms`, where the server says so), nothing answers, the connection was
                lost, or nothing came for `idle_timeout_s`.
            RequestCancelled: the client was closed.
            ServerError: anything else.
        """
        body = completion_body(request, model=model, counts_each=self.counts_each)
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_read=idle_timeout_s, ceil_threshold=float("inf"))
        stream = CompletionStream()
        failure: ServingError | None = None
        try:
            async with await self._send(body, limits) as response:
                if response.status != OK:
                    said = await response.read()
                    failure = http_error(
                        response.status, said, response.headers.get("Retry-After", ""), access=self._access
                    )
                else:
                    self._bodies.add(response.content)
                    try:
                        async for data in response.content.iter_any():
                            for chunk in stream.feed(data, time.monotonic_ns()):
                                yield chunk
                    finally:
                        self._bodies.discard(response.content)
        except ServingError as exc:  # of an event
            failure = exc
        except (TimeoutError, aiohttp.ClientError, RuntimeError) as exc:
            failure = await self._why_denied(exc, stream) or self._why_lost(exc, idle_timeout_s)
        for chunk in stream.release():
            yield chunk
        if failure is not None and not stream.is_done:
            raise failure
        stream.check_end()

    async def _send(self, body: bytes, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Return the head of the answer.

        Where the connection ended before it, the request is sent once more, on a new one.
        """
        named = headers(self._access)
        try:
            return await self._session.post(self._url, data=body, timeout=limits, allow_redirects=False, headers=named)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if self._is_closed:
                raise
        return await self._new_connections.post(
            self._url, data=body, timeout=limits, allow_redirects=False, headers=named
        )

    async def _why_denied(self, exc: Exception, stream: CompletionStream) -> AccessDenied | None:
        """Return what is in certificates, of a connection that brought nothing; a handshake may be tried for it."""
        if self._is_closed or stream.has_begun or not isinstance(exc, aiohttp.ClientConnectionError):
            return None
        target = with_port(self._url)
        found = refused_connection(str(exc), target, self._access) if self._access.uses_tls else None
        if found is not None or isinstance(exc, aiohttp.ClientConnectorError):
            return found
        return await asyncio.to_thread(tried_handshake, target, self._access)

    def _why_lost(self, exc: Exception, idle_timeout_s: float | None) -> ServingError:
        if self._is_closed:
            return RequestCancelled("the client was closed while the request ran")
        if isinstance(exc, RuntimeError):
            raise exc
        if isinstance(exc, aiohttp.ServerTimeoutError):
            return Unavailable(f"nothing came from {self._url} for {idle_timeout_s:g} s", reason="silent")
        if isinstance(exc, TimeoutError):
            return RequestTimeout("the request was not done within its timeout")
        if isinstance(exc, aiohttp.ClientConnectorError):
            return Unavailable(f"nothing answers at {self._url}: {exc}; is the server running?", reason="unreachable")
        return Unavailable(
            f"the connection to {self._url} was lost: {exc or type(exc).__name__}", reason="connection_lost"
        )


async def takes_counts(url: str, model: str, access: Access) -> bool:
    """Return whether the server tells the tokens of every chunk.

    Raises:
        Unavailable: nothing answers.
        RequestError, ServerError: the server refuses the request for one token, or breaks.
    """
    async with AsyncOpenAIClient(url, access=access) as client:
        if not await client.is_ready(model=model):
            raise not_ready(url, model)
        return client.counts_each


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
