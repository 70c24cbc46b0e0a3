# SPDX-License-Identifier: Apache-2.0
"""The gRPC answers of tritonserver 2.71: a proxy before the real server, which changes those that differ.

Messages go through as bytes, streams and unary calls alike, with their metadata. Nothing of the project is imported.
Changed are, each with its source upstream (server and core at 2.71):

- `ServerReady`, `ModelReady` and `grpc.health.v1.Health/Check` say no once a Python stub is dead, without an error:
  core #473, asked by `grpc_server.cc` (`RegisterServerReady`, `RegisterModelReady`, `RegisterHealthCheck`).
- Shared memory of clients is UNIMPLEMENTED without `--allow-client-shm=true`: server #8721, all four calls.
- A request that names an output twice is refused: core #493 (`AddOriginalRequestedOutput`).
- A server that is told to end lets running streams end (server #7969, `Server::GracefulStop`): it takes no new calls,
  and a new request on an open stream is answered with an error. When `--exit-timeout-secs` are over, what still runs
  is cut (`Server::Stop`) and the process ends with a signal, as observed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

NO_SHM = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
STOPPING = "GRPC server is shutting down and has stopped accepting new requests."
_SHM_CALLS = {
    f"{kind}SharedMemory{call}" for kind in ("System", "Cuda") for call in ("Register", "Unregister")
}  # fmt: skip
_HEALTHY, _UNHEALTHY = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse: SERVING, NOT_SERVING
_EVER_S = 3600.0
_NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_OF_THE_CONNECTION = ("grpc-", ":", "user-agent", "te", "content-type")


class GrpcAnswers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The calls of a newer server, from `start` to `stop`.

    Args:
        real: ``host:port`` of the real server's gRPC.
        is_unready: of a model and a version, "" for none in particular; of the server for "".
        takes_shared_memory: `--allow-client-shm=true` was given.
    """

    def __init__(self, real: str, is_unready: Callable[[str, str], bool], *, takes_shared_memory: bool) -> None:
        self._channel = grpc.aio.insecure_channel(real, options=_NO_LIMIT)
        self._is_unready = is_unready
        self._takes_shared_memory = takes_shared_memory
        self._is_stopping = False
        self._num_running = 0
        self._server = grpc.aio.server(handlers=(self,), options=[*_NO_LIMIT, ("grpc.so_reuseport", 0)])

    async def start(self, address: str) -> None:
        """Listen on ``host:port``."""
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self, timeout_s: float) -> bool:
        """Take no new calls, and let the others end; return whether they did in time, or were cut."""
        self._is_stopping = True
        stopping = asyncio.create_task(self._server.stop(timeout_s + _EVER_S))  # which takes no new calls at once
        until_s = asyncio.get_running_loop().time() + timeout_s
        while self._num_running and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(0.02)
        have_ended = not self._num_running
        await self._server.stop(0)
        await stopping
        await self._channel.close()
        return have_ended

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return a handler for any call, as a stream of bytes in both directions."""
        path = details.method

        async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            self._num_running += 1
            try:
                async for message in self._answer(path, requests, context):
                    yield message
            finally:
                self._num_running -= 1

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _answer(self, path: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        name = path.rpartition("/")[2]
        if name in _SHM_CALLS and not self._takes_shared_memory:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SHM)
        if name == "ModelInfer":
            requests = self._checked(requests, context)
        call = self._channel.stream_stream(path)(metadata=_metadata(context))
        refused: asyncio.Queue[bytes] = asyncio.Queue()
        asked: list[bytes] = []
        sending = asyncio.create_task(self._send(name, requests, call, asked, refused))
        try:
            async for message in _both(call, refused):
                yield self._changed(name, asked, message)
        except grpc.aio.AioRpcError as exc:
            await context.abort(exc.code(), exc.details() or "", exc.trailing_metadata() or ())
        finally:
            sending.cancel()
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await sending

    async def _checked(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            if why := _refusal(message):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
            yield message

    async def _send(
        self, name: str, requests: AsyncIterator[bytes], call: Any, asked: list[bytes], refused: "asyncio.Queue[bytes]"
    ) -> None:
        async for message in requests:
            asked.append(message)
            why = _refusal(message) if name == "ModelStreamInfer" else None
            if name == "ModelStreamInfer" and self._is_stopping:
                why = STOPPING
            if why is None:
                await call.write(message)
            else:
                await refused.put(_error(message, why))
        await call.done_writing()

    def _changed(self, name: str, asked: list[bytes], message: bytes) -> bytes:
        if name == "ServerReady" and self._is_unready("", ""):
            return bytes(service_pb2.ServerReadyResponse(ready=False).SerializeToString())
        if name == "Check" and message == _HEALTHY and self._is_unready("", ""):
            return _UNHEALTHY
        if name == "ModelReady":
            of = service_pb2.ModelReadyRequest.FromString(asked[0])
            if self._is_unready(of.name, of.version):
                return bytes(service_pb2.ModelReadyResponse(ready=False).SerializeToString())
        return message


async def _both(call: Any, refused: "asyncio.Queue[bytes]") -> AsyncIterator[bytes]:
    """Yield what the real server answers and what was refused before it, as they come, until the former ends."""
    ours = asyncio.create_task(refused.get())
    theirs = asyncio.create_task(call.read())
    try:
        while True:
            await asyncio.wait({ours, theirs}, return_when=asyncio.FIRST_COMPLETED)
            if ours.done():
                yield ours.result()
                ours = asyncio.create_task(refused.get())
            if theirs.done():
                if (message := theirs.result()) is grpc.aio.EOF:
                    break
                yield message
                theirs = asyncio.create_task(call.read())
        if await call.code() is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
    finally:
        ours.cancel()
        theirs.cancel()


def _metadata(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(
        (key, value) for key, value in context.invocation_metadata() if not key.startswith(_OF_THE_CONNECTION)
    )  # fmt: skip


def _refusal(request: bytes) -> str | None:
    """Return what the newer server has against a request for an answer."""
    names = [output.name for output in service_pb2.ModelInferRequest.FromString(request).outputs]
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else f"output '{twice}' already exists in request"


def _error(request: bytes, why: str) -> bytes:
    response = service_pb2.ModelStreamInferResponse(error_message=why)
    response.infer_response.id = service_pb2.ModelInferRequest.FromString(request).id
    return bytes(response.SerializeToString())
