# SPDX-License-Identifier: Apache-2.0
"""The relay of gRPC in front of a real gRPC server that stands for Triton's, and for the model behind it."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.frontend.common.departures import Departures
from serving.frontend.grpc.grpc_frontend import GrpcFrontend
from serving.frontend.grpc.grpc_relay import ClientConnection
from serving.pipeline.direct.direct_replies import DirectWay
from serving.process.reply_socket import reply_socket
from serving.requests.stream_message import StreamMessages
from trireme.base.byte_budget import ByteBudget

MAX_BYTES = 1_000_000
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # tritonclient has no types
    """An echo: each request of a stream is answered as often as its parameter `times` says.

    Before that come as many answers past Triton as its parameter `direct` says, numbered, of `bytes` bytes each.
    """

    def __init__(self) -> None:
        self.way: DirectWay  # of the model `ensemble`, once it is connected
        self.metadata: list[dict[str, str]] = []
        self.num_cancelled = 0

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.metadata.append(dict(context.invocation_metadata()))
        return service_pb2.ModelInferResponse(id=request.id, raw_output_contents=request.raw_input_contents)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        metadata = dict(context.invocation_metadata())
        self.metadata.append(metadata)
        try:
            async for request in requests:
                if request.parameters["direct"].int64_param:
                    await self._answer_directly(request, metadata)
                if request.id == "abort":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the model died")
                for _ in range(request.parameters["times"].int64_param or 1):
                    answer = service_pb2.ModelInferResponse(id=request.id)
                    answer.raw_output_contents.extend(request.raw_input_contents)
                    yield service_pb2.ModelStreamInferResponse(infer_response=answer)
                if request.id == "wait":
                    await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    async def _answer_directly(self, request: Any, metadata: dict[str, str]) -> None:
        name = metadata["trireme-stream"]
        way = self.way
        assert way.take(name), "the frontend has not named the request"
        messages = StreamMessages(request.model_name, "1", request.id)
        for number in range(request.parameters["direct"].int64_param):
            contents = number.to_bytes(4, "little") + b"d" * request.parameters["bytes"].int64_param
            way.put(name.encode(), messages.message({"OUT": np.array([contents], dtype=np.object_)}))
            if number % 7 == 0:
                await asyncio.to_thread(way.flush)
        await asyncio.to_thread(way.flush)

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        del request, context
        return service_pb2.ServerLiveResponse(live=True)


class Left(Departures):
    """A record of the streams that were left."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def leave(self, names: Any) -> None:
        self.names += names


@dataclass
class Site:
    """A relay in front of a server."""

    triton: Triton
    state: GrpcFrontend
    port: int
    left: Left
    budget: ByteBudget
    run_dir: Path
    channel: Any = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def stub(self) -> Any:
        if self.channel is None:
            options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
            self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options)
        return self.stub_of(self.channel)

    def stub_of(self, channel: Any) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer


async def at_site(work: Callable[[Site], Awaitable[None]]) -> None:
    folder = tempfile.TemporaryDirectory()
    # As Triton is started: a client's pings for the window of data that did not come from Triton are no strikes.
    server = grpc.aio.server(options=[*UNLIMITED, ("grpc.http2.max_ping_strikes", 0)])
    triton = Triton()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    left, budget = Left(), ByteBudget(8 * MAX_BYTES)
    state = GrpcFrontend(left, budget, MAX_BYTES, 100, port=port, own_models=frozenset({"ensemble"}))
    path = reply_socket(Path(folder.name), left.frontend)
    state.direct.listen(path)
    triton.way = DirectWay(path, "ensemble")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    relay = await asyncio.get_running_loop().create_server(lambda: ClientConnection(state), sock=listener)
    site = Site(triton, state, listener.getsockname()[1], left, budget, Path(folder.name))
    try:
        async with asyncio.timeout(30):
            await until(lambda: state.direct.has("ensemble"))
            await work(site)
        assert budget._taken == 0, "bytes were taken and not given back"
    finally:
        for writer in site.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if site.channel is not None:
            await site.channel.close()
        relay.close()
        listener.close()
        for connection in list(state.connections):
            connection.close()
        await asyncio.sleep(0.02)
        for connection in list(state.connections):  # those that are wound up
            connection.tick(asyncio.get_running_loop().time() + 100)
        await asyncio.sleep(0.02)
        state.direct.close()
        triton.way.close()
        await server.stop(None)
        folder.cleanup()


def served(work: Callable[[Site], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(at_site(work))

    test.__name__ = work.__name__
    test.__doc__ = work.__doc__
    return test


def request(
    contents: bytes = b"",
    *,
    times: int = 1,
    direct: int = 0,
    num_bytes: int = 0,
    shape: list[int] | None = None,
    name: str = "a",
) -> Any:
    found = service_pb2.ModelInferRequest(id=name, model_name="ensemble")
    found.parameters["times"].int64_param = times
    if direct:
        found.parameters["direct"].int64_param = direct
        found.parameters["bytes"].int64_param = num_bytes
    found.inputs.add(name="IDS", datatype="INT32", shape=shape or [1, len(contents) // 4])
    found.raw_input_contents.append(contents)
    return found


def stream(*requests: Any) -> AsyncIterator[Any]:
    async def each() -> AsyncIterator[Any]:
        for one in requests:
            yield one

    return each()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.005)
