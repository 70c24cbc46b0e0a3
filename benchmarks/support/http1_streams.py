# SPDX-License-Identifier: Apache-2.0
"""A client that is not the bottleneck: streams of server-sent events over HTTP/1.1, read raw, decoded afterwards.

Only for a server on the same machine that is known to be well: no TLS, no retries, chunked answers alone.
"""

import resource
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_READ_BYTES = 1 << 18
_LAST_CHUNK = b"0\r\n\r\n"
_HEAD_END = b"\r\n\r\n"


@dataclass(slots=True)
class Received:
    """The bytes of one answer as they arrived, each piece with its time."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # time.perf_counter() seconds
    tail: bytes = b""

    def add(self, arrived_s: float, piece: bytes) -> bool:
        """Add a piece, and return whether the answer is whole."""
        self.pieces.append((arrived_s, piece))
        self.tail = (self.tail + piece)[-len(_LAST_CHUNK) :]
        return self.tail == _LAST_CHUNK

    def events(self) -> list[tuple[float, bytes]]:
        """Return the data of every event with the time of its last byte, in seconds.

        Raises:
            RuntimeError: the answer is no stream of events.
        """
        found: list[tuple[float, bytes]] = []
        raw, text = b"", b""
        has_head = False
        for arrived_s, piece in self.pieces:
            raw += piece
            if not has_head and _HEAD_END in raw:
                head, _, raw = raw.partition(_HEAD_END)
                has_head = True
                if not head.startswith(b"HTTP/1.1 200 "):
                    raise RuntimeError(f"{head[:200]!r} {raw[:500]!r}")
            if has_head:
                whole, raw = _dechunked(raw)
                text += whole
            *events, text = text.split(b"\n\n")
            found += [(arrived_s, event.removeprefix(b"data: ")) for event in events]
        return found


@dataclass(frozen=True)
class Streams:
    """The results of one `run`."""

    start_s: float  # before the first request was sent
    received: list[Received]  # in the order of the requests
    cpu_s: float  # of this process


class Http1Streams:
    """Connections to a server, one for each stream; for one thread.

    Args:
        url: ``host:port``.
    """

    def __init__(self, url: str, num_streams: int) -> None:
        host, _, port = url.rpartition(":")
        self._sockets = [socket.create_connection((host, int(port))) for _ in range(num_streams)]
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self, path: str, bodies: Sequence[bytes]) -> Streams:
        """Send all requests at once, each on a connection of its own; read until every answer is whole.

        Raises:
            ConnectionError: the server ended a connection.
        """
        messages = [_message(path, body) for body in bodies]
        received = [Received() for _ in bodies]
        before = resource.getrusage(resource.RUSAGE_SELF)
        with selectors.DefaultSelector() as selector:
            start_s = time.perf_counter()
            for connection, message, one in zip(self._sockets, messages, received, strict=True):
                connection.sendall(message)
                selector.register(connection, selectors.EVENT_READ, one)
            num_left = len(received)
            while num_left:
                for key, _ in selector.select():
                    data = key.fileobj.recv(_READ_BYTES)  # type: ignore[union-attr]
                    if not data:
                        raise ConnectionError("the server closed the connection")
                    if key.data.add(time.perf_counter(), data):
                        selector.unregister(key.fileobj)
                        num_left -= 1
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Streams(start_s, received, cpu_s)

    def close(self) -> None:
        """Hang up."""
        for each in self._sockets:
            each.close()


def _message(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + _HEAD_END + body


def _dechunked(raw: bytes) -> tuple[bytes, bytes]:
    """Return the content of the whole chunks, and what is left over."""
    content = b""
    while (end := raw.find(b"\r\n")) >= 0:
        size = int(raw[:end], 16)
        if len(raw) < end + 2 + size + 2:
            break
        content += raw[end + 2 : end + 2 + size]
        raw = raw[end + 2 + size + 2 :]
        if size == 0:
            break
    return content, raw
