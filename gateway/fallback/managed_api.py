# SPDX-License-Identifier: Apache-2.0
"""An API elsewhere that answers in place of a model: asked by OpenAI's API, over HTTP, always as a stream."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from clients.access import Access
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked
from clients.tls_context import check_access, tls_context
from ensemble_configs.spec.gateway_spec import ManagedApiSpec
from gateway.attempt import Pieces
from gateway.fallback.managed_body import managed_body
from gateway.fallback.managed_events import ManagedEvents
from gateway.ledger.prices import cost_nano_usd
from gateway.servers.breaker import Breaker
from trireme.base.errors import SpecError, Unavailable

_Answering = contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]
_OK = 200
_CONNECT_S = 5.0
_ITS_CALLERS_FAULT = (400, 413, 422)  # what says nothing about the API itself


class ManagedApi:
    """An API elsewhere; entered, it has connections.

    Raises:
        SpecError: a file of its access cannot be used.
    """

    def __init__(self, spec: ManagedApiSpec) -> None:
        self.spec = spec
        key, authorities = (None if path is None else str(path) for path in (spec.key_file, spec.ca_file))
        self._access = Access(is_tls=spec.url.startswith("https:"), ca_file=authorities, token_file=key)
        if spec.ca_file is not None and not spec.url.startswith("https:"):
            raise SpecError(f"ca_file of the managed API {spec.name} needs an https URL", field="ca_file")
        check_access(self._access)
        self.breaker = Breaker(time.monotonic)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context = tls_context(self._access) if self._access.uses_tls else True
        connector = aiohttp.TCPConnector(limit=0, ssl=context)
        # Not by the environment: aiohttp would look for a password in ~/.netrc, and a proxy is named in the deployment.
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _where: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    @property
    def name(self) -> str:
        """Return the name by which answers and the ledger tell of it."""
        return self.spec.name

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost, in billionths of a US dollar."""
        return cost_nano_usd(self.spec.price, usage)

    def attempt(self, asked: Asked, *, is_streaming: bool) -> "ManagedAttempt":  # noqa: ARG002  it always streams
        """Return an attempt that has not begun.

        Raises:
            ApiError: there is something in the request that OpenAI's API has no name for.
        """
        body = managed_body(asked, model=self.spec.model, limit_field=self.spec.limit_field)
        path = "chat/completions" if asked.is_chat else "completions"
        return ManagedAttempt(self, path, msgspec.json.encode(body), ManagedEvents(asked, name=self.name))

    def post(self, path: str, body: bytes, *, timeout_s: float) -> _Answering:
        """Return the answer to a body, for the time of a block.

        Raises:
            SpecError: the key cannot be read.
        """
        assert self._session is not None, "it was entered"
        return self._session.post(
            f"{self.spec.url.rstrip('/')}/{path}",
            data=body,
            headers={"Content-Type": "application/json", **dict(self._access.headers())},
            allow_redirects=False,
            proxy=self.spec.proxy,
            timeout=aiohttp.ClientTimeout(
                total=timeout_s, sock_connect=_CONNECT_S, sock_read=self.spec.silence_s, ceil_threshold=float("inf")
            ),
        )


class ManagedAttempt:
    """An attempt by an API elsewhere."""

    def __init__(self, api: ManagedApi, path: str, body: bytes, events: ManagedEvents) -> None:
        self._api, self._path, self._body, self._events = api, path, body, events
        self._is_trial = False

    is_kept = has_moved = False
    similarity: float | None = None

    @property
    def usage(self) -> Usage:
        """Return the tokens as the API tells them, or by their characters until it does."""
        return self._events.usage

    @property
    def release(self) -> None:
        """Return None: no release of the deployment answers."""
        return

    @property
    def finish_reason(self) -> str:
        """Return the words for how the choices have ended."""
        return self._events.finish_reason

    async def pieces(self, *, deadline_s: float) -> Pieces:
        """Yield the pieces of the answer; closing the iterator closes the connection.

        Raises:
            Unavailable: the API refuses, breaks off, or is left alone after failures.
        """
        breaker = self._api.breaker
        if not breaker.is_closed:
            raise Unavailable(f"{self._api.name} has failed, and is left alone for a while", reason="managed_api")
        self._is_trial = breaker.begin()
        is_at_fault: bool | None = None  # None: nobody knows, for its caller has left
        try:
            async with contextlib.aclosing(self._asked(deadline_s)) as pieces:
                async for piece in pieces:
                    yield piece
            is_at_fault = False
        except _RefusedError as exc:
            is_at_fault = exc.status not in _ITS_CALLERS_FAULT or None
            raise
        except Unavailable:
            is_at_fault = True
            raise
        finally:
            if is_at_fault:
                breaker.fail(is_trial=self._is_trial)
            elif is_at_fault is None:
                breaker.leave(is_trial=self._is_trial)
            else:
                breaker.succeed()

    def note_slow(self) -> None:
        """Note that the attempt was given up, for it had not begun in time: the API is as bad as one that fails."""
        self._api.breaker.fail(is_trial=self._is_trial)

    async def _asked(self, deadline_s: float) -> AsyncGenerator[Piece, None]:
        timeout_s = max(deadline_s - asyncio.get_running_loop().time(), 0.001)
        try:
            async with self._api.post(self._path, self._body, timeout_s=timeout_s) as response:
                if response.status != _OK:  # what it says may quote the prompt, and this goes to a log
                    raise _RefusedError(self._api.name, response.status)
                async for data in response.content.iter_any():
                    for piece in self._events.feed(data):
                        yield piece
                    if self._events.is_done:  # some leave the connection open
                        break
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise Unavailable(f"{self._api.name} failed ({type(exc).__name__})", reason="managed_api") from exc
        self._events.check_end()


class _RefusedError(Unavailable):
    """A refusal of an API, by its status."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} refuses with HTTP status {status}", reason="managed_api")
        self.status = status
