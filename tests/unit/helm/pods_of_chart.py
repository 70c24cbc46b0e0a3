# SPDX-License-Identifier: Apache-2.0
"""Small servers in the place of a pod's: gRPC that says its name, HTTP that says what it was asked, and health."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import aiohttp.web
import grpc
import grpc.aio

ASK, STREAM = "/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelStreamInfer"
INDEX = "/inference.GRPCInferenceService/RepositoryIndex"
NUM_CHUNKS = 20
Headers = Sequence[tuple[str, str]]


class Pod:
    """At an address of its own, on the ports of every pod.

    Attributes:
        num_requests: over gRPC.
        is_ready: what health says.
        behaviour: of gRPC requests: `answer`, `hang` for good, or `reset` them before a byte of an answer.
        metadata: of the last gRPC request.
    """

    def __init__(self, name: str, host: str, ports: Mapping[str, int], credentials: Any = None) -> None:
        self.name, self.host = name, host
        self._credentials = credentials  # of gRPC, for a server with TLS
        self._ports = ports
        self.num_requests = 0
        self.is_ready = True
        self.behaviour = "answer"
        self.pause_s = 0.0
        self.metadata: dict[str, str] = {}
        self._over = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        handlers = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._ask),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream),
            "RepositoryIndex": grpc.unary_unary_rpc_method_handler(self._ask),
        }
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        port = self._ports["grpc"]
        address = f"{self.host}:{port}"
        if self._credentials is None:
            assert self._server.add_insecure_port(address) == port
        else:
            assert self._server.add_secure_port(address, self._credentials) == port
        await self._server.start()
        await self._serve(self._told, self._ports["http"])
        await self._serve(self._health, self._ports["health"])
        return self

    async def _serve(self, handler: Any, port: int) -> None:
        runner = aiohttp.web.ServerRunner(aiohttp.web.Server(handler), shutdown_timeout=0.1)
        await runner.setup()
        self._over.push_async_callback(runner.cleanup)
        await aiohttp.web.TCPSite(runner, self.host, port).start()

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Its connections end, and nobody listens any more."""
        await self._server.stop(None)
        await self._over.aclose()

    async def _count(self, context: Any) -> None:
        self.num_requests += 1
        self.metadata = dict(context.invocation_metadata())
        if self.behaviour == "hang":
            await asyncio.sleep(3600)
        if self.behaviour == "reset":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "going")

    async def _ask(self, _request: bytes, context: Any) -> bytes:
        await self._count(context)
        await asyncio.sleep(self.pause_s)
        return self.name.encode()

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await anext(requests)  # and does not wait for their end, as Triton does not
        await self._count(context)
        for _ in range(NUM_CHUNKS):
            yield self.name.encode()
            await asyncio.sleep(0.05)

    async def _told(self, request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
        body = (await request.content.read()).decode()  # `text` has a limit
        return aiohttp.web.json_response({"pod": self.name, "path": request.path, "body": body})

    async def _health(self, request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
        return aiohttp.web.Response(status=200 if self.is_ready and request.path == "/ready" else 503)


@contextlib.asynccontextmanager
async def pods(ports: Mapping[str, int], *, credentials: Any = None, **hosts: str) -> AsyncIterator[dict[str, Pod]]:
    """By name, each at its address."""
    async with contextlib.AsyncExitStack() as held:
        yield {
            name: await held.enter_async_context(Pod(name, host, ports, credentials)) for name, host in hosts.items()
        }


class Client:
    """A client of Envoy, over gRPC."""

    def __init__(self, channel: Any) -> None:
        self._ask = channel.unary_unary(ASK)
        self._stream = channel.stream_stream(STREAM)
        self.index = channel.unary_unary(INDEX)

    async def ask(self, *headers: tuple[str, str]) -> str:
        """Return the server that answered."""
        return bytes(await self._ask(b"", metadata=headers)).decode()

    async def who(self) -> tuple[str, str]:
        """Return the server that answered, and the release that Envoy names."""
        call = self._ask(b"")
        name = bytes(await call).decode()
        return name, str(dict(await call.initial_metadata())["x-trireme-release"])

    async def ask_often(self, count: int, *headers: tuple[str, str], at_a_time: int = 64) -> list[str]:
        """Return the server that answered each request."""
        names = [""] * count
        left = iter(range(count))

        async def worker() -> None:
            for number in left:
                names[number] = await self.ask(*headers)

        await asyncio.gather(*(worker() for _ in range(at_a_time)))
        return names

    async def stream(self, *headers: tuple[str, str]) -> list[str]:
        """Its chunks; the sending side stays open, as that of Triton's clients does."""
        call = self._stream(metadata=headers)
        await call.write(b"")
        return [chunk.decode() async for chunk in call]


@contextlib.asynccontextmanager
async def client(url: str, *, certificate: bytes | None = None) -> AsyncIterator[Client]:
    """Yield a client; over TLS to a server with the given certificate."""
    if certificate is None:
        made = grpc.aio.insecure_channel(url)
    else:
        made = grpc.aio.secure_channel(url, grpc.ssl_channel_credentials(certificate))
    async with made as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
        yield Client(channel)
