# SPDX-License-Identifier: Apache-2.0
"""The relay's connection to Triton: whole frames go on to the client as they are."""

import asyncio
from typing import TYPE_CHECKING, Any

from serving.frontend.grpc import http2_frames as h2

if TYPE_CHECKING:
    from serving.frontend.grpc.grpc_relay import ClientConnection


_HEADER_KINDS = frozenset({h2.HEADERS, h2.CONTINUATION})


class TritonConnection(asyncio.Protocol):
    """The relay's connection to Triton."""

    def __init__(self, client: "ClientConnection") -> None:
        self._client = client
        self._transport: Any = None
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        """Keep the transport to Triton."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Send whole frames on to the client, except frames of calls that were refused or left, or that have to wait.

        What models sent past Triton goes first: Triton says the last of a request after that was written.
        """
        self._client.answers.drain()
        data = self._rest + data if self._rest else data
        pieces, sent, position, size = list[bytes](), 0, 0, len(data)
        block, head_flags, head_id = -1, 0, 0  # where a header block began, the flags and stream of its first frame
        while size - position >= h2.HEAD_BYTES:
            length = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            body, following = position + h2.HEAD_BYTES, position + h2.HEAD_BYTES + length
            if following > size:
                break
            kind, flags = data[position + 3], data[position + 4]
            stream_id = int.from_bytes(data[position + 5 : body], "big")
            start, instead = position, None  # what is to be replaced, and by what
            if kind == h2.DATA:
                instead = self._data(flags, stream_id, data, body, following)
            elif kind in _HEADER_KINDS:
                if kind == h2.HEADERS:
                    block, head_flags, head_id = position, flags, stream_id
                if flags & h2.END_HEADERS:
                    start, instead = block, self._other(h2.HEADERS, head_flags, head_id, data[block:following])
                    block = -1
            elif kind == h2.RST_STREAM:
                instead = self._other(kind, flags, stream_id, data[position:following])
            elif kind == h2.SETTINGS and flags & h2.ACK:
                instead = data[position:following] + self._client.answers.acknowledge()
            elif kind == h2.SETTINGS:
                found = h2.setting_of(data[body:following], h2.MAX_FRAME_SIZE)
                self._client.max_frame_bytes = found or self._client.max_frame_bytes
            if instead is not None:
                pieces += (data[sent:start], instead)
                sent = following
            position = following
        end = position if block < 0 else block  # no other frame may come between those of a block
        pieces.append(data[sent:end])
        self._rest = data[end:]
        if out := b"".join(pieces):
            self._client.send(out)

    def _data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> bytes | None:
        """Return what goes to the client in place of a frame of data; None: the frame as it is."""
        if not self._client.is_dropped(stream_id):
            return self._client.answers.data(flags, stream_id, memoryview(data)[start:end])
        if end > start:
            self.send(h2.give_back(end - start) + h2.give_back(end - start, stream_id))
        if flags & h2.END_STREAM:
            self._other(h2.DATA, flags, stream_id, b"")
        return b""

    def _other(self, kind: int, flags: int, stream_id: int, frames: bytes) -> bytes:
        """Return what goes to the client of frames that are no data."""
        found = self._client.answers.frames(kind, flags, stream_id, frames)
        self._client.finish_if_over()
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection, because Triton has gone."""
        del exc
        self._client.close()

    def pause_writing(self) -> None:
        """Have the client wait for Triton."""
        self._client.pause_reading()

    def resume_writing(self) -> None:
        """Have the client send again."""
        self._client.resume_reading()

    def send(self, data: bytes) -> None:
        """Send whole frames to Triton."""
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection, because the client has gone."""
        self._transport.close()

    def pause_reading(self) -> None:
        """Have Triton wait for the client."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Have Triton send again."""
        self._transport.resume_reading()
