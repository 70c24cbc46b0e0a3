# SPDX-License-Identifier: Apache-2.0
"""The paths of OpenAI's API: chat and text completions, whole or as a stream of events, and the list of models."""

import asyncio
import contextlib
import logging
import secrets
import time

import msgspec
from aiohttp import web

from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.openai_api.answers import answer_body
from clients.openai_api.api_error import ApiError, api_error, body_of_json
from clients.openai_api.request_bodies import CHAT, COMPLETIONS, Asked, requests_of
from clients.openai_api.stream_events import StreamEvents
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from gateway.access.caller import Caller
from gateway.gateway_metrics import GatewayMetrics, RequestWatch
from gateway.generation import Chunks, Generation
from gateway.json_answers import json_answer
from gateway.served_models import ServedModel, ServedModels
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.gateway")

_OPERATIONS = {CHAT: "chat", COMPLETIONS: "text_completion"}
_CLIENT_GONE = "client_gone"
_WRITE_S = 60.0  # a client that takes nothing for so long has gone
_EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would gather the events
}


class OpenAiRoutes:
    """The handlers of OpenAI's paths.

    Args:
        models: that callers may name.
        generation: asks the server.
        metrics: of the gateway.
    """

    def __init__(self, models: ServedModels, generation: Generation, metrics: GatewayMetrics) -> None:
        self._models, self._generation, self._metrics = models, generation, metrics
        self._begun_s = int(time.time())
        self._base = GenerateRequest(
            max_tokens=1,
            exclude_input_in_output=True,
            return_num_input_tokens=True,
            return_num_output_tokens=True,
            return_finish_reason=True,
        )

    async def generate(self, request: web.BaseRequest, body: bytes, caller: Caller) -> web.StreamResponse:
        """Answer a request for text.

        Raises:
            ApiError: the request is refused, or failed before its first byte.
        """
        asked = requests_of(request.path, body_of_json(body), base=self._base, chat_tokens=AS_MANY_AS_FIT)
        model = self._models.get(asked.model, caller)
        asked = _streaming(asked)
        with self._metrics.watching(_OPERATIONS[request.path], model.name) as watch:
            try:
                async with contextlib.aclosing(self._generation.chunks(asked, model)) as chunks:
                    answer = self._stream if asked.is_streaming else self._whole
                    return await answer(request, asked, model, chunks, watch)
            except ServingError as exc:
                watch.error = api_error(exc).code
                raise
            except asyncio.CancelledError:
                watch.error = _CLIENT_GONE
                raise

    async def list_models(self, _request: web.BaseRequest, _body: bytes, caller: Caller) -> web.StreamResponse:
        """Return the list of the models that the caller may use."""
        models = self._models.allowed(caller)
        return json_answer({"object": "list", "data": [self._described(model) for model in models]})

    async def describe_model(self, request: web.BaseRequest, _body: bytes, caller: Caller) -> web.StreamResponse:
        """Return one model.

        Raises:
            ApiError: there is no such model, or the caller may not use it.
        """
        return json_answer(self._described(self._models.get(request.path.rpartition("/")[2], caller)))

    def _described(self, model: ServedModel) -> dict[str, object]:
        limit = {} if model.max_seq_len is None else {"max_model_len": model.max_seq_len}
        return {"id": model.name, "object": "model", "created": self._begun_s, "owned_by": "trireme", **limit}

    async def _whole(
        self, _request: web.BaseRequest, asked: Asked, model: ServedModel, chunks: Chunks, watch: RequestWatch
    ) -> web.StreamResponse:
        received: list[list[GenerateChunk]] = [[] for _ in asked.requests]
        async for index, chunk in chunks:
            received[index].append(chunk)
        body, watch.usage = answer_body(
            asked, received, answer_id=secrets.token_hex(12), now_s=time.time(), model=model.name
        )
        return json_answer(body)

    async def _stream(
        self, request: web.BaseRequest, asked: Asked, model: ServedModel, chunks: Chunks, watch: RequestWatch
    ) -> web.StreamResponse:
        """Send each chunk as events; what fails before the first one has an HTTP status of its own."""
        events = StreamEvents(asked, answer_id=secrets.token_hex(12), now_s=time.time(), model=model.name)
        answer = web.StreamResponse(headers=_EVENTS)
        try:
            async for index, chunk in chunks:
                if data := events.events(index, chunk):
                    if not answer.prepared:
                        await answer.prepare(request)
                    watch.note_text()
                    await _write(answer, data)
            await answer.prepare(request)
            await _write(answer, events.end())
        except (ConnectionError, TimeoutError):
            watch.error = _CLIENT_GONE
            _hang_up(request)
        except Exception as exc:  # an answer that has begun cannot become another one
            if not answer.prepared:
                raise
            await self._break_off(answer, exc, watch)
        finally:
            watch.usage = events.usage
        return answer

    async def _break_off(self, answer: web.StreamResponse, cause: Exception, watch: RequestWatch) -> None:
        if isinstance(cause, ServingError):
            error = api_error(cause)
        else:
            _log.error("a stream failed", exc_info=cause)
            error = ApiError("the gateway failed; the reason is in its log", code="server_error", status=500)
        watch.error = error.code
        self._metrics.note_error(error.code)
        await _write(answer, StreamEvents.error(error))


def _streaming(asked: Asked) -> Asked:
    """Return what is asked with requests that stream as the answer does."""
    requests = tuple(msgspec.structs.replace(request, stream=asked.is_streaming) for request in asked.requests)
    return msgspec.structs.replace(asked, requests=requests)


async def _write(answer: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(_WRITE_S):
        await answer.write(data)


def _hang_up(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
