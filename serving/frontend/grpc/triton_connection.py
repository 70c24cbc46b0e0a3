# SPDX-License-Identifier: Apache-2.0
"""The relay's connection to Triton: whole frames go on to the client as they are."""

import asyncio
from typing import TYPE_CHECKING, Any

from serving.frontend.grpc import http2_frames as h2

if TYPE_CHECKING:
    from serving.frontend.grpc.grpc_relay import ClientConnection


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
        """Send whole frames on to the client, except frames of calls that were refused or left."""
        data = self._rest + data if self._rest else data
        pieces, sent, position, size = [], 0, 0, len(data)
        is_in_block = False
        end = 0  # end of the last frame that another frame may follow
        while size - position >= h2.HEAD_BYTES:
            length = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            following = position + h2.HEAD_BYTES + length
            if following > size:
                break
            kind, flags = data[position + 3], data[position + 4]
            stream_id = int.from_bytes(data[position + 5 : position + 9], "big")
            # Not headers: their entries in the table that both sides keep are needed for the headers of other calls.
            if kind in {h2.DATA, h2.RST_STREAM} and self._client.is_dropped(stream_id):
                pieces.append(data[sent:position])
                sent = following
                if kind == h2.DATA and length:
                    self.send(h2.give_back(length) + h2.give_back(length, stream_id))
            if kind != h2.DATA or flags & h2.END_STREAM:
                self._follow(kind, flags, stream_id, data[position + h2.HEAD_BYTES : following])
            if kind in {h2.HEADERS, h2.CONTINUATION}:
                is_in_block = not flags & h2.END_HEADERS
            position = following
            if not is_in_block:
                end = position
        if sent < end:
            pieces.append(data[sent:end])
        self._rest = data[max(end, sent) :]
        if out := pieces[0] if len(pieces) == 1 else b"".join(pieces):
            self._client.send(out)

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

    def _follow(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == h2.SETTINGS and not flags & h2.ACK:
            self._client.max_frame_bytes = h2.max_frame_bytes(payload) or self._client.max_frame_bytes
        elif kind in {h2.DATA, h2.HEADERS, h2.RST_STREAM}:
            self._client.note_answer(kind, flags, stream_id)
