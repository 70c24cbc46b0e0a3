# SPDX-License-Identifier: Apache-2.0
"""The streaming client of the ensemble, async and sync: one gRPC call for each request, typed chunks, typed errors.

It uses tritonclient's gRPC stub and not its asyncio client class, which (2.73) cannot ask for the empty final response:
a stream that was cut could not be told from one that ended. They cost the same, 30 and 33 core-microseconds a response
(medians of 7, Triton 2.51, 8 streams, 2 busy cores, 2026-11-20).
"""

import asyncio
import functools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from clients.access import NO_ACCESS, Access, grpc_endpoint
from clients.access_errors import refused_call
from clients.client_span import ClientSpan, NoSpan
from clients.embedding_messages import EmbeddingRequest, Embeddings, decode_embeddings, encode_embedding_request
from clients.error_tokens import parse_error
from clients.grpc_channel import RenewedChannel
from clients.infer_messages import (
    IDLE_TIMEOUT_S,
    GenerateChunk,
    GenerateRequest,
    decode_chunks,
    encode_request,
    is_final_response,
    model_metadata,
)
from clients.silence_watch import SilenceWatch
from clients.stepped_loop import SteppedLoop
from clients.stream_call import half_close, let_end, why_unwritten
from clients.tls_context import check_access
from trireme.base.errors import AccessDenied, RequestCancelled, ServingError, Unavailable

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["Access", "AsyncTritonClient", "GenerateChunk", "GenerateRequest", "TritonClient"]

P = ParamSpec("P")

# A stream is kept open for writing until its final response. Where many are half-closed at once while others are being
# cancelled, Triton 2.51 now and then answers an empty request of its own making ("unknown model: ''"), or aborts.
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 5000),  # a server that is back is found soon; gRPC's own is two minutes
)


