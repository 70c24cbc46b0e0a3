# SPDX-License-Identifier: Apache-2.0
"""The frontend of HTTP: requests of a model are read here and go on to Triton over gRPC.

So no body reaches the parser of Triton's HTTP server, and the frontend sees a client leave whatever it requested. All
other requests are passed on to Triton's HTTP without a query and, unless they carry the control key, without a body.
"""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import msgspec
from aiohttp import web
from tritonclient.grpc import service_pb2_grpc

from serving.frontend.common.departures import Departures
from serving.frontend.common.messages import BACKLOG, Setting, Upstream
from serving.frontend.common.served_models import ServedModels
from serving.frontend.http import generate_json, infer_json
from serving.frontend.http.histograms import with_histograms
from serving.frontend.http.http_answers import answer_to, answer_to_status, error_answer, error_body, status_of
from serving.frontend.http.triton_calls import TritonCalls
from serving.kv_events.event_hub import EventHub
from serving.kv_events.http_events import PATH, EventsOverHttp
from serving.requests.request_parameters import KNOWN_PARAMETERS, TRACEPARENT, TRACESTATE
from trireme.base.byte_budget import ByteBudget
from trireme.base.errors import RequestError, ServingError, Unavailable
from trireme.base.http_servers.http_body import body_of
from trireme.base.http_servers.http_connections import PatientServer

