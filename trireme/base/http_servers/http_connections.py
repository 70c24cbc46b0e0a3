# SPDX-License-Identifier: Apache-2.0
"""The connections of aiohttp's server with limits: on the time of an incomplete request, and on their number."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_HEAD_S = 10.0  # from the first byte of a request, or the connection, to the end of the request's head
_IDLE_S = 75.0  # between two requests of a connection
_FIELD_BYTES = 8190  # of a header, as aiohttp has it

_log = logging.getLogger("trireme.http.connections")


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a fault is not a client's: it could fill the log with what it sends."""
    fault = record.exc_info[1] if record.exc_info else None
    return not isinstance(fault, HttpProcessingError | ConnectionError | TimeoutError)


_log.addFilter(_is_ours)

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class PatientServer:
    """The connections of one listening socket, with their limits. Args: `max_field_bytes`: of a header."""

    def __init__(self, answer: Answer, max_connections: int, *, max_field_bytes: int = _FIELD_BYTES) -> None:
        self._answer = answer
        self._max_connections = max_connections
        self._server = web.Server(
            self._answer_one,
            handler_cancellation=True,
            keepalive_timeout=_IDLE_S,
            access_log=None,
            logger=_log,
            max_field_size=max_field_bytes,
        )
        self._connections: dict[asyncio.BaseTransport, _Connection] = {}

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Connection(self._server(), self._connections, self._max_connections)

    def tick(self, now_s: float) -> None:
        """End connections that take too long; called once a second."""
        for transport, connection in list(self._connections.items()):
            if not connection.is_busy and connection.since_s is not None and now_s - connection.since_s > _HEAD_S:
                transport.close()

    async def _answer_one(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._connections.get(request.transport) if request.transport is not None else None
        if connection is None:
            return await self._answer(request)
        connection.is_busy = True
        connection.since_s = None
        try:
            return await self._answer(request)
        finally:
            connection.is_busy = False


class _Connection(asyncio.Protocol):
    """A connection that hands everything on to aiohttp, and records when a request began."""

    def __init__(
        self, handler: Any, connections: dict[asyncio.BaseTransport, "_Connection"], max_connections: int
    ) -> None:
        self._handler = handler
        self._connections = connections
        self._max_connections = max_connections
        self._transport: Any = None
        self.is_busy = False
        self.since_s: float | None = time.monotonic()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if len(self._connections) >= self._max_connections:
            transport.abort()
            return
        self._connections[transport] = self
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self.is_busy and self.since_s is None:
            self.since_s = time.monotonic()
        if self._transport in self._connections:
            self._handler.data_received(data)

    def eof_received(self) -> Any:
        return self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connections.pop(self._transport, None) is not None:
            self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()
