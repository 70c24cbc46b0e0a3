# SPDX-License-Identifier: Apache-2.0
"""A client that takes nothing of a stream of events is hung up on, and gets no second answer inside the first."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from tritonclient.grpc import service_pb2

from serving.frontend.http import http_frontend
from serving.frontend.http.http_answers import answer_to

_READ_BYTES = 1 << 20


async def _endless() -> AsyncIterator[Any]:
    """Yield large responses, more than any buffer on the way holds."""
    for _ in range(1000):
        reply = service_pb2.ModelInferResponse(model_name="ensemble")
        reply.parameters["padding"].string_param = "x" * 100_000
        yield service_pb2.ModelStreamInferResponse(infer_response=reply)


def test_a_reader_who_takes_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_frontend, "_WRITE_S", 0.2)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await http_frontend._generate_stream(request, _endless())
        except TimeoutError:  # as the frontend answers it
            return answer_to(http_frontend._silent(TimeoutError()))

    async def run() -> bytes:
        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname()) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                await asyncio.sleep(1.0)  # the buffers are full, and the time is over
                return await asyncio.to_thread(_all_of, client)

    received = asyncio.run(run())
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert received.count(b"HTTP/1.1") == 1


def _all_of(client: socket.socket) -> bytes:
    received = b""
    try:
        while data := client.recv(_READ_BYTES):
            received += data
    except ConnectionResetError:
        pass
    return received
