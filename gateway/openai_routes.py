# SPDX-License-Identifier: Apache-2.0
"""The paths of OpenAI's API that answer with text, whole or as events: chats, text completions, responses."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
from aiohttp import web

from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.openai_api.answer_deltas import AnswerDeltas, Piece, Usage
from clients.openai_api.answers import answer_body
from clients.openai_api.api_error import ApiError, api_error, body_of_json
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.request_bodies import requests_of
from clients.openai_api.response_events import ResponseEvents, ResponseStream
from clients.openai_api.responses_body import response_request_of
from clients.openai_api.stream_events import StreamEvents
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from gateway.access.caller import Caller
from gateway.gateway_metrics import GatewayMetrics, RequestWatch
from gateway.generation import Chunks, Generation
from gateway.json_answers import json_answer
from gateway.served_models import ServedModel, ServedModels
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.gateway")

# OpenTelemetry has no name for responses: they are chats.
_OPERATIONS = {Endpoint.CHAT: "chat", Endpoint.COMPLETIONS: "text_completion", Endpoint.RESPONSES: "chat"}
_CLIENT_GONE = "client_gone"
_WRITE_S = 60.0  # a client that takes nothing for so long has gone
_EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would gather the events
}
_BASE = GenerateRequest(
    max_tokens=1,
    exclude_input_in_output=True,
    return_num_input_tokens=True,
    return_num_output_tokens=True,
    return_finish_reason=True,
)


class AnswerEvents(Protocol):
    """The server-sent events of one answer."""

    def begin(self) -> bytes:
        """Return what comes before the first piece."""

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece; none where the piece says nothing."""

    def end(self, usage: Usage) -> bytes:
        """Return what follows the last piece."""

    def error(self, error: ApiError) -> bytes:
        """Return the events with which a stream breaks off."""


class OpenAiRoutes:
    """The handlers of OpenAI's paths.

    Args:
        models: that callers may name.
        generation: asks the server.
        metrics: of the gateway.
    """

    def __init__(self, models: ServedModels, generation: Generation, metrics: GatewayMetrics) -> None:
        self._models, self._generation, self._metrics = models, generation, metrics

    async def generate(self, request: web.BaseRequest, body: bytes, caller: Caller) -> web.StreamResponse:
        """Answer a request for text.

        Raises:
            ApiError: the request is refused, or failed before its first byte.
        """
        asked = _asked(Endpoint(request.path), body)
        model = self._models.get(asked.model, caller)
        deltas = AnswerDeltas(asked, [model.reader(asked) for _ in range(asked.num_choices)])
        with self._watching(asked, model) as watch:
            async with contextlib.aclosing(self._generation.chunks(asked, model)) as chunks:
                if asked.is_streaming:
                    return await self._stream(request, _events(asked, model), deltas, chunks, watch)
                return await _whole(asked, model, deltas, chunks, watch)

    async def embed(self, _request: web.BaseRequest, body: bytes, caller: Caller) -> web.StreamResponse:
        """Refuse to make embeddings, by the name of the model that was asked for them.

        Raises:
            ApiError: always.
        """
        name = body_of_json(body).get("model")
        model = self._models.get(name if isinstance(name, str) else None, caller)
        raise ApiError(
            f"model {model.name!r} writes text, and makes no embeddings; ask a server of an embedding model",
            code="unsupported_model",
            param="model",
        )

    @contextmanager
    def _watching(self, asked: Asked, model: ServedModel) -> Iterator[RequestWatch]:
        """Watch a request, and make its failure one of the API."""
        with self._metrics.watching(_OPERATIONS[asked.endpoint], model.name) as watch:
            try:
                yield watch
            except ServingError as exc:
                error = api_error(exc, is_chat=asked.is_chat)
                watch.error = error.code
                raise error from exc
            except asyncio.CancelledError:
                watch.error = _CLIENT_GONE
                raise

    async def _stream(
        self,
        request: web.BaseRequest,
        events: AnswerEvents,
        deltas: AnswerDeltas,
        chunks: Chunks,
        watch: RequestWatch,
    ) -> web.StreamResponse:
        """Send each chunk as events; what fails before the first one has an HTTP status of its own."""
        answer = web.StreamResponse(headers=_EVENTS)
        try:
            async for index, chunk in chunks:
                data = events.piece(deltas.of(index, chunk)) if answer.prepared else b""
                if not answer.prepared:
                    data = events.begin() + events.piece(deltas.of(index, chunk))
                    await answer.prepare(request)
                watch.usage = deltas.usage
                if data:
                    watch.note_text()
                    await _write(answer, data)
            await answer.prepare(request)
            await _write(answer, events.end(deltas.usage))
        except (ConnectionError, TimeoutError):
            watch.error = _CLIENT_GONE
            _hang_up(request)
        except Exception as exc:  # an answer that has begun cannot become another one
            if not answer.prepared:
                raise
            error = self._breaking(exc, watch)
            await _write(answer, events.error(error))
        return answer

    def _breaking(self, cause: Exception, watch: RequestWatch) -> ApiError:
        """Return the error with which a stream breaks off."""
        if isinstance(cause, ServingError):
            error = api_error(cause)
        else:
            _log.error("a stream failed", exc_info=cause)
            error = ApiError("the gateway failed; the reason is in its log", code="server_error", status=500)
        watch.error = error.code
        self._metrics.note_error(error.code)
        return error


async def _whole(
    asked: Asked, model: ServedModel, deltas: AnswerDeltas, chunks: Chunks, watch: RequestWatch
) -> web.StreamResponse:
    received: list[list[GenerateChunk]] = [[] for _ in asked.requests]
    async for index, chunk in chunks:
        received[index].append(chunk)
    if asked.endpoint is not Endpoint.RESPONSES:
        body, watch.usage = answer_body(
            asked, received, deltas, answer_id=secrets.token_hex(12), now_s=time.time(), model=model.name
        )
        return json_answer(body)
    response = ResponseEvents(asked, answer_id=secrets.token_hex(12), now_s=time.time(), model=model.name)
    for chunk in received[0]:
        response.piece(deltas.of(0, chunk))
    watch.usage = deltas.usage
    response.end(deltas.usage)
    return json_answer(response.response)


def _asked(endpoint: Endpoint, data: bytes) -> Asked:
    """Return what a body asks for, with requests that stream as the answer does."""
    body = body_of_json(data)
    if endpoint is Endpoint.RESPONSES:
        asked = response_request_of(body, base=_BASE, chat_tokens=AS_MANY_AS_FIT)
    else:
        asked = requests_of(endpoint, body, base=_BASE, chat_tokens=AS_MANY_AS_FIT)
    requests = tuple(msgspec.structs.replace(request, stream=asked.is_streaming) for request in asked.requests)
    return msgspec.structs.replace(asked, requests=requests)


def _events(asked: Asked, model: ServedModel) -> AnswerEvents:
    make = ResponseStream if asked.endpoint is Endpoint.RESPONSES else StreamEvents
    return make(asked, answer_id=secrets.token_hex(12), now_s=time.time(), model=model.name)


async def _write(answer: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(_WRITE_S):
        await answer.write(data)


def _hang_up(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
