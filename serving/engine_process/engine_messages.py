# SPDX-License-Identifier: Apache-2.0
"""The messages between an adapter and the engine's process, and the channel for them.

One message per engine step carries the new tokens of every request. MessagePack in frames of ``<u32 length><bytes>``
over a Unix socket pair; the end of the stream means that the other side is gone.
"""

import contextlib
import select
import socket
import struct

import msgspec

from serving.engines.seam.base import EngineInfo, EngineStats, GenerationRequest, TokenChunk
from trireme.base.known_types import known


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """The message from adapter to engine that queues a request; a refusal comes back as its last chunk."""

    request: GenerationRequest
    request_id: str = ""  # given by the client, for `Stop`


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """The message from adapter to engine that stops a request; no further token of it follows."""

    key: int


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """The message from adapter to engine that stops the requests of other adapters under a client's request id."""

    request_id: str


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The message from engine to adapter, sent once, that the engine is loaded."""

    info: EngineInfo


class Step(msgspec.Struct, tag="step", array_like=True):
    """The message from engine to adapter with the chunks of a step and the engine's stats after it."""

    chunks: list[TokenChunk]
    stats: EngineStats | None  # None: ends of requests beside a step; no sign that the engine goes on


class Broken(msgspec.Struct, tag="broken", array_like=True):
    """The last message from engine to adapter: the text of the ServingError that ended the engine."""

    error: str
    reason: str = "engine_died"  # for the errors of the requests that are lost


Command = Submit | Cancel | Stop
Report = Ready | Step | Broken

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18


class ChannelClosed(Exception):
    """The error that the other side of a channel is gone."""


class Channel:
    """An end of a channel; one thread may send while another thread receives."""

    def __init__(self, sock: socket.socket, incoming: object) -> None:
        """Take over a connected socket.

        Args:
            sock: socket to the other side.
            incoming: union type of the messages that this end receives.
        """
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(known(incoming))
        self._buffer = bytearray()
        self._unread: list[object] = []

    def fileno(self) -> int:
        """Return the descriptor of the socket, for a selector over several channels."""
        return self._sock.fileno()

    def send(self, message: Command | Report) -> None:
        """Send one message.

        Raises:
            ChannelClosed: the other side is gone.
        """
        frame = bytearray(_LENGTH.size)
        self._encoder.encode_into(message, frame, _LENGTH.size)
        _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
        try:
            self._sock.sendall(frame)
        except OSError as exc:
            raise ChannelClosed(str(exc)) from exc

    def receive(self, *, is_blocking: bool, timeout_s: float | None = None) -> list[object]:
        """Return every whole message that has arrived; if `is_blocking`, wait up to `timeout_s` for a first message.

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
        """Wait for the next message and return it; `receive` returns messages that came with it.

        Raises:
            ChannelClosed: the other side is gone.
            TimeoutError: no message came within `timeout_s`.
        """
        messages = self.receive(is_blocking=True, timeout_s=timeout_s)
        if not messages:
            raise TimeoutError(f"nothing came for {timeout_s:g} s")
        first, *self._unread = messages
        return first

    def _read(self, *, is_blocking: bool) -> bytes:
        """Return the bytes that have arrived; empty if there are none and the call does not block."""
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
        """Close the channel; both sides see the end of the stream."""
        with contextlib.suppress(OSError):
            # close() alone would not reach a thread that waits in receive(), nor, while it waits, the other side.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
