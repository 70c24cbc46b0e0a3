# SPDX-License-Identifier: Apache-2.0
"""An API elsewhere that answers in place of a model: asked by OpenAI's API, over HTTP, always as a stream."""

import contextlib
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from clients.access import Access
from clients.load.openai.openai_errors import http_error
from clients.openai_api.answer_deltas import Usage
from clients.openai_api.asked import Asked
from clients.tls_context import check_access, tls_context
from ensemble_configs.spec.gateway_spec import ManagedApiSpec
from gateway.attempt import Pieces
from gateway.fallback.managed_body import managed_body
from gateway.fallback.managed_events import ManagedEvents
from gateway.ledger.prices import cost_nano_usd
from gateway.servers.breaker import Breaker
from trireme.base.errors import SpecError, Unavailable

_OK = 200
_CONNECT_S = 5.0
_ITS_CALLERS_FAULT = (400, 413, 422)  # what says nothing about the API itself


class ManagedApi:
    """An API elsewhere; entered, it has connections.

    Args:
        timeout_s: of a whole answer.

    Raises:
        SpecError: a file of its access cannot be used.
    """

    def __init__(self, spec: ManagedApiSpec, *, timeout_s: float) -> None:
        self.spec = spec
        key, authorities = (None if path is None else str(path) for path in (spec.key_file, spec.ca_file))
        self.access = Access(is_tls=spec.url.startswith("https:"), ca_file=authorities, token_file=key)
        if spec.ca_file is not None and not self.access.is_tls:
            raise SpecError(f"ca_file of the managed API {spec.name} needs an https URL", field="ca_file")
        check_access(self.access)
        self.breaker = Breaker(time.monotonic)
        self.limits = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=_CONNECT_S, sock_read=spec.silence_s, ceil_threshold=float("inf")
        )
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context = tls_context(self.access) if self.access.uses_tls else True
        connector = aiohttp.TCPConnector(limit=0, ssl=context)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=True, timeout=self.limits
        )
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

    @contextlib.asynccontextmanager
    async def answering(self, path: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask inside the block for what a body says.

        Raises:
            Unavailable: it refuses, or its connection fails.
        """
        assert self._session is not None, "it was entered"
        headers = {"Content-Type": "application/json", **dict(self.access.headers())}
        url = f"{self.spec.url.rstrip('/')}/{path}"
        is_trial, is_at_fault = self.breaker.begin(), True
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                is_at_fault = response.status not in _ITS_CALLERS_FAULT
                await self._check_taken(response)
                yield response
        except (aiohttp.ClientError, TimeoutError) as exc:
            self.breaker.fail(is_trial=is_trial)
            raise Unavailable(f"{self.name} failed: {exc or type(exc).__name__}", reason="managed_api") from exc
        except Unavailable:
            if is_at_fault:
                self.breaker.fail(is_trial=is_trial)
            else:
                self.breaker.leave(is_trial=is_trial)
            raise
        except BaseException:  # its caller has left
            self.breaker.leave(is_trial=is_trial)
            raise
        self.breaker.succeed()

    async def _check_taken(self, response: aiohttp.ClientResponse) -> None:
        if response.status != _OK:
            refusal = http_error(response.status, await response.read(), access=self.access)
            raise Unavailable(f"{self.name} refuses: {refusal.message}", reason="managed_api")


class ManagedAttempt:
    """An attempt by an API elsewhere."""

    def __init__(self, api: ManagedApi, path: str, body: bytes, events: ManagedEvents) -> None:
        self._api, self._path, self._body, self._events = api, path, body, events

    is_kept = False

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

    async def pieces(self) -> Pieces:
        """Yield the pieces of the answer; closing the iterator closes the connection.

        Raises:
            Unavailable: the API refuses, breaks off, or is left alone after failures.
        """
        if not self._api.breaker.is_closed:
            raise Unavailable(f"{self._api.name} has failed, and is left alone for a while", reason="managed_api")
        async with self._api.answering(self._path, self._body) as response:
            async for data in response.content.iter_any():
                for piece in self._events.feed(data):
                    yield piece
            if not self._events.is_done:
                raise Unavailable(f"{self._api.name} ended its answer before [DONE]", reason="managed_api")
