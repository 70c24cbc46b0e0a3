# SPDX-License-Identifier: Apache-2.0
"""What the adapter and the engine's process say to each other, and the pipe they say it through.

One message per engine step carries the new tokens of every request. MessagePack in frames of ``<u32 length><bytes>``
over a Unix socket pair; the end of the stream means that the other side is gone.
"""

import contextlib
import select
import socket
import struct

import msgspec

from serving.engines.seam.base import EngineInfo, EngineStats, GenerationRequest, TokenChunk


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """Adapter to engine: queue a request. A refusal comes back as its last chunk."""

    request: GenerationRequest
    request_id: str = ""  # the client's, for `Stop`


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """Adapter to engine: stop a request; no chunk of it follows."""

    key: int


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """Adapter to engine: stop the requests of this client's id that other adapters have; their last chunks say so."""

    request_id: str


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """Engine to adapter, once: the engine is loaded."""

    info: EngineInfo


class Step(msgspec.Struct, tag="step", array_like=True):
    """Engine to adapter: what one step made, and what the engine holds after it."""

    chunks: list[TokenChunk]
    stats: EngineStats | None  # None: ends that were told beside a step; no sign that the engine goes on


class Broken(msgspec.Struct, tag="broken", array_like=True):
    """Engine to adapter, last words: the text of the ServingError that ended it."""

    error: str
    reason: str = "engine_died"  # that is told to those who have requests there


Command = Submit | Cancel | Stop
Report = Ready | Step | Broken

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One end of the pipe. One thread sends, one thread receives; these may be two."""

    def __init__(self, sock: socket.socket, incoming: object) -> None:
        """Args: `incoming` is the union type of the messages that this end receives."""
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(incoming)
        self._buffer = bytearray()
        self._unread: list[object] = []

    def fileno(self) -> int:
        """Of the socket, to wait for several at once."""
        return self._sock.fileno()

    def send(self, message: Command | Report) -> None:
        """Raises: ChannelClosed."""
        frame = bytearray(_LENGTH.size)
        self._encoder.encode_into(message, frame, _LENGTH.size)
        _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
        try:
            self._sock.sendall(frame)
        except OSError as exc:
            raise ChannelClosed(str(exc)) from exc

    def receive(self, *, is_blocking: bool, timeout_s: float | None = None) -> list[object]:
        """Every whole message that has arrived; if `is_blocking`, waits until there is one, or `timeout_s` passed.

        Raises:
            ChannelClosed: the other side is gone and nothing is left to read.
        """
        if self._unread:
            messages, self._unread = self._unread, []
            return messages
        if timeout_s is not None and not self._has_arrived(timeout_s):
            return []
        while data := self._read(is_blocking=is_blocking):
            self._buffer += data
            if messages := self._take_frames():
                return messages
        return []

    def _has_arrived(self, timeout_s: float) -> bool:
        try:
            return bool(select.select([self._sock], [], [], timeout_s)[0])
        except (OSError, ValueError) as exc:  # closed by another thread of ours
            raise ChannelClosed(str(exc)) from exc

    def receive_one(self, *, timeout_s: float | None = None) -> object:
        """The next message, waiting for it; what came with it is left to `receive`.

        Raises:
            ChannelClosed: the other side is gone.
            TimeoutError: nothing came for `timeout_s`.
        """
        messages = self.receive(is_blocking=True, timeout_s=timeout_s)
        if not messages:
            raise TimeoutError(f"nothing came for {timeout_s:g} s")
        first, *self._unread = messages
        return first

    def _read(self, *, is_blocking: bool) -> bytes:
        """What has arrived; empty if nothing has and it is not waited for."""
        try:
            # More than the socket can hold: one call takes all.
            data = self._sock.recv(_READ_BYTES, 0 if is_blocking else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        except OSError as exc:
            raise ChannelClosed(str(exc)) from exc
        if not data:
            raise ChannelClosed("end of stream")
        return data

    def _take_frames(self) -> list[object]:
        messages, start, end = [], 0, len(self._buffer)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            messages.append(self._decoder.decode(memoryview(self._buffer)[start : start + length]))
            start += length
        del self._buffer[:start]
        return messages

    def close(self) -> None:
        """Hang up; both sides see the end of the stream."""
        with contextlib.suppress(OSError):
            # close() alone would not reach a thread that waits in receive(), nor, while it waits, the other side.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
