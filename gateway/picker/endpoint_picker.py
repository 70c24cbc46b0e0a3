# SPDX-License-Identifier: Apache-2.0
"""The endpoint picker: a gRPC server that Envoy's filter `ext_proc` asks, before servers that a pool watches."""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio

from gateway.picker.envoy_messages import (
    HEALTH,
    NOT_SERVING,
    PROCESS,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    ProcessingRequest,
    ProcessingResponse,
)
from gateway.picker.picked_request import PickedRequest
from gateway.picker.prompt_of_body import Prompt
from gateway.servers.server import Server
from gateway.servers.server_pool import ServerPool
from trireme.base.errors import Unavailable

_log = logging.getLogger("trireme.gateway")


class Endpoints(NamedTuple):
    """The endpoints that requests go to, and the models there.

    Attributes:
        port: of each server's endpoint; None: that of its URL.
        models: Triton's names by those that requests may have.
        usual_model: of a request that names none.
        most: of a pick, with those that a gateway may try after the first.
    """

    port: int | None
    models: Mapping[str, str]
    usual_model: str
    most: int = 1

    def of(self, server: Server) -> str:
        """Return the endpoint of a server, `ip:port`."""
        host, _, port = server.url.removeprefix("grpcs://").removeprefix("grpc://").rpartition(":")
        return f"{host}:{self.port or port}"

    def model_of(self, prompt: Prompt) -> str:
        """Return Triton's name of the model that a request asks."""
        return self.models.get(prompt.model, self.usual_model)


def has_address(url: str) -> bool:
    """Return whether a server's URL has an address in it, and no name."""
    host = url.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class EndpointPicker:
    """The picker."""

    def __init__(self, pool: ServerPool, endpoints: Endpoints) -> None:
        self._pool, self._endpoints = pool, endpoints

    def pick(self, prompt: Prompt, allowed: frozenset[str] | None) -> dict[str, Server]:
        """Return the servers for a prompt by their endpoints, the best first.

        Raises:
            Unavailable: none takes the request.
        """
        by_endpoint = {self._endpoints.of(server): server for server in self._pool.servers}
        passed_over = [server for each, server in by_endpoint.items() if allowed is not None and each not in allowed]
        model = self._endpoints.model_of(prompt)
        picked: dict[str, Server] = {}
        while len(picked) < self._endpoints.most:
            try:
                server = self._pool.choose(
                    model,
                    prompt.numbers,
                    [*passed_over, *picked.values()],
                    is_session=prompt.is_session,
                    is_told=prompt.is_told,
                )
            except Unavailable:
                if not picked:
                    raise
                break
            picked[self._endpoints.of(server)] = server
        return picked

    async def process(self, told: AsyncIterator[Any], _context: Any) -> AsyncIterator[Any]:
        """Answer what Envoy tells of one request."""
        request = PickedRequest(self.pick)
        try:
            async for message in told:
                for answer in request.hear(message):
                    yield answer
        finally:
            request.close()

    async def check(self, request: Any, context: Any) -> Any:
        """Answer a probe: alive always, ready while a server takes requests."""
        if request.service not in ("", "liveness", "readiness", PROCESS):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service}")
        is_serving = request.service == "liveness" or any(
            server.takes(model) and server.ready is not None for server in self._pool.servers for model in server.models
        )
        return HealthCheckResponse(status=SERVING if is_serving else NOT_SERVING)


async def serve(
    picker: EndpointPicker, listen: str, credentials: Any, *, stop: asyncio.Event, exit_timeout_s: float
) -> None:
    """Answer Envoy at an address until `stop` is set, and running requests to their end or `exit_timeout_s`.

    Raises:
        Unavailable: the address is taken.
    """
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(_handlers(picker))
    try:
        if credentials is None:
            server.add_insecure_port(listen)
        else:
            server.add_secure_port(listen, credentials)
    except RuntimeError as exc:
        raise Unavailable(f"nothing can listen at {listen}; take another --listen, or end what is there") from exc
    await server.start()
    _log.info("the endpoint picker answers at %s", listen)
    await stop.wait()
    await server.stop(exit_timeout_s)


def _handlers(picker: EndpointPicker) -> tuple[Any, ...]:
    """Return the handlers of both services."""
    process = grpc.stream_stream_rpc_method_handler(
        picker.process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
    )
    check = grpc.unary_unary_rpc_method_handler(
        picker.check, HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
    )
    return (
        grpc.method_handlers_generic_handler(PROCESS, {"Process": process}),
        grpc.method_handlers_generic_handler(HEALTH, {"Check": check}),
    )
