# SPDX-License-Identifier: Apache-2.0
"""A publisher of KV events over ZeroMQ, as vLLM's own, with what a subscriber has missed on demand.

A message has three frames: the topic ``kv@SERVER@MODEL``, a number of 8 bytes, big-endian, and a batch. All topics of a
publisher share the numbers, so that who takes all topics sees each message that is lost. Who asks the other socket
``["", first number]`` gets the batches from there on, as ``["", topic, number, batch]``, and then an end with the
number -1. Of numbers that are not kept any more the answer is what is held now, under the newest numbers.

Nothing here waits: what a subscriber does not take in time is dropped for it, by ZeroMQ.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install

_log = logging.getLogger("trireme.frontend")

_MAX_QUEUED = 10_000  # messages that a subscriber may be behind before some are dropped for it
_END = (-1).to_bytes(8, "big", signed=True)
Snapshot = Callable[[], Awaitable[list[tuple[bytes, bytes]]]]  # topics and batches that tell all


class ZmqSettings(NamedTuple):
    """The settings of a publisher. Attributes: as `KvEventsSpec`."""

    endpoint: str
    replay_endpoint: str | None
    num_kept_batches: int


class ZmqOutlet:
    """A publisher, inside a running event loop.

    Args:
        snapshot: returns, in a while, what was held when it was called, for a subscriber that has missed too much.

    Raises:
        SpecError: pyzmq is not installed, or an endpoint cannot be used.
    """

    def __init__(self, settings: ZmqSettings, snapshot: Snapshot) -> None:
        try:
            import zmq.asyncio  # noqa: PLC0415  only where a deployment asks for it
        except ImportError as exc:
            raise SpecError(
                f"kv_events.endpoint needs pyzmq, which is not installed; {how_to_install('kv-events')}",
                field="kv_events.endpoint",
                extra="kv-events",
            ) from exc
        self._zmq: Any = zmq
        self._snapshot = snapshot
        self._kept: deque[tuple[int, bytes, bytes]] = deque(maxlen=settings.num_kept_batches)
        self._next = 0
        self._context: Any = zmq.Context()
        self._sockets: list[Any] = []
        self._replaying: asyncio.Task[None] | None = None
        try:
            self._publisher = self._socket(zmq.PUB, "endpoint", settings.endpoint)
            if settings.replay_endpoint is not None:
                router = self._socket(zmq.ROUTER, "replay_endpoint", settings.replay_endpoint)
                self._replaying = asyncio.create_task(self._replay(router))
        except SpecError:
            self.close()
            raise

    def publish(self, topic: bytes, batch: bytes) -> None:
        """Send a batch to whoever listens."""
        number, self._next = self._next, self._next + 1
        self._kept.append((number, topic, batch))
        with contextlib.suppress(self._zmq.Again):
            self._publisher.send_multipart((topic, number.to_bytes(8, "big"), batch), self._zmq.NOBLOCK)

    def close(self) -> None:
        """Close the sockets."""
        if self._replaying is not None:
            self._replaying.cancel()
        for each in self._sockets:
            each.close(linger=0)
        self._context.term()

    def _socket(self, kind: int, field: str, endpoint: str) -> Any:
        context = self._context
        if kind == self._zmq.ROUTER:  # in the event loop; what is published waits for nobody
            context = self._zmq.asyncio.Context.shadow(context)
        made = context.socket(kind)
        self._sockets.append(made)
        made.set_hwm(_MAX_QUEUED if kind == self._zmq.PUB else 0)  # an answer is whole
        made.setsockopt(self._zmq.LINGER, 0)
        if endpoint.startswith("tcp://["):
            made.setsockopt(self._zmq.IPV6, 1)
        try:
            if kind == self._zmq.PUB and not is_listening(endpoint):
                made.connect(endpoint)
            else:
                made.bind(endpoint)
        except self._zmq.ZMQError as exc:
            raise SpecError(
                f"kv_events.{field} {endpoint} cannot be used: {exc}; name another",
                field=f"kv_events.{field}",
                value=endpoint,
            ) from exc
        return made

    async def _replay(self, router: Any) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                _log.warning("a question for KV events that is none: %d frames", len(frames))
                continue
            caller, _, first = frames
            try:
                for number, topic, batch in await self._from(int.from_bytes(first, "big")):
                    await router.send_multipart((caller, b"", topic, number.to_bytes(8, "big"), batch))
                await router.send_multipart((caller, b"", b"", _END, b""))
            except Exception:  # one who asks keeps no other from being answered
                _log.exception("a question for KV events could not be answered")

    async def _from(self, first: int) -> list[tuple[int, bytes, bytes]]:
        """Return the batches from a number on, or those that tell all that is held now."""
        oldest = self._kept[0][0] if self._kept else 0
        if first >= oldest:
            return [kept for kept in self._kept if kept[0] >= first]
        end, coming = self._next, self._snapshot()
        told = await coming
        begin = max(end - len(told), 0)
        return [(begin + index, topic, batch) for index, (topic, batch) in enumerate(told)]


def is_listening(endpoint: str) -> bool:
    """Return whether a publisher listens at an endpoint, by vLLM's rule, or calls the subscriber there."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")


def named(server: str) -> str:
    """Return a server's name, with this machine's in place of `{host}` and `{address}`."""
    host = socket.gethostname()
    if "{address}" in server:
        try:
            server = server.replace("{address}", socket.gethostbyname(host))
        except OSError:
            server = server.replace("{address}", host)
    return server.replace("{host}", host)