_MODEL = re.compile(r"/v2/models/([^/]{1,255})(?:/versions/([0-9]{1,19}))?/(infer|generate|generate_stream)")
_READ = re.compile(
    r"/v2(?:/health/(?:live|ready)|/logging|/trace/setting|/models/stats"
    r"|/models/[^/]{1,255}(?:/versions/[0-9]{1,19})?(?:/(?:ready|config|stats|trace/setting))?"
    r"|/(?:system|cuda)sharedmemory(?:/region/[^/]{1,255})?/status)?"
)
_CONTROL = re.compile(
    r"/v2/(?:repository/(?:[^/]{1,255}/)?(?:index|models/[^/]{1,255}/(?:load|unload))|logging"
    r"|(?:models/[^/]{1,255}/)?trace/setting)"
)
_SHARED_MEMORY = re.compile(r"/v2/(?:system|cuda)sharedmemory(?:/region/[^/]{1,255})?/(?:register|unregister)")
_WRITE_S = 60.0  # a client that takes nothing for so long has gone
_PASS_ON_S = 600.0  # loading a model takes its time
_SMALL_BODY = 65_536
_MAX_MESSAGE = 2**31 - 1
_TOO_MANY = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class HttpFrontend:
    """The ports of the API and the metrics of one server."""

    def __init__(self, departures: Departures, budget: ByteBudget, setting: Setting) -> None:
        self._calls = TritonCalls(departures)
        self._budget = budget
        self._max_bytes = setting.max_request_bytes
        self._servers = {
            "http": PatientServer(self.answer, setting.max_connections),
            "metrics": PatientServer(self.answer_metrics, setting.max_connections),
        }
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._models: ServedModels | None = None
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_PASS_ON_S, connect=5),
            connector=aiohttp.TCPConnector(limit=64, force_close=True),
        )
        self._upstream: Upstream | None = None
        self._refusal: Unavailable | None = None
        self._kv_events = EventHub()
        self._subscribers = EventsOverHttp(self._kv_events)

    async def listen(self, setting: Setting) -> None:
        """Take connections from now on."""
        for name, descriptor in setting.listeners.items():
            listener = socket.socket(fileno=descriptor)
            create = asyncio.get_running_loop().create_server
            await create(self._servers[name].connection, sock=listener, backlog=BACKLOG)

    def refuse(self, because: Unavailable) -> None:
        """Refuse every request of a model from now on."""
        self._refusal = because

    def tick(self) -> None:
        """End connections that take too long."""
        for server in self._servers.values():
            server.tick(time.monotonic())

    async def serve(self, upstream: Upstream | None) -> None:
        """Send requests to another Triton from now on. Args: `upstream`: None: there is no Triton now."""
        channel, self._channel = self._channel, None
        self._upstream = upstream
        self._models = self._stub = None
        if upstream is not None:
            options = [
                ("grpc.max_receive_message_length", _MAX_MESSAGE),
                ("grpc.max_send_message_length", _MAX_MESSAGE),
                ("grpc.use_local_subchannel_pool", 1),
            ]
            self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{upstream.grpc_port}", options=options)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
            self._models = ServedModels(self._stub)
            await self._kv_events.listen(Path(upstream.run_dir))
        if channel is not None:
            await channel.close()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request of the API's port."""
        try:
            return await self._route(request)
        except ServingError as exc:
            return answer_to(exc)
        except grpc.aio.AioRpcError as exc:
            return answer_to_status(exc)
        except web.HTTPRequestEntityTooLarge:
            return self._too_large()
        except (aiohttp.ClientError, TimeoutError) as exc:
            return answer_to(_silent(exc))

    async def answer_metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request of the metrics port."""
        if request.method == "GET" and request.path == PATH:
            return await self._subscribers.answer(request)
        if request.method not in {"GET", "HEAD"} or request.path != "/metrics":
            return error_answer(404, "Not Found")
        try:
            answer = await self._pass_on(request, None, is_metrics=True)
        except ServingError as exc:
            return answer_to(exc)
        except (aiohttp.ClientError, TimeoutError) as exc:
            return answer_to(_silent(exc))
        if answer.status == HTTPStatus.OK and isinstance(answer.body, bytes):
            answer.body = with_histograms(answer.body.decode()).encode()
        return answer

    async def close(self) -> None:
        """Close the connections to Triton."""
        await self.serve(None)
        await self._kv_events.close()
        await self._session.close()

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if found := _MODEL.fullmatch(path):
            if request.method != "POST":
                return error_answer(405, "Method Not Allowed")
            name, version, kind = found.groups(default="")
            return await self._infer(request, name, version, kind)
        if request.method in {"GET", "HEAD"} and _READ.fullmatch(path):
            return await self._pass_on(request, None)
        if request.method == "POST" and (_CONTROL.fullmatch(path) or _SHARED_MEMORY.fullmatch(path)):
            return await self._control(request)
        return error_answer(404, "Not Found")

    async def _infer(self, request: web.BaseRequest, name: str, version: str, kind: str) -> web.StreamResponse:
        if self._refusal is not None:
            raise self._refusal
        is_ours = name in self._triton().own_models
        models, stub = self._models, self._stub
        assert models is not None
        model = await models.get(name, version)
        async with self._body(request, self._max_bytes) as body:
            if kind == "infer":
                asked = infer_json.to_request(body, _header_length(request), name, version, model)
            else:
                known = (*KNOWN_PARAMETERS, *self._triton().sticky_parameters) if is_ours else None
                message = generate_json.to_request(_parse(body), name, version, model, known_parameters=known)
        metadata = _forwarded(request, self._triton().sticky_headers)
        if kind == "infer":
            response = await self._calls.once(stub.ModelInfer, asked.message, metadata, is_told=is_ours)
            return _infer_answer(request, response, asked)
        async with self._calls.stream(stub.ModelStreamInfer, message, metadata, is_told=is_ours) as responses:
            return await (_generate(responses) if kind == "generate" else _generate_stream(request, responses))

    def _body(self, request: web.BaseRequest, max_bytes: int) -> AbstractAsyncContextManager[bytes]:
        return body_of(request, max_bytes=max_bytes, budget=self._budget)

    async def _control(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pass on a change of the server with the control key, or of shared memory where clients may use it."""
        upstream = self._triton()
        is_shared = _SHARED_MEMORY.fullmatch(request.path) is not None and upstream.has_open_shared_memory
        if not is_shared and request.headers.get(upstream.key_header) != upstream.key:
            return error_answer(403, f"This API is restricted, expecting header '{upstream.key_header}'")
        async with self._body(request, _SMALL_BODY if is_shared else self._max_bytes) as body:
            return await self._pass_on(request, msgspec.json.encode(_parse(body)) if body else b"")

    async def _pass_on(self, request: web.BaseRequest, body: bytes | None, *, is_metrics: bool = False) -> web.Response:
        upstream = self._triton()
        port = upstream.metrics_port if is_metrics else upstream.http_port
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key := request.headers.get(upstream.key_header):
            headers[upstream.key_header] = key
        if load := request.headers.get("endpoint-load-metrics-format"):
            headers["endpoint-load-metrics-format"] = load
        url = f"http://127.0.0.1:{port}{request.rel_url.raw_path}"
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: answer.headers[name] for name in ("Content-Type",) if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    def _triton(self) -> Upstream:
        if self._upstream is None:
            raise Unavailable("the server is being started; try again", reason="starting")
        return self._upstream

    def _too_large(self) -> web.Response:
        answer = answer_to(
            RequestError(f"the body is longer than {self._max_bytes} bytes (triton.max_request_bytes)", field="body")
        )
        answer.set_status(413)
        answer.force_close()
        return answer


