# SPDX-License-Identifier: Apache-2.0
"""The link of an engine's process to the server's publisher: a thread that the engine never waits for.

Whenever the link is made anew, and after a publisher that did not read for a while, it begins with all that is held.
"""

import contextlib
import logging
import queue
import select
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from serving.engines.seam.base import EngineInfo, GenerationRequest
from serving.engines.seam.kv_events import AllBlocksCleared, KvEvent
from serving.kv_events.held_blocks import HeldBlocks
from serving.kv_events.messages import LENGTH, Batch, Message, Source, ToldEvent
from serving.kv_events.prompt_places import PromptPlaces
from trireme.base.unix_socket import connect_socket

_log = logging.getLogger("trireme.engine")

_RETRY_S = 0.25
_SEND_S = 2.0  # a publisher that reads nothing for so long is given up, and told all when it reads again
_ENDS_S = 2.0
_SNAPSHOT_EVENTS = 8  # runs of blocks in one message; between two the engine's thread can run, and the publisher's loop


class StepNews(msgspec.Struct, frozen=True):
    """The news of a step: its events, and the requests whose prompts have been computed."""

    events: Sequence[KvEvent]
    prompts: Sequence[GenerationRequest]


class EventLink:
    """The link, from its construction on.

    Args:
        path: socket of the publisher, which may come later.
        info: of the engine.
    """

    def __init__(self, source: Source, path: Path, info: EngineInfo) -> None:
        self._source, self._path = source, path
        self._encoder = msgspec.msgpack.Encoder()
        self._news: queue.SimpleQueue[StepNews | None] = queue.SimpleQueue()
        self._held = HeldBlocks(info.kv_block_tokens)
        self._places = PromptPlaces(self._held)
        self._socket: socket.socket | None = None
        self._next_try_s = 0.0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def tell(self, news: StepNews) -> None:
        """Hand on the news of a step; returns at once."""
        if not self._is_over:  # else nobody would take it
            self._news.put(news)

    def close(self) -> None:
        """End the link; what was handed on is told first."""
        self._news.put(None)
        self._thread.join(_ENDS_S)

    def _run(self) -> None:
        try:
            while True:
                try:
                    news = self._news.get(timeout=_RETRY_S)
                except queue.Empty:
                    self._connect()
                    continue
                if news is None:
                    break
                self._connect()  # first: what is held then is told without this step, which follows
                events = self._take(news)
                if events and self._socket is not None:
                    self._send(Batch(time.time(), events))
        except Exception:  # the engine serves on, and nobody hears of its cache
            _log.exception("KV events are told no longer")
        finally:
            self._is_over = True
            self._hang_up()

    def _take(self, news: StepNews) -> list[ToldEvent]:
        events: list[ToldEvent] = []
        for event in news.events:
            self._held.apply(event)
            follows = self._places.note_event(event)
            events += [event] if follows is None else [event, follows]
        stored = self._places.note_prompts(news.prompts)
        return events if stored is None else [*events, stored]

    def _connect(self) -> None:
        if self._socket is not None and self._is_gone(self._socket):
            self._hang_up()
        if self._socket is not None or time.monotonic() < self._next_try_s:
            return
        self._next_try_s = time.monotonic() + _RETRY_S
        sock = socket.socket(socket.AF_UNIX)
        try:
            connect_socket(sock, self._path)
        except OSError:  # it is not there yet, or is started again
            sock.close()
            return
        sock.settimeout(_SEND_S)
        self._socket = sock
        self._send(self._source)
        self._send(Batch(time.time(), [AllBlocksCleared()]))
        events: list[ToldEvent] = []
        for event in self._held.events():
            events.append(event)
            if len(events) == _SNAPSHOT_EVENTS:
                self._send(Batch(time.time(), events))
                events = []
        places = self._places.snapshot()
        if events or places is not None:
            self._send(Batch(time.time(), [*events, *([] if places is None else [places])]))

    @staticmethod
    def _is_gone(sock: socket.socket) -> bool:
        """Return whether the publisher has hung up; it never says anything else."""
        return bool(select.select([sock], [], [], 0.0)[0])

    def _send(self, message: Message) -> None:
        if self._socket is None:
            return
        frame = bytearray(LENGTH.size)
        self._encoder.encode_into(message, frame, LENGTH.size)
        LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
        try:
            self._socket.sendall(frame)
        except OSError:  # gone, or silent for too long; what is left of the frame would be in the way
            self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
