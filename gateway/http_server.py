# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a gateway: which handler answers a path, who may call, and what errors look like."""

import asyncio
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web

from clients.openai_api.api_error import ApiError, api_error, is_of_the_operator
from gateway.access.caller import NOBODY, Caller, Callers
from gateway.callers_api import authorization_of, error_answer_for
from gateway.gateway_metrics import GatewayMetrics
from trireme.base.byte_budget import ByteBudget
from trireme.base.errors import ServingError
from trireme.base.http_servers.http_body import body_of
from trireme.base.http_servers.http_connections import PatientServer
from trireme.base.http_servers.renewed_certificate import RenewedCertificate

_BACKLOG = 1024
_LARGE_AT_ONCE = 8  # bodies of the largest size that may be on their way
_HANDSHAKE_S = 10.0
_FIELD_BYTES = 24 << 10  # of a header: tokens are long

_log = logging.getLogger("trireme.gateway")

Handler = Callable[[web.BaseRequest, bytes, Caller], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    """A path and its handler.

    Attributes:
        path: pattern of the whole path.
        is_open: whether anybody may call; others need a key, where there are keys.
        is_for_admins: whether the key must be an admin's.
    """

    method: str
    path: str
    handler: Handler
    is_open: bool = False
    is_for_admins: bool = False


class HttpServer:
    """The server of some routes.

    Args:
        callers: who a caller is, by the key that came with the request.
        max_body_bytes: of a request.
        max_connections: of all callers.
    """

    def __init__(
        self,
        routes: list[Route],
        *,
        callers: Callers,
        metrics: GatewayMetrics,
        max_body_bytes: int,
        max_connections: int,
    ) -> None:
        self._routes = [(re.compile(route.path), route) for route in routes]
        self._callers, self._metrics, self._max_body_bytes = callers, metrics, max_body_bytes
        self._budget = ByteBudget(_LARGE_AT_ONCE * max_body_bytes)
        self._server = PatientServer(self._answer, max_connections, max_field_bytes=_FIELD_BYTES)
        self._num_running = 0

    async def serve(self, listener: socket.socket, *, certificate: RenewedCertificate, stop: asyncio.Event) -> None:
        """Answer requests until `stop` is set; the listening socket is closed then, and running requests go on."""
        loop, tls = asyncio.get_running_loop(), certificate.context
        handshake_s = None if tls is None else _HANDSHAKE_S
        server = await loop.create_server(
            self._server.connection, sock=listener, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s
        )
        ticking = asyncio.create_task(self._tick(certificate))
        await stop.wait()
        server.close()
        ticking.cancel()

    async def finish(self, timeout_s: float) -> None:
        """Wait until the running requests have ended, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while self._num_running and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._num_running += 1
        try:
            return await self._routed(request)
        except ApiError as exc:
            return self._refused(request, exc)
        except ServingError as exc:
            if is_of_the_operator(exc):
                _log.error("%s", exc.message)
            return self._refused(request, api_error(exc))
        except web.HTTPRequestEntityTooLarge:
            too_large = f"the body is longer than {self._max_body_bytes} bytes (--max-body-bytes); send less"
            answer = self._refused(request, ApiError(too_large, code="body_too_large", status=413))
            answer.force_close()
            return answer
        except Exception:
            _log.exception("a request to %s failed", request.path[:64])
            failed = "the gateway failed; the reason is in its log"
            return self._refused(request, ApiError(failed, code="server_error", status=500))
        finally:
            self._num_running -= 1

    async def _routed(self, request: web.BaseRequest) -> web.StreamResponse:
        route = self._route(request)
        caller = NOBODY if route.is_open else await self._callers.find(authorization_of(request))
        if route.is_for_admins:
            caller.check_is_admin()
        async with body_of(request, max_bytes=self._max_body_bytes, budget=self._budget) as body:
            pass
        return await route.handler(request, body, caller)

    def _route(self, request: web.BaseRequest) -> Route:
        method = "GET" if request.method == "HEAD" else request.method
        allowed = [route for pattern, route in self._routes if pattern.fullmatch(request.path)]
        for route in allowed:
            if route.method == method:
                return route
        if allowed:
            methods = ", ".join(sorted({each.method for each in allowed}))
            raise ApiError(
                f"{request.path} takes {methods}, got {request.method[:16]}",
                code="method_not_allowed",
                status=405,
                headers={"Allow": methods},
            )
        raise ApiError(f"there is no {request.path[:64]!r} here", code="not_found", status=404)

    def _refused(self, request: web.BaseRequest, error: ApiError) -> web.Response:
        self._metrics.note_error(error.code)
        return error_answer_for(request, error)

    async def _tick(self, certificate: RenewedCertificate) -> None:
        while True:
            await asyncio.sleep(1)
            self._server.tick(time.monotonic())
            certificate.renew()
