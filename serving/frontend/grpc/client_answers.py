# SPDX-License-Identifier: Apache-2.0
"""The answers on their way to a client: Triton's frames, and what models send past Triton, within the client's windows.

What comes past Triton may be the first of a stream. Then the relay begins the answer, and leaves out how Triton begins.
"""

from collections.abc import Callable

from serving.frontend.grpc import http2_frames as h2
from serving.frontend.grpc.client_streams import ClientStreams
from serving.frontend.grpc.direct_responses import DirectResponses
from serving.frontend.grpc.header_blocks import answer_block, as_trailers
from serving.frontend.grpc.http2_frames import Frame
from serving.frontend.grpc.send_windows import SendWindows


class ClientAnswers:
    """The answers to the streams of one connection.

    Args:
        streams: of the connection.
        direct: brings what models send past Triton.
        send: sends whole frames to the client.
    """

    def __init__(self, streams: ClientStreams, direct: DirectResponses, send: Callable[[bytes], None]) -> None:
        self._streams, self._direct, self._send = streams, direct, send
        self._windows = SendWindows()
        self._taken: list[bytes] = []  # frames of responses that came past Triton, until all that came are here

    # As the client asks.

    def begin(self, stream_id: int) -> None:
        """Note a stream that the client has begun."""
        self._windows.begin(stream_id)

    def end(self, stream_id: int) -> bytes:
        """Forget what waits for a client on a stream; return what tells Triton that its part of that is gone."""
        lost = self._windows.end(stream_id)
        return h2.give_back(lost) if lost else b""

    def take_settings(self, settings: bytes) -> bytes:
        """Take the payload of a client's settings; return the frame for Triton.

        Triton gets no table for headers, so that no block of headers depends on one before it.
        """
        self._windows.set_first(h2.setting_of(settings, h2.INITIAL_WINDOW_SIZE))
        return h2.with_setting(settings, h2.HEADER_TABLE_SIZE, 0)

    def take_window(self, frame: Frame) -> bytes:
        """Take a frame with which the client gives its window back; return the frame for Triton, which may be none."""
        num_bytes = h2.given_back(frame.payload)
        if not num_bytes:  # Triton ends the connection
            return frame.raw
        of_triton, frames = self._windows.give(frame.stream_id, num_bytes)
        self._send(frames)
        is_told = of_triton and self._streams.is_tritons(frame.stream_id)
        return h2.give_back(of_triton, frame.stream_id) if is_told else b""

    # As Triton answers.

    def drain(self) -> None:
        """Send what models have written past Triton before what Triton says now."""
        if self._streams.has_direct:
            self._direct.drain()

    def acknowledge(self) -> bytes:
        """Take Triton's word that it has read the client's settings; return the frames that may go then."""
        return self._windows.acknowledge()

    def data(self, flags: int, stream_id: int, payload: memoryview) -> bytes | None:
        """Return what goes to the client in place of a frame of data; None: the frame as it is."""
        if self._windows.spend(stream_id, len(payload)):
            instead = None
        else:
            data = h2.body_of(Frame(h2.DATA, flags, stream_id, bytes(payload), b""))
            instead = self._windows.wait(stream_id, flags, data)
        if flags & h2.END_STREAM:
            self.frames(h2.DATA, flags, stream_id, b"")
        return instead

    def frames(self, kind: int, flags: int, stream_id: int, frames: bytes) -> bytes:
        """Return what goes to the client of frames that are no data: headers, or the end of a stream."""
        is_last = kind == h2.RST_STREAM or bool(flags & h2.END_STREAM)
        is_dropped = self._streams.is_dropped(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None and stream.is_headed_here and kind == h2.HEADERS:
            stream.is_headed_here = False
            frames = as_trailers(frames, stream_id, max_bytes=h2.LEAST_MAX_FRAME_BYTES) if is_last else b""
        self._streams.note_answer(kind, flags, stream_id)
        if is_dropped:
            return b""
        if self._windows.is_waiting(stream_id):
            self._windows.wait_behind(stream_id, frames, is_last=is_last)
            return b""
        if is_last:
            self._windows.end(stream_id)
        return frames

    # As models send responses past Triton.

    def take_direct(self, stream_id: int, message: bytes) -> None:
        """Take a response for a stream; it is sent with the next `flush_direct`."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not stream.is_answered:
            stream.is_answered = stream.is_headed_here = True
            self._taken.append(h2.make_frame(h2.HEADERS, h2.END_HEADERS, stream_id, answer_block()))
        self._taken.append(self._windows.own(stream_id, message))

    def flush_direct(self) -> None:
        """Send the responses that were taken."""
        self._send(b"".join(self._taken))
        self._taken.clear()
