# SPDX-License-Identifier: Apache-2.0
"""The streams of Locust's users: Triton's over gRPC, and an OpenAI-compatible server's; both by gevent.

Imported by the locustfile after gRPC was told of gevent.
"""

import ssl
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPException
from urllib.parse import urlsplit

import gevent
import grpc
from geventhttpclient import HTTPClient
from tritonclient.grpc import service_pb2_grpc

from clients.access import grpc_endpoint, with_port
from clients.access_errors import refused_call, refused_connection
from clients.error_tokens import parse_error
from clients.grpc_channel import open_channel
from clients.infer_messages import (
    GenerateChunk,
    GenerateRequest,
    decode_chunk,
    encode_request,
    is_final_response,
    model_metadata,
)
from clients.load.openai.openai_errors import http_error
from clients.load.openai.openai_stream import (
    OK,
    CompletionStream,
    completion_body,
    completions_url,
    headers,
    is_openai_url,
    with_api_key,
)
from clients.load.tools.locust_messages import LocustLoad
from clients.tls_context import tls_context
from trireme.base.errors import RequestTimeout, Unavailable

_PATIENCE_S = 600.0  # with an HTTP server that says nothing

Clock = Callable[[], int]


class TritonStreams:
    """Triton's gRPC streams, on a connection of its own."""

    def __init__(self, locust_load: LocustLoad, now_ns: Clock) -> None:
        self._load = locust_load.load
        self._now_ns = now_ns
        self._channel = open_channel(
            locust_load.load.url, locust_load.load.access, [("grpc.use_local_subchannel_pool", 1)]
        )
        self._target, self._access = grpc_endpoint(locust_load.load.url, locust_load.load.access)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def generate(self, request: GenerateRequest) -> Iterator[GenerateChunk]:
        """Yield the chunks of a request as they come.

        Raises:
            ServingError: the request ended badly.
        """
        load = self._load
        message = encode_request(request, model=load.model, model_version="", request_id=uuid.uuid4().hex)
        try:
            metadata = (*model_metadata(load.model), *self._access.headers())
            for response in self._stub.ModelStreamInfer(iter([message]), timeout=load.timeout_s, metadata=metadata):
                at_ns = self._now_ns()
                if response.error_message:
                    raise parse_error(response.error_message, address=load.url)
                chunk = decode_chunk(response, is_final=is_final_response(response), received_ns=at_ns)
                if chunk is not None:
                    yield chunk
        except grpc.RpcError as exc:
            said = f"[{exc.code()}] {exc.details()}"
            raise refused_call(said, self._target, self._access) or parse_error(said, address=load.url) from exc


class OpenAIStreams:
    """The server-sent events of `/completions`, on a connection of its own."""

    def __init__(self, locust_load: LocustLoad, now_ns: Clock) -> None:
        self._locust_load = locust_load
        self._now_ns = now_ns
        self._access = with_api_key(locust_load.load.url, locust_load.load.access)
        self._http = self._connection()
        self._path = urlsplit(completions_url(locust_load.load.url)).path

    def _connection(self) -> HTTPClient:
        patience_s = max(_PATIENCE_S, self._locust_load.load.timeout_s or 0.0)  # with each read, not with the request
        context = {"ssl_context_factory": self._context} if self._access.uses_tls else {}
        return HTTPClient.from_url(self._locust_load.load.url, network_timeout=patience_s, **context)

    def _context(self, **_: object) -> ssl.SSLContext:
        """Return the context for `access`; the client's further list of authorities is not used."""
        return tls_context(self._access)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def generate(self, request: GenerateRequest) -> Iterator[GenerateChunk]:
        """Yield the chunks of a request, each when the one behind it came.

        Raises:
            ServingError: the request ended badly.
        """
        locust_load, stream = self._locust_load, CompletionStream()
        body = completion_body(request, model=locust_load.load.model, counts_each=locust_load.counts_each)
        limit = gevent.Timeout.start_new(locust_load.load.timeout_s)
        try:
            response = self._http.post(self._path, body, headers(self._access))
            if response.status_code != OK:
                retry_after = str(response.get("Retry-After", ""))
                raise http_error(response.status_code, response.read(), retry_after, access=self._access)
            while line := response.readline(b"\n"):
                yield from stream.feed(line, self._now_ns())
        except gevent.Timeout as exc:
            if exc is not limit:
                raise
            self.close()  # a request that was being sent would keep its place on it
            self._http = self._connection()
            yield from stream.release()
            raise RequestTimeout("the request was not done within its timeout") from exc
        except (OSError, HTTPException) as exc:
            yield from stream.release()
            if denied := refused_connection(str(exc), with_port(locust_load.load.url), self._access):
                raise denied from exc
            raise Unavailable(f"{locust_load.load.url}: {exc}", reason="connection_lost") from exc
        finally:
            limit.close()
        yield from stream.release()
        stream.check_end()


def open_streams(locust_load: LocustLoad, now_ns: Clock) -> TritonStreams | OpenAIStreams:
    """Return the streams of the server that a load is for."""
    return (OpenAIStreams if is_openai_url(locust_load.load.url) else TritonStreams)(locust_load, now_ns)