async def _generate(responses: AsyncIterator[Any]) -> web.StreamResponse:
    """Return the one response of a call."""
    found = []
    async for response in responses:
        if response.error_message:
            return error_answer(status_of(response.error_message), response.error_message)
        found.append(response.infer_response)
        if len(found) > 1:
            break
    if len(found) != 1:
        return error_answer(400, _TOO_MANY)
    return web.Response(body=msgspec.json.encode(generate_json.to_json(found[0])), content_type="application/json")


async def _generate_stream(request: web.BaseRequest, responses: AsyncIterator[Any]) -> web.StreamResponse:
    """Send each response of a call as an event; the HTTP status is that of the first response."""
    answer = None
    async for response in responses:
        if response.error_message:
            status, body = status_of(response.error_message), error_body(response.error_message)
        else:
            status, body = 200, msgspec.json.encode(generate_json.to_json(response.infer_response))
        if answer is None:
            answer = web.StreamResponse(status=status, headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await answer.prepare(request)
        try:
            async with asyncio.timeout(_WRITE_S):
                await answer.write(b"data: " + body + b"\n\n")
        except TimeoutError:  # another answer would stand in the middle of this one
            if request.transport is not None:
                request.transport.abort()
            return answer
    return answer or web.Response(headers={"Content-Type": "text/event-stream; charset=utf-8"})


def _infer_answer(request: web.BaseRequest, response: Any, asked: infer_json.Asked) -> web.Response:
    body, header_length = infer_json.to_body(response, asked)
    headers = {"Content-Type": "application/json"}
    if header_length is not None:
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(header_length)}
    answer = web.Response(body=body, headers=headers)
    if "Accept-Encoding" in request.headers:
        answer.enable_compression()
    return answer


def _forwarded(request: web.BaseRequest, sticky: Sequence[str]) -> list[tuple[str, str]]:
    """Return the headers that reach the models, where the deployment has traces or keeps requests on releases."""
    given = ((key, request.headers.get(key, "")) for key in (TRACEPARENT, TRACESTATE, *sticky))
    return [(key, value) for key, value in given if _is_printable(value)]


def _silent(exc: Exception) -> Unavailable:
    return Unavailable(f"the server does not answer ({exc or 'in time'}); try again", reason="no_answer")


def _header_length(request: web.BaseRequest) -> int | None:
    given = request.headers.get("Inference-Header-Content-Length")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 19):
        raise RequestError(
            f"Inference-Header-Content-Length must be a number, got {given[:40]!r}",
            field="Inference-Header-Content-Length",
        )
    return int(given)


def _parse(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise RequestError(f"the body is no JSON: {exc}", field="body") from exc


def _is_printable(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable() and len(value) <= 1_024
