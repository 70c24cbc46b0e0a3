# SPDX-License-Identifier: Apache-2.0
"""The hub of a server's KV events: it hears the engines, knows what each holds, and tells subscribers.

It lives in the frontend of HTTP, whose event loop runs all of it. An engine that ends, for whatever reason, is told as
one whose cache is empty; one that comes tells all that it holds.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from serving.engines.seam.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored
from serving.kv_events.held_blocks import HeldBlocks
from serving.kv_events.messages import (
    LENGTH,
    MAX_FRAME_BYTES,
    Batch,
    Message,
    PrefixesRemoved,
    PrefixesStored,
    Source,
    ToldEvent,
    publisher_path,
)
from serving.kv_events.wire_events import vllm_batch
from serving.kv_events.zmq_outlet import ZmqOutlet, ZmqSettings, named
from trireme.base.errors import SpecError
from trireme.base.known_types import known
from trireme.base.unix_socket import UnixListener

_log = logging.getLogger("trireme.frontend")

_RETRY_S = 5.0
T = TypeVar("T")


class ToldEngine:
    """An engine that tells, and what it holds.

    Attributes:
        prefixes, ends: the held beginnings of prompts, and those with which a prompt ended.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.blocks = HeldBlocks()
        self.prefixes: set[int] = set()
        self.ends: set[int] = set()
        self.topic = f"kv@{named(source.server)}@{source.model}".encode()

    def apply(self, event: ToldEvent) -> None:
        """Take an event."""
        match event:
            case PrefixesStored():
                self.prefixes.update(event.numbers)
                self.ends.update(event.ends)
            case PrefixesRemoved():
                self.prefixes.difference_update(event.numbers)
                self.ends.difference_update(event.numbers)
            case BlocksStored() | BlocksRemoved() | AllBlocksCleared():
                self.blocks.apply(event)
                if isinstance(event, AllBlocksCleared):
                    self.prefixes.clear()
                    self.ends.clear()

    def copy(self, *, has_blocks: bool = True) -> "ToldEngine":
        """Return what it holds now, for `snapshot` on another thread.

        Args:
            has_blocks: with the blocks; not the beginnings of prompts alone.
        """
        made = ToldEngine(self.source)
        made.prefixes, made.ends = set(self.prefixes), set(self.ends)
        if has_blocks:
            made.blocks = self.blocks.copy()
        return made

    def snapshot(self) -> list[ToldEvent]:
        """Return the events that tell all it holds to somebody who knows nothing of it.

        Of a large cache this takes a tenth of a second and more, in which an event loop would do nothing else.
        """
        places = [PrefixesStored(list(self.prefixes), list(self.ends))] if self.prefixes else []
        return [AllBlocksCleared(), *self.blocks.events(), *places]


class Subscriber(Protocol):
    """A subscriber inside the process."""

    def tell(self, engine: ToldEngine, batch: Batch) -> None:
        """Take a batch of an engine; must not wait."""