class AsyncTritonClient:
    """A client with one connection for any number of requests at a time.

    Create it inside a running event loop.

    Args:
        url: ``host:port`` of the gRPC endpoint, or ``grpcs://host:port`` for TLS.
        access: certificates and the key, where the server wants them. None: it wants none.
        tracer: OpenTelemetry's, for a span of each request; the server goes on in its trace. None: no spans.

    Raises:
        RequestError: the url is no such address.
        SpecError: a file of `access` cannot be read, or two fields do not go together.
    """

    def __init__(
        self, url: str = "localhost:8001", *, access: Access | None = None, tracer: "Tracer | None" = None
    ) -> None:
        self._url, self._access = grpc_endpoint(url, access or NO_ACCESS)
        check_access(self._access)
        self._tracer = tracer
        self._channel = RenewedChannel(self._url, self._access, _CHANNEL_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; requests that run are cancelled on the server and raise `RequestCancelled`."""
        await self._channel.close()

    async def is_ready(self, *, model: str = "ensemble", model_version: str = "", timeout_s: float = 5.0) -> bool:
        """Return whether the server and the model take requests now; False as well where nothing answers.

        It is the server's own word. Since Triton 26.04 that is no while the process of any model is dead, for the
        second or so that a repair takes, too.

        Raises:
            AccessDenied: the server is not trusted, or does not accept the client's certificate or key.
        """
        asked = service_pb2.ModelReadyRequest(name=model, version=model_version)
        key = self._access.headers()
        line = self._channel.take()
        try:
            live = await line.stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout_s, metadata=key)
            if not live.ready:
                return False
            metadata = (*model_metadata(model), *key)
            answer = await line.stub.ModelReady(asked, timeout=timeout_s, metadata=metadata)
            return bool(answer.ready)
        except grpc.aio.AioRpcError as exc:
            if denied := await self._why_denied(exc):
                raise denied from exc
            return False
        finally:
            self._channel.give_back(line)

    async def generate(
        self,
        request: GenerateRequest,
        *,
        model: str = "ensemble",
        model_version: str = "",
        release: int | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = IDLE_TIMEOUT_S,
        silence_s: float | None = None,
        traceparent: str | None = None,
        perf_outputs: Collection[str] | None = None,
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Send a request and yield its chunks as they come.

        The request is sent at the first `anext`. Closing the iterator, or cancelling the task that reads it, cancels
        the request on the server; leave a loop early under `contextlib.aclosing`, as `break` alone closes nothing.

        Args:
            release: that serves the request, whichever version of `tensorrt_llm_bls` takes it. None: that version's.
            request_id: unique among running requests; None: a new one.
            timeout_s: for the whole request. None: no limit.
            idle_timeout_s: for the wait for one response, the first included. None: no limit. The reader's own time
                does not count.
            silence_s: the same, once the first response is there. None: as `idle_timeout_s`.
            traceparent: the caller's span as W3C trace context, for the server to go on with; no span is made here.
            perf_outputs: with `return_perf_metrics` the measurements to ask for, by name. None: all, which an engine
                that does not know all of them refuses.

        Raises:
            RequestError: the request is wrong, or names a model that is not there.
            AccessDenied: the server is not trusted, or does not accept the client's certificate or key.
            RequestTimeout: `timeout_s` passed, or the server's own deadline.
            Unavailable: nothing answers, the connection was lost, or nothing came for `idle_timeout_s`.
            RequestCancelled: the client was closed, or the server cancelled this request alone.
            ServerError: anything else.
        """
        request_id = request_id or uuid.uuid4().hex
        message = encode_request(
            request,
            model=model,
            model_version=model_version,
            request_id=request_id,
            release=release,
            perf_outputs=perf_outputs,
        )
        key = self._access.headers()
        span = self._span(traceparent, model, request_id)
        line = self._channel.take()
        metadata = (*model_metadata(model), *span.metadata, *key)
        call = line.stub.ModelStreamInfer(timeout=timeout_s, metadata=metadata)
        silence = SilenceWatch(call, idle_timeout_s)
        is_complete = has_begun = False
        failure: ServingError | None = None
        try:
            await call.write(message)
            # To the stream's end, past the final response: cancelling a request that just ended is a race for nothing.
            async for response in call:
                received_ns = time.monotonic_ns()
                if not has_begun and silence_s is not None:
                    silence.limit(silence_s)
                has_begun = True
                if response.error_message:
                    failure = parse_error(response.error_message, address=self._url)
                    await let_end(call)
                    break
                is_complete = is_final_response(response)
                if is_complete:
                    await half_close(call)  # not before: see _CHANNEL_OPTIONS
                for chunk in decode_chunks(response, is_final=is_complete, received_ns=received_ns):
                    silence.pause()
                    span.note(chunk)
                    yield chunk
                silence.restart()
            if failure is None and not is_complete:
                early_end = f"{self._url} ended the stream before its final response"
                failure = Unavailable(early_end, reason="connection_lost")
        except grpc.aio.AioRpcError as exc:
            cause = exc if has_begun else await why_unwritten(exc, line.stub, key)
            failure = await self._why_failed(cause, has_begun=has_begun)
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            failure = self._why_cancelled(silence)
        finally:
            silence.stop()
            call.cancel()
            self._channel.give_back(line)
            span.end(failure, is_complete=is_complete)
        if failure is not None and not is_complete:
            raise failure

    async def embed(
        self, request: EmbeddingRequest, *, model: str, request_id: str | None = None, timeout_s: float | None = None
    ) -> Embeddings:
        """Return the vectors of texts, or of token ids, by an embedding model.

        Args:
            request: no more rows than the model's `max_batch_size`.
            request_id: unique among running requests; None: a new one.
            timeout_s: for the whole request. None: no limit.

        Raises:
            RequestError: the request is wrong, or names a model that is not there.
            AccessDenied: the server is not trusted, or does not accept the client's certificate or key.
            RequestTimeout: `timeout_s` passed.
            Unavailable: nothing answers, the connection was lost, or there is no room.
            RequestCancelled: the client was closed, or the server cancelled this request alone.
            ServerError: anything else.
        """
        message = encode_embedding_request(request, model=model, request_id=request_id or uuid.uuid4().hex)
        key = self._access.headers()
        line = self._channel.take()
        try:
            response = await line.stub.ModelInfer(message, timeout=timeout_s, metadata=(*model_metadata(model), *key))
        except grpc.aio.AioRpcError as exc:
            raise await self._why_failed(exc, has_begun=False) from exc
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            raise RequestCancelled("the client was closed while the request ran") from None
        finally:
            self._channel.give_back(line)
        return decode_embeddings(response)

    def _span(self, traceparent: str | None, model: str, request_id: str) -> ClientSpan | NoSpan:
        if self._tracer is None or traceparent is not None:
            return NoSpan(traceparent)
        return ClientSpan(self._tracer, model=model, request_id=request_id, address=self._url)

    async def _why_failed(self, exc: grpc.aio.AioRpcError, *, has_begun: bool) -> ServingError:
        if exc.code() is grpc.StatusCode.CANCELLED:  # by a server that stops; our own is asyncio's
            lost = f"the connection to {self._url} was lost: the server ended the call"
            return Unavailable(lost, reason="connection_lost")
        denied = None if has_begun else await self._why_denied(exc)
        return denied or parse_error(f"[{exc.code()}] {exc.details()}", address=self._url)

    async def _why_denied(self, exc: grpc.aio.AioRpcError) -> AccessDenied | None:
        """Return why nothing was asked at all, if the reason is in certificates or the key; it may try a handshake."""
        return await asyncio.to_thread(refused_call, f"[{exc.code()}] {exc.details()}", self._url, self._access)

    def _why_cancelled(self, silence: SilenceWatch) -> ServingError:
        if silence.is_over:
            text = f"nothing came from {self._url} for {silence.limit_s:g} s; the engine may be dead or overloaded"
            return Unavailable(text, reason="silent")
        return RequestCancelled("the client was closed while the request ran")


def _is_task_cancelled() -> bool:
    """Return whether the task was cancelled; grpc.aio raises CancelledError for a cancelled call alike."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _in_step(
    stream: Callable[Concatenate[AsyncTritonClient, P], AsyncGenerator[GenerateChunk, None]],
) -> "Callable[Concatenate[TritonClient, P], Generator[GenerateChunk, None, None]]":
    """Return a stream method for code that waits, made of an asynchronous one."""

    @functools.wraps(stream)
    def generate(self: "TritonClient", /, *args: P.args, **kwargs: P.kwargs) -> Generator[GenerateChunk, None, None]:
        chunks = stream(self._client, *args, **kwargs)
        try:
            while (chunk := self._loop.run(_next(chunks))) is not None:
                yield chunk
        finally:
            if not self._is_closed:  # which ended it, where its caller left the loop early
                self._loop.run(chunks.aclose())

    return generate


async def _next(chunks: AsyncGenerator[GenerateChunk, None]) -> GenerateChunk | None:
    return await anext(chunks, None)


class TritonClient:
    """A client for scripts: the core of `AsyncTritonClient` on an event loop of its own, for one thread at a time.

    Ctrl-C while it waits cancels the request on the server and raises KeyboardInterrupt. Leave a loop early under
    `contextlib.closing`.
    """

    def __init__(
        self, url: str = "localhost:8001", *, access: Access | None = None, tracer: "Tracer | None" = None
    ) -> None:
        grpc_endpoint(url)  # what is wrong with it is told before there is a loop to close
        self._loop = SteppedLoop()
        self._is_closed = False
        self._client = self._loop.run(_connect(url, access, tracer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and the event loop; a stream that was left early ends."""
        self._is_closed = True
        self._loop.run(self._client.close())
        self._loop.close()

    def is_ready(self, *, model: str = "ensemble", model_version: str = "", timeout_s: float = 5.0) -> bool:
        """Return whether the server and the model take requests; False where nothing answers, too."""
        return self._loop.run(self._client.is_ready(model=model, model_version=model_version, timeout_s=timeout_s))

    def embed(self, request: EmbeddingRequest, *, model: str, timeout_s: float | None = None) -> Embeddings:
        """Return the vectors of texts, or of token ids, as `AsyncTritonClient.embed`."""
        return self._loop.run(self._client.embed(request, model=model, timeout_s=timeout_s))

    generate = _in_step(AsyncTritonClient.generate)


async def _connect(url: str, access: Access | None, tracer: "Tracer | None") -> AsyncTritonClient:
    return AsyncTritonClient(url, access=access, tracer=tracer)
