# SPDX-License-Identifier: Apache-2.0
"""The body of a request over HTTP, read in bounded time and size."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from trireme.base.byte_budget import ByteBudget
from trireme.base.errors import RequestError

_BODY_S = 30.0  # for a body, beside the time that a slow line may take
_LEAST_BYTES_PER_S = 262_144
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
_PIECE_BYTES = 1 << 18


@asynccontextmanager
async def body_of(request: web.BaseRequest, *, max_bytes: int, budget: ByteBudget) -> AsyncIterator[bytes]:
    """Read a body, which counts in a budget until the block is left.

    Raises:
        HTTPRequestEntityTooLarge: the body is longer than `max_bytes`.
        RequestError: the body did not come in time.
        Unavailable: too many bytes are on their way.
    """
    length = request.content_length or 0
    if length > max_bytes:
        raise web.HTTPRequestEntityTooLarge(max_size=max_bytes, actual_size=length)
    budget.take(length)
    try:
        yield await _read(request, length=length, max_bytes=max_bytes)
    finally:
        budget.give(length)


async def _read(request: web.BaseRequest, *, length: int, max_bytes: int) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue":  # curl waits a second for it
        await request.writer.write(_GO_ON)
        request.writer.output_size = 0
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S + (length or max_bytes) / _LEAST_BYTES_PER_S):
            async for piece in request.content.iter_chunked(_PIECE_BYTES):
                body += piece
                if len(body) > max_bytes:
                    raise web.HTTPRequestEntityTooLarge(max_size=max_bytes, actual_size=len(body))
    except TimeoutError as exc:
        raise RequestError("the body did not come in time", field="body") from exc
    return bytes(body)