class EventHub:
    """The hub, inside a running event loop."""

    def __init__(self) -> None:
        self.engines: dict[str, ToldEngine] = {}  # by name
        self._subscribers: set[Subscriber] = set()
        self._outlets: dict[ZmqSettings, ZmqOutlet] = {}
        self._retry_s: dict[ZmqSettings, float] = {}  # for those that could not be opened
        self._listener: UnixListener | None = None
        self._server: asyncio.Server | None = None
        self._run_dir: Path | None = None
        self._hearing: set[asyncio.Task[None]] = set()
        # One, however many subscribers come at once: each takes time of the event loop's thread.
        self._beside = ThreadPoolExecutor(1, "kv-snapshots")

    async def beside(self, work: Callable[[], T]) -> T:
        """Return what some work returns that is done beside the event loop, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._beside, work)

    async def listen(self, run_dir: Path) -> None:
        """Hear the engines of a server from now on."""
        if run_dir == self._run_dir:
            return
        await self._stop_listening()
        self._run_dir = run_dir
        self._listener = UnixListener(publisher_path(run_dir))
        self._server = await asyncio.start_unix_server(self._hear, sock=self._listener.socket)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell a subscriber every batch from now on."""
        self._subscribers.add(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        """Tell a subscriber no more."""
        self._subscribers.discard(subscriber)

    async def close(self) -> None:
        """Hear nobody any more, and close what subscribers listen to."""
        await self._stop_listening()
        for outlet in self._outlets.values():
            outlet.close()
        self._outlets.clear()
        self._beside.shutdown(wait=False, cancel_futures=True)

    async def _stop_listening(self) -> None:
        if self._server is not None and self._listener is not None:
            self._listener.remove()
            self._server.close()
            hearing = list(self._hearing)
            for task in hearing:
                task.cancel()
            await asyncio.gather(*hearing, return_exceptions=True)  # each tells subscribers of its engine's end
        self._server = self._listener = self._run_dir = None

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._hearing.add(task)
        engine: ToldEngine | None = None
        try:
            decoder = msgspec.msgpack.Decoder(known(Message))
            while True:
                message = decoder.decode(await _frame(reader))
                if isinstance(message, Source):
                    engine = self._welcome(message)
                elif engine is not None and self.engines.get(engine.source.engine) is engine:
                    self._tell(engine, message)
                    await asyncio.sleep(0)  # others have their turn in the loop, too
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the engine has ended, or the server does
        except (msgspec.DecodeError, ValueError) as exc:
            _log.error("an engine tells KV events that nobody can read: %s", exc)
        finally:
            self._hearing.discard(task)
            writer.close()
            if engine is not None and self.engines.get(engine.source.engine) is engine:
                self._tell(engine, Batch(time.time(), [AllBlocksCleared()]))
                del self.engines[engine.source.engine]

    def _welcome(self, source: Source) -> ToldEngine:
        before = self.engines.get(source.engine)
        if before is not None:  # its end has not been seen yet
            self._tell(before, Batch(time.time(), [AllBlocksCleared()]))
        engine = self.engines[source.engine] = ToldEngine(source)
        _log.info("KV events of %s are told as %s", source.engine, engine.topic.decode())
        return engine

    def _tell(self, engine: ToldEngine, batch: Batch) -> None:
        for event in batch.events:
            engine.apply(event)
        for subscriber in list(self._subscribers):
            subscriber.tell(engine, batch)
        if engine.source.endpoint is not None:
            self._publish(engine, batch)

    def _publish(self, engine: ToldEngine, batch: Batch) -> None:
        """Publish a batch over ZeroMQ; the publisher is opened for the first engine that asks for it."""
        settings = _settings(engine.source)
        if (outlet := self._outlets.get(settings)) is not None:
            if (payload := vllm_batch(batch.at_s, batch.events)) is not None:
                outlet.publish(engine.topic, payload)
            return
        now_s = time.monotonic()
        if now_s < self._retry_s.get(settings, 0.0):
            return
        try:
            outlet = self._outlets[settings] = ZmqOutlet(settings, lambda: self._told_anew(settings))
        except SpecError as exc:
            self._retry_s[settings] = now_s + _RETRY_S
            _log.error("%s: %s", engine.source.engine, exc.message)
            return
        for topic, payload in _batches_of(self._of_publisher(settings)):  # with what this batch brings
            outlet.publish(topic, payload)

    def _of_publisher(self, settings: ZmqSettings) -> list[ToldEngine]:
        return [engine for engine in self.engines.values() if _settings(engine.source) == settings]

    def _told_anew(self, settings: ZmqSettings) -> Awaitable[list[tuple[bytes, bytes]]]:
        """Return batches that tell all that the engines of a publisher hold at this moment."""
        held = [engine.copy() for engine in self._of_publisher(settings)]
        return self.beside(partial(_batches_of, held))


def _batches_of(engines: Sequence[ToldEngine]) -> list[tuple[bytes, bytes]]:
    """Return a topic and a batch of each engine that tells all it holds."""
    found: list[tuple[bytes, bytes]] = []
    for engine in engines:
        payload = vllm_batch(time.time(), engine.snapshot())
        assert payload is not None, "it begins with an event"
        found.append((engine.topic, payload))
    return found


def _settings(source: Source) -> ZmqSettings:
    return ZmqSettings(source.endpoint or "", source.replay_endpoint, source.num_kept_batches)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return await reader.readexactly(length)
