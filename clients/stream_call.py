# SPDX-License-Identifier: Apache-2.0
"""The ends of a streaming call: closed as Triton can stand it, and told apart where gRPC loses the reason."""

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

_END_S = 1.0  # what a stream with an error has to end by itself
_ASK_S = 3.0  # for the reason why a request could not be written

StreamCall = Any  # grpc has no types


async def why_unwritten(exc: grpc.aio.AioRpcError, stub: Any, key: tuple[tuple[str, str], ...]) -> grpc.aio.AioRpcError:
    """Return why a request could not be written, by a small call with the same key; else the error itself.

    A proxy that refuses a key answers at once and closes the stream. Where the request is still being written then,
    grpc.aio 1.85 tells INTERNAL and loses the answer.
    """
    if exc.code() is not grpc.StatusCode.INTERNAL or exc.details() != "Internal error from Core":
        return exc
    try:
        await stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_ASK_S, metadata=key)
    except grpc.aio.AioRpcError as told:
        return told
    return exc


async def let_end(call: StreamCall) -> None:
    """Half-close a stream that has had its error, and read to its end.

    Cancelled at that moment, it costs Triton 2.51 some 20 KiB for ever, and now and then its life (SIGSEGV).
    """
    with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
        async with asyncio.timeout(_END_S):
            await half_close(call)
            async for _ in call:
                pass


async def half_close(call: StreamCall) -> None:
    """Say that nothing more is written."""
    # grpc.aio 1.85 lets an error of its own out where the call has ended by itself meanwhile, at its deadline say.
    with contextlib.suppress(grpc.aio.InternalError):
        await call.done_writing()
