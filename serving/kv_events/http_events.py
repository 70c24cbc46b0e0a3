# SPDX-License-Identifier: Apache-2.0
"""The KV events of a server over HTTP: server-sent events, numbered, that begin with all that is held.

``GET /kv_events`` on the metrics port; with ``?prefixes=true`` the beginnings of prompts alone, for gateways. A
subscriber that takes too little is told all anew, as a snapshot, in place of what it has missed.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from serving.engines.seam.kv_events import AllBlocksCleared
from serving.kv_events.event_hub import EventHub, ToldEngine
from serving.kv_events.messages import Batch, PrefixesRemoved, PrefixesStored, ToldEvent
from serving.kv_events.wire_events import json_event

PATH = "/kv_events"
_ALIVE_S = 5.0
_WRITE_S = 60.0  # a subscriber that takes nothing for so long has gone
_MAX_WAITING = 2048  # batches
_MAX_SUBSCRIBERS = 64


class EventsOverHttp:
    """The subscribers over HTTP."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self._num_subscribers = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a subscriber, until it goes."""
        if self._num_subscribers == _MAX_SUBSCRIBERS:
            return web.Response(
                status=503, text=f"there are {_MAX_SUBSCRIBERS} subscribers of KV events already; try again later\n"
            )
        asked = request.query.get("prefixes", "false")
        if asked not in ("true", "false"):
            return web.Response(status=400, text=f"prefixes must be true or false, got {asked!r}\n")
        answer = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
        )
        await answer.prepare(request)
        stream = _Stream(self._hub, are_prefixes=asked == "true")
        self._num_subscribers += 1
        self._hub.subscribe(stream)
        try:
            while True:
                async with asyncio.timeout(_WRITE_S):
                    await answer.write(await stream.next())
        except ConnectionError:  # it has gone
            return answer
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return answer
        finally:
            self._hub.leave(stream)
            self._num_subscribers -= 1


class _Stream:
    """The events that one subscriber has not taken yet."""

    def __init__(self, hub: EventHub, *, are_prefixes: bool) -> None:
        self._hub, self._are_prefixes = hub, are_prefixes
        self._waiting: deque[tuple[ToldEngine, Batch]] = deque()
        self._has_news = asyncio.Event()
        self._is_behind = True  # a snapshot comes first
        self._number = 0

    def tell(self, engine: ToldEngine, batch: Batch) -> None:
        if self._is_behind:  # what this changes is in the snapshot
            return
        if len(self._waiting) == _MAX_WAITING:
            self._waiting.clear()
            self._is_behind = True
        else:
            self._waiting.append((engine, batch))
        self._has_news.set()

    async def next(self) -> bytes:
        """Return the next event of the stream, or a comment where nothing comes for a while."""
        while True:
            if self._is_behind:
                self._is_behind = False
                held = [engine.copy(has_blocks=not self._are_prefixes) for engine in self._hub.engines.values()]
                # What comes meanwhile waits. On the event loop every stream of the server would wait, too.
                return await self._hub.beside(partial(self._snapshot, held))
            if self._waiting:
                engine, batch = self._waiting.popleft()
                events = [event for event in batch.events if self._is_wanted(event)]
                if events:
                    return self._event("batch", {**self._told(engine, events), "at_s": batch.at_s})
                continue
            self._has_news.clear()
            try:
                async with asyncio.timeout(_ALIVE_S):
                    await self._has_news.wait()
            except TimeoutError:
                return b": alive\n\n"

    def _is_wanted(self, event: ToldEvent) -> bool:
        return not self._are_prefixes or isinstance(event, PrefixesStored | PrefixesRemoved | AllBlocksCleared)

    def _snapshot(self, held: Sequence[ToldEngine]) -> bytes:
        return self._event("snapshot", {"engines": [self._told(engine, engine.snapshot()) for engine in held]})

    def _told(self, engine: ToldEngine, events: list[ToldEvent]) -> dict[str, Any]:
        has_tokens = engine.source.tells_tokens
        return {
            "engine": engine.source.engine,
            "model": engine.source.model,
            "events": [json_event(event, has_tokens=has_tokens) for event in events if self._is_wanted(event)],
        }

    def _event(self, kind: str, data: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind.encode(), msgspec.json.encode(data))
