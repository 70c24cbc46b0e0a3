# SPDX-License-Identifier: Apache-2.0
"""Responses over a WebSocket, as OpenAI has them: each message of the caller asks for one, its events come back.

A connection remembers its last response alone: `previous_response_id` may name that one, and nobody else can.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from clients.openai_api.api_error import ApiError, body_of_json
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.response_events import Event, ResponseEvents
from clients.openai_api.response_items import messages_of_output
from gateway.access.caller import Caller, Callers
from gateway.answer import broken
from gateway.answering import Answering, asked_by
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.gateway")

_BEAT_S = 30.0  # a caller that answers no ping has gone
_MAX_WAITING = 8  # messages of a caller; more stay in the connection
_CREATE = "response.create"
_NO_LAST = "previous_response_id must be that of the last response of this connection; send the whole conversation"


class ResponseSockets:
    """The WebSockets of one gateway.

    Args:
        answering: asks the models.
        callers: who a caller is; asked anew for each message, for a key may be revoked while its connection stays.
        max_bytes: of a message of the caller.
    """

    def __init__(self, answering: Answering, callers: Callers, *, max_bytes: int) -> None:
        self._answering, self._callers, self._max_bytes = answering, callers, max_bytes
        self._open: set[web.WebSocketResponse] = set()

    async def converse(self, request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Answer the messages of a connection, one after the other, until either side ends it.

        Raises:
            ApiError: the request asks for no WebSocket.
        """
        socket = web.WebSocketResponse(heartbeat=_BEAT_S, max_msg_size=self._max_bytes)
        if not socket.can_prepare(request):
            raise ApiError("GET is for WebSockets here; POST the body, or ask for an upgrade",
                           code="method_not_allowed", status=405)  # fmt: skip
        await socket.prepare(request)
        self._open.add(socket)
        waiting = asyncio.Queue[bytes](_MAX_WAITING)
        reading = asyncio.create_task(_read(socket, waiting))
        find = partial(self._callers.find, request.headers.get("Authorization", ""))
        answering = asyncio.create_task(_Conversation(self._answering, find).answer_all(waiting, socket))
        try:  # whichever ends first: the caller, who is heard while an answer is written, too
            await asyncio.wait([reading, answering], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(socket)
            for task in (reading, answering):
                task.cancel()
            for end in await asyncio.gather(reading, answering, return_exceptions=True):
                if isinstance(end, Exception):
                    _log.error("a conversation failed", exc_info=end)
        return socket

    async def close(self) -> None:
        """Tell every caller that the gateway ends."""
        await asyncio.gather(*(each.close(code=1001, message=b"the gateway ends") for each in self._open))


class _Conversation:
    """The responses of one connection, and what the next one may go on from."""

    def __init__(self, answering: Answering, find_caller: Callable[[], Awaitable[Caller]]) -> None:
        self._answering, self._find_caller = answering, find_caller
        self._last_id = ""
        self._messages: list[dict[str, object]] = []  # of the last response and all before it

    async def answer_all(self, waiting: asyncio.Queue[bytes], socket: web.WebSocketResponse) -> None:
        """Answer what waits, one after the other, until the connection is lost."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self._answer(await waiting.get(), socket)

    async def _answer(self, data: bytes, socket: web.WebSocketResponse) -> None:
        """Send the events of one response, or an error; the connection stays."""
        try:
            caller = await self._find_caller()
            await self._respond(self._asked(data), caller, socket)
        except ApiError as exc:
            self._answering.metrics.note_error(exc.code)
            await socket.send_str(_error(exc))

    def _asked(self, data: bytes) -> Asked:
        body = body_of_json(data)
        if body.get("type") != _CREATE:
            raise ApiError(f"type must be {_CREATE!r}", code="invalid_value", param="type")
        fields: Mapping[str, Any] = {name: value for name, value in body.items() if name != "type"}
        previous = fields.get("previous_response_id")
        earlier: list[dict[str, object]] = []
        if previous is not None:
            if previous != self._last_id:
                raise ApiError(_NO_LAST, code="previous_response_not_found", param="previous_response_id")
            earlier = self._messages
        body = {**fields, "stream": True, "previous_response_id": None}
        return asked_by(Endpoint.RESPONSES, body, earlier=earlier)

    async def _respond(self, asked: Asked, caller: Caller, socket: web.WebSocketResponse) -> None:
        answer = self._answering.begin(asked, caller)
        events = ResponseEvents(asked, answer_id=answer.id, now_s=time.time(), model=answer.model)
        async with self._answering.running(answer, caller) as running:
            try:
                await _send(socket, events.begin())
                async with contextlib.aclosing(answer.pieces()) as pieces:
                    async for piece in pieces:
                        events.response["model"] = answer.answered_by
                        running.note(piece)
                        await _send(socket, events.piece(piece))
                running.end()
                await _send(socket, events.end(answer.usage))
            except ServingError as exc:
                error = broken(exc, asked)
                running.fail(error.code)
                running.end()
                self._answering.metrics.note_error(error.code)
                await _send(socket, events.error(error))
                return
        request = asked.requests[0]
        self._last_id = str(events.response["id"])
        self._messages = [*(request.messages or ()), *messages_of_output(events.response["output"])]


async def _read(socket: web.WebSocketResponse, waiting: asyncio.Queue[bytes]) -> None:
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await waiting.put(message.data.encode())


async def _send(socket: web.WebSocketResponse, events: list[Event]) -> None:
    for event in events:
        await socket.send_str(event.data.decode())


def _error(error: ApiError) -> str:
    """Return the event of an error that is no response's."""
    said = {"type": "error", "sequence_number": 0, "status": error.status, **error.body()}
    return msgspec.json.encode({**said, "code": error.code, "message": error.message, "param": error.param}).decode()
