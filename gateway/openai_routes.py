# SPDX-License-Identifier: Apache-2.0
"""The paths that answer with text, whole or as events: OpenAI's chats, completions, responses; Anthropic's messages."""

import asyncio
import contextlib
import logging
import time
from typing import Protocol

from aiohttp import web

from clients.anthropic_api.message_events import MessageEvents
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.answers import WholeAnswer
from clients.openai_api.api_error import ApiError, body_of_json
from clients.openai_api.asked import Endpoint
from clients.openai_api.response_events import ResponseEvents, ResponseStream
from clients.openai_api.stream_events import StreamEvents
from gateway.access.caller import Caller
from gateway.answer import Answer
from gateway.answering import Answering, asked_by
from gateway.json_answers import json_answer
from gateway.running_answer import CLIENT_GONE, RunningAnswer
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.gateway")

_WRITE_S = 60.0  # a client that takes nothing for so long has gone
_TAKEN_BYTES = 16_384  # what a connection holds for its client without making anybody wait, by asyncio and aiohttp
_EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would gather the events
}


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
    """The handlers of these paths. Args: `answering` asks the models."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def generate(self, request: web.BaseRequest, body: bytes, caller: Caller) -> web.StreamResponse:
        """Answer a request for text.

        Raises:
            ApiError: the request is refused, or failed before its first byte.
        """
        answer = self._answering.begin(asked_by(Endpoint(request.path), body_of_json(body)), caller)
        async with self._answering.running(answer, caller) as running:
            if answer.asked.is_streaming:
                return await self._stream(request, answer, running)
            found = await _whole(answer)
        return json_answer(found, headers=running.headers())  # with what the answer has taken

    async def count_tokens(self, _request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Refuse to count the tokens of a message that is not asked.

        Raises:
            ApiError: always.
        """
        raise ApiError(
            "tokens are not counted here before a message is asked; usage of its answer tells them",
            code="not_found",
            status=404,
        )

    async def _stream(self, request: web.BaseRequest, answer: Answer, running: RunningAnswer) -> web.StreamResponse:
        """Send each chunk as events; what fails before the first one has an HTTP status of its own."""
        events: AnswerEvents | None = None
        sent = web.StreamResponse(headers=_EVENTS)
        try:
            async with contextlib.aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    running.note(piece)
                    begin = b""
                    if events is None:  # it is known now which model answers
                        events = _events(answer)
                        begin = events.begin()
                        sent.headers.update(running.headers())
                        await sent.prepare(request)
                    if data := begin + events.piece(piece):
                        await _write(request, sent, data)
            assert events is not None, "an answer without a piece has failed"
            running.end()
            await _write(request, sent, events.end(answer.usage))
        except (ConnectionError, TimeoutError):
            running.fail(CLIENT_GONE)
            _hang_up(request)
        except Exception as exc:  # an answer that has begun cannot become another one
            if events is None:
                raise
            if not isinstance(exc, ServingError):
                _log.exception("a stream failed")
            error = answer.broken(exc)
            running.fail(error.code)
            running.end()
            self._answering.metrics.note_error(error.code)
            await _write(request, sent, events.error(error))
        return sent


async def _whole(answer: Answer) -> dict[str, object]:
    now_s, endpoint = time.time(), answer.asked.endpoint
    async with contextlib.aclosing(answer.pieces()) as pieces:
        received = [piece async for piece in pieces]
    if endpoint is Endpoint.MESSAGES:
        message = _message(answer)
        for piece in received:
            message.piece(piece)
        message.end(answer.usage)
        return message.message
    if endpoint is Endpoint.RESPONSES:
        response = ResponseEvents(answer.asked, answer_id=answer.id, now_s=now_s, model=answer.answered_by)
        for piece in received:
            response.piece(piece)
        response.end(answer.usage)
        return response.response
    whole = WholeAnswer(answer.asked)
    for piece in received:
        whole.add(piece)
    return whole.body(answer.usage, answer_id=answer.id, now_s=now_s, model=answer.answered_by)


def _events(answer: Answer) -> AnswerEvents:
    if answer.asked.endpoint is Endpoint.MESSAGES:
        return _message(answer)
    make = ResponseStream if answer.asked.endpoint is Endpoint.RESPONSES else StreamEvents
    return make(answer.asked, answer_id=answer.id, now_s=time.time(), model=answer.answered_by)


def _message(answer: Answer) -> MessageEvents:
    return MessageEvents(answer.asked, answer_id=answer.id, model=answer.answered_by, usage=answer.usage)


async def _write(request: web.BaseRequest, sent: web.StreamResponse, data: bytes) -> None:
    transport = request.transport
    if transport is not None and transport.get_write_buffer_size() + len(data) < _TAKEN_BYTES:
        await sent.write(data)  # which does not wait; `asyncio.timeout` would cost 7 us
        return
    async with asyncio.timeout(_WRITE_S):
        await sent.write(data)


def _hang_up(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
