# SPDX-License-Identifier: Apache-2.0
"""The relay in front of Triton's gRPC: each client connection has its own to Triton, and its bytes pass unchanged.

What a client sends is followed frame by frame: its headers are written anew, its messages measured and checked before
their last byte reaches Triton. What Triton sends is not looked into beyond the heads of its frames, so a chunk costs
little more than a read and a write. Pings and the end of a connection are between client and Triton; flow control, too,
but for what models send past Triton (`serving.frontend.grpc.send_windows`).
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc

from serving.frontend.common.infer_limits import check_message
from serving.frontend.grpc import http2_frames as h2
from serving.frontend.grpc.client_answers import ClientAnswers
from serving.frontend.grpc.client_streams import ClientStream, ClientStreams
from serving.frontend.grpc.grpc_messages import MessageReader, TooLarge
from serving.frontend.grpc.header_blocks import HeaderReader, Headers, header_frames, status_block, without
from serving.frontend.grpc.http2_frames import Frame, ProtocolError
from serving.frontend.grpc.triton_connection import TritonConnection
from serving.requests.request_parameters import STREAM_NAME
from trireme.base.errors import RequestError, Unavailable

if TYPE_CHECKING:
    from serving.frontend.grpc.grpc_frontend import GrpcFrontend

_STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
_INFERENCE = (b"/inference.GRPCInferenceService/ModelInfer", _STREAM)
_OURS = frozenset({STREAM_NAME.encode()})
_GREETING_S = 10.0  # for the first bytes of a connection, and for headers in several frames
_FRAME_S = 30.0  # for the rest of a frame
_CONNECT_S = 5.0
_MAX_STREAMS = 10_000  # on one connection
_MAX_CONTROL_FRAMES = 2_000  # pings, resets, settings, priorities and empty frames of one connection in a second
_CLOSING_S = 10.0  # for a client to take what it was sent before the end


class ClientConnection(asyncio.Protocol):
    """A client's side of the relay."""

    def __init__(self, state: "GrpcFrontend") -> None:
        self._state = state
        self._client: Any = None  # asyncio.Transport; the protocol is made before the transport
        self._triton: TritonConnection | None = None
        self._begun_s = time.monotonic()
        self._buffer = bytearray()
        self._headers = HeaderReader()
        self._is_greeted = False
        self._streams = ClientStreams(state.departures, state.direct)
        self.answers = ClientAnswers(self._streams, state.direct, self.send)
        self._num_control = 0
        self._closing_s: float | None = None
        self._is_lost = False  # the client has gone, and Triton may still answer
        self._half_frame_s: float | None = None  # when the frame began that has not ended
        self._to_triton: list[bytes] = []
        self.max_frame_bytes = h2.LEAST_MAX_FRAME_BYTES  # the longest that Triton takes

    # Called by asyncio.

    def connection_made(self, transport: Any) -> None:
        """Connect to Triton for a new client."""
        self._client = transport
        if len(self._state.connections) >= self._state.max_connections:
            transport.abort()
            return
        self._state.connections.add(self)
        transport.pause_reading()
        self._reaching = asyncio.get_running_loop().create_task(self._reach_triton())

    def data_received(self, data: bytes) -> None:
        """Take the bytes of the client."""
        self._buffer += data
        if self._triton is not None:
            self._take_frames()

    def eof_received(self) -> None:
        """Close: HTTP/2 has no half-closed connections."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Let Triton end the running streams, and end its connection after them."""
        del exc
        self._is_lost = True
        self._to_triton.append(self._streams.leave_all())
        self._flush()
        if self._triton is not None:
            self._triton.resume_reading()
        self.finish_if_over()

    def pause_writing(self) -> None:
        """Have Triton wait for a client that reads slowly."""
        if self._triton is not None:
            self._triton.pause_reading()

    def resume_writing(self) -> None:
        """Have Triton send again."""
        if self._triton is not None:
            self._triton.resume_reading()

    # Called by Triton's side.

    def send(self, data: bytes) -> None:
        """Send whole frames to the client, if it is there."""
        if not self._is_lost:
            self._client.write(data)

    def close(self) -> None:
        """End the connection once what was sent has gone out; Triton has ended its own, or will."""
        self._closing_s = self._closing_s or time.monotonic()
        self._client.close()
        if self._is_lost:
            self._state.connections.discard(self)

    def pause_reading(self) -> None:
        """Have the client wait for Triton."""
        self._client.pause_reading()

    def resume_reading(self) -> None:
        """Have the client send again."""
        self._client.resume_reading()

    def is_dropped(self, stream_id: int) -> bool:
        """Return whether Triton's frames of a stream are dropped."""
        return self._streams.is_dropped(stream_id)

    def finish_if_over(self) -> None:
        """End the connection to Triton once the client has gone and no stream of it is still answered."""
        if self._is_lost and not self._streams.is_winding_up:
            self._state.connections.discard(self)
            if self._triton is not None:
                self._triton.close()

    def tick(self, now_s: float) -> None:
        """End the connection, or streams of it, if they take too long."""
        self._num_control = 0
        self._to_triton.append(self._streams.overdue(now_s))
        self._flush()
        self.finish_if_over()
        is_opening = not self._is_greeted or self._headers.is_open
        if self._is_lost:
            return
        if self._closing_s is not None:
            if now_s - self._closing_s > _CLOSING_S:
                self._client.abort()
        elif is_opening and now_s - self._begun_s > _GREETING_S:
            self._end(h2.NO_ERROR, "no headers in time")
        elif self._half_frame_s is not None and now_s - self._half_frame_s > _FRAME_S:
            self._end(h2.NO_ERROR, "the rest of a frame did not come in time")
        else:
            for stream_id in self._streams.late(now_s):
                why = "the rest of a message did not come in time"
                self._refuse(stream_id, grpc.StatusCode.DEADLINE_EXCEEDED, why)
            self._flush()

    # Towards Triton.

    async def _reach_triton(self) -> None:
        port = self._state.port
        try:
            if port is None:
                raise ConnectionRefusedError
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(_CONNECT_S):
                _, triton = await loop.create_connection(lambda: TritonConnection(self), "127.0.0.1", port)
        except OSError:
            self._client.abort()
            return
        self._triton = triton
        if self._client.is_closing():
            triton.close()
            self._state.connections.discard(self)
            return
        self._client.resume_reading()
        self._take_frames()

    def _take_frames(self) -> None:
        try:
            if not self._is_greeted and self._take_preface():
                self._to_triton.append(h2.PREFACE)
            if self._is_greeted:
                while (frame := h2.take_frame(self._buffer, max_bytes=self.max_frame_bytes)) is not None:
                    self._take(frame)
        except ProtocolError as exc:
            self._end(h2.ENHANCE_YOUR_CALM, str(exc))
            return
        self._half_frame_s = (self._half_frame_s or time.monotonic()) if self._buffer else None
        self._flush()

    def _flush(self) -> None:
        if self._to_triton and self._triton is not None:
            self._triton.send(b"".join(self._to_triton))
            self._to_triton.clear()

    def _take_preface(self) -> bool:
        seen = bytes(self._buffer[: len(h2.PREFACE)])
        if not h2.PREFACE.startswith(seen):
            raise ProtocolError("this port speaks gRPC")
        self._is_greeted = len(seen) == len(h2.PREFACE)
        if self._is_greeted:
            del self._buffer[: len(seen)]
        return self._is_greeted

    def _take(self, frame: Frame) -> None:
        """Send Triton its part of a frame.

        Raises:
            ProtocolError: the connection cannot go on.
        """
        if self._headers.is_open and frame.kind != h2.CONTINUATION:
            raise ProtocolError("headers are not ended")
        if frame.kind not in {h2.DATA, h2.HEADERS, h2.CONTINUATION, h2.WINDOW_UPDATE}:
            self._count_control()
        match frame.kind:
            case h2.HEADERS | h2.CONTINUATION:
                self._take_headers(frame)
            case h2.DATA:
                self._take_data(frame)
            case h2.RST_STREAM:
                self._take_reset(frame)
            case h2.WINDOW_UPDATE:
                self._to_triton.append(self.answers.take_window(frame))
            case h2.SETTINGS if not frame.flags & h2.ACK:
                self._to_triton.append(self.answers.take_settings(frame.payload))
            case h2.SETTINGS | h2.PING | h2.GOAWAY:
                self._to_triton.append(frame.raw)
            case h2.PUSH_PROMISE:
                raise ProtocolError("a client cannot push")
            case _:
                pass  # priorities and unknown kinds: of no use to Triton

    def _take_headers(self, frame: Frame) -> None:
        if frame.kind == h2.HEADERS:
            self._begun_s = time.monotonic()
        if (block := self._headers.take(frame)) is None:
            return
        stream_id, (flags, headers) = frame.stream_id, block
        if (stream := self._streams.get(stream_id)) is not None:  # trailers
            stream.is_half_closed = stream.is_half_closed or bool(flags & h2.END_STREAM)
            self._send_headers(stream_id, flags, without(headers, _OURS))
        elif stream_id > self._streams.last_id:  # else a frame of a stream that has ended
            self._begin_stream(stream_id, flags, headers)

    def _begin_stream(self, stream_id: int, flags: int, headers: Headers) -> None:
        given = dict(headers)
        is_inference, is_stream = given.get(b":path") in _INFERENCE, given.get(b":path") == _STREAM
        name = self._state.departures.new_name()

        def check(message: bytes) -> None:
            asked = check_message(message)
            if asked.name not in self._state.own_models:
                stream.are_models_told = False
                return
            if asked.version:
                self._streams.pin(stream)
            if is_stream:
                self._streams.name_to(asked.name, stream_id, self.answers)

        encoding = given.get(b"grpc-encoding", b"identity")
        stream = ClientStream(
            name,
            MessageReader(
                self._state.max_request_bytes, self._state.budget, encoding, check if is_inference else _take_any
            ),
            is_held=(is_inference and self._state.refusal is not None) or len(self._streams) >= _MAX_STREAMS,
            is_half_closed=bool(flags & h2.END_STREAM),
        )
        self._streams.begin(stream_id, stream)
        self.answers.begin(stream_id)
        if stream.is_held and stream.is_half_closed:
            self._refuse_held(stream_id)
        elif not stream.is_held:
            own = [(STREAM_NAME.encode(), name.encode())] if is_inference else []
            self._send_headers(stream_id, flags, without(headers, _OURS) + own)

    def _send_headers(self, stream_id: int, flags: int, headers: Headers) -> None:
        self._to_triton += header_frames(headers, flags, stream_id, max_bytes=self.max_frame_bytes)

    def _take_data(self, frame: Frame) -> None:
        stream = self._streams.get(frame.stream_id)
        if stream is None:
            if frame.stream_id > self._streams.last_id:
                raise ProtocolError("data of a stream that did not begin")
            self._drop(frame)
            return
        if stream.is_held:
            self._refuse_held(frame.stream_id)
            self._drop(frame)
            return
        body = h2.body_of(frame)
        if not body:
            self._count_control()
        try:
            stream.messages.feed(body)
        except TooLarge as exc:
            self._refuse(frame.stream_id, grpc.StatusCode.RESOURCE_EXHAUSTED, str(exc))
        except RequestError as exc:
            self._refuse(frame.stream_id, grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        except Unavailable as exc:
            self._refuse(frame.stream_id, grpc.StatusCode.UNAVAILABLE, str(exc))
        else:
            stream.is_half_closed = bool(frame.flags & h2.END_STREAM)
            self._to_triton.append(frame.raw)
            return
        self._drop(frame)

    def _drop(self, frame: Frame) -> None:
        """Return a frame's bytes to the client's window of the connection, as Triton would have done."""
        if frame.payload:
            self.send(h2.give_back(len(frame.payload)))

    def _take_reset(self, frame: Frame) -> None:
        self._to_triton.append(self._streams.leave(frame.stream_id))
        self._to_triton.append(self.answers.end(frame.stream_id))

    def _count_control(self) -> None:
        self._num_control += 1
        if self._num_control > _MAX_CONTROL_FRAMES:
            raise ProtocolError(f"more than {_MAX_CONTROL_FRAMES} frames in a second that carry nothing")

    def _refuse_held(self, stream_id: int) -> None:
        if self._state.refusal is not None:
            self._refuse(stream_id, grpc.StatusCode.UNAVAILABLE, str(self._state.refusal))
        else:
            why = f"more than {_MAX_STREAMS} calls at once on one connection; open another"
            self._refuse(stream_id, grpc.StatusCode.RESOURCE_EXHAUSTED, why)

    def _refuse(self, stream_id: int, code: grpc.StatusCode, message: str) -> None:
        """End one call with an error; the others of the connection go on."""
        stream, to_triton = self._streams.refuse(stream_id)
        block = status_block(code.value[0], message, is_first=not stream.is_answered)
        self.send(h2.make_frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream_id, block))
        self.send(h2.reset(stream_id, h2.NO_ERROR))  # the rest of the client's message is of no use
        self._to_triton.append(to_triton)
        self._to_triton.append(self.answers.end(stream_id))

    def _end(self, code: int, why: str) -> None:
        if self._is_greeted:
            self.send(h2.go_away(self._streams.last_id, code, why))
        self.close()


def _take_any(_: bytes) -> None:
    """Accept any message."""
