# SPDX-License-Identifier: Apache-2.0
"""A client that is not the bottleneck: gRPC streams read as raw HTTP/2 frames, decoded when the clock has stopped.

The asyncio client of gRPC spends 30 to 40 microseconds of a core on each response and 0.8 ms on each request, on the
cores that it measures; this spends a tenth. Only for a server on the same machine that is known to be well: no TLS,
no retries, no header compression to be decoded, nobody who answers the server's pings between two runs, and a status is
told from the missing last message.
"""

import resource
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_PATH = b"/inference.GRPCInferenceService/ModelStreamInfer"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8  # RFC 9113, section 6
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5  # settings
_LARGEST_WINDOW = 2**31 - 1
_FRAME_BYTES = 1 << 20
_PREFIX = struct.Struct(">?I")  # of a gRPC message: compressed or not, its length


@dataclass(slots=True)
class Received:
    """The bytes of one stream as they arrived, each piece with its time."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # time.perf_counter() seconds

    def messages(self) -> list[tuple[float, bytes]]:
        """Return every whole message with the time of its last byte, in seconds."""
        found: list[tuple[float, bytes]] = []
        buffer = b""
        for arrived_s, piece in self.pieces:
            buffer += piece
            while len(buffer) >= _PREFIX.size:
                end = _PREFIX.size + _PREFIX.unpack_from(buffer)[1]
                if len(buffer) < end:
                    break
                found.append((arrived_s, buffer[_PREFIX.size : end]))
                buffer = buffer[end:]
        return found


@dataclass(frozen=True)
class Streams:
    """The results of one `run`."""

    start_s: float  # before the first request was sent
    received: list[Received]  # in the order of the requests
    cpu_s: float  # of this process


class Http2Streams:
    """A connection to a gRPC server; for one thread."""

    def __init__(self, url: str) -> None:
        """Connect to a server.

        Args:
            url: ``host:port``.
        """
        host, _, port = url.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = _request_headers(url)
        self._next_id = 1
        self._unacknowledged = 0
        settings = struct.pack(">HIHI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW, _MAX_FRAME_SIZE, _FRAME_BYTES)
        self._socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _LARGEST_WINDOW - 65_535))
        )

    def run(self, requests: Sequence[bytes]) -> Streams:
        """Send all requests at once, each a `ModelInferRequest` on a stream of its own; read until every stream ends.

        Raises:
            ConnectionError: the server ended the connection.
        """
        running: dict[int, Received] = {}
        cpu_before_s = _cpu_s()
        start_s = time.perf_counter()
        for request in requests:
            running[self._next_id] = Received()
            prefixed = _PREFIX.pack(False, len(request)) + request
            self._socket.sendall(
                _frame(_HEADERS, _END_HEADERS, self._next_id, self._headers)
                + _frame(_DATA, _END_STREAM, self._next_id, prefixed)
            )
            self._next_id += 2
        received = list(running.values())
        buffer = b""
        while running:
            data = self._socket.recv(_FRAME_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            buffer = self._take_frames(buffer + data, time.perf_counter(), running)
        return Streams(start_s, received, _cpu_s() - cpu_before_s)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _take_frames(self, buffer: bytes, now_s: float, running: dict[int, Received]) -> bytes:
        """Take the whole frames of a buffer, and return what is left over of a frame that has not arrived whole."""
        start, end = 0, len(buffer)
        while end - start >= 9:
            length = int.from_bytes(buffer[start : start + 3], "big")
            payload = start + 9
            if end - payload < length:
                break
            kind, flags = buffer[start + 3], buffer[start + 4]
            stream_id = int.from_bytes(buffer[start + 5 : payload], "big")
            start = payload + length
            if kind == _DATA:
                running[stream_id].pieces.append((now_s, buffer[payload:start]))
                self._acknowledge(length)
            else:
                self._take_control(kind, flags, buffer[payload:start])
            if kind == _RST_STREAM or (kind in {_DATA, _HEADERS} and flags & _END_STREAM):
                running.pop(stream_id, None)
        return buffer[start:]

    def _take_control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _GOAWAY:
            raise ConnectionError(f"the server ends the connection: {payload[8:]!r}")
        if kind in {_SETTINGS, _PING} and not flags & _ACK:
            self._socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))

    def _acknowledge(self, num_bytes: int) -> None:
        self._unacknowledged += num_bytes
        if self._unacknowledged > _LARGEST_WINDOW // 2:
            self._socket.sendall(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged)))
            self._unacknowledged = 0


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def _request_headers(authority: str) -> bytes:
    """Return every header as a literal that is not indexed (RFC 7541, section 6.2.2)."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": _PATH,
        b":authority": authority.encode(),
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    return b"".join(b"\x00" + _short(name) + _short(value) for name, value in headers.items())


def _short(text: bytes) -> bytes:
    assert len(text) < 127, text  # longer ones have a longer length
    return bytes([len(text)]) + text


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
