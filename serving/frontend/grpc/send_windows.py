# SPDX-License-Identifier: Apache-2.0
"""The windows of HTTP/2 towards a client (RFC 9113, section 5.2): how much it takes, on each stream and on all.

Client and Triton keep windows between them, and the relay passes them on. What the relay sends by itself is of the
client's windows, too, and Triton does not know of that. So what the client gives back is first for the relay's own
bytes; Triton hears of the rest. Until then Triton may send more than the client takes, and the relay keeps frames back.
"""

from collections import deque
from enum import IntEnum
from typing import NamedTuple

from serving.frontend.grpc import http2_frames as h2

_FIRST_WINDOW = 65_535  # of a connection, and of each stream until the client says otherwise
_FRAME_BYTES = h2.LEAST_MAX_FRAME_BYTES


class _Sender(IntEnum):
    RELAY, TRITON = range(2)


class _Waiting(NamedTuple):
    sender: _Sender
    flags: int
    data: bytes | memoryview
    is_whole: bool = False  # it is frames without a window, such as headers


class _Stream:
    __slots__ = ("is_ending", "left", "owed", "waiting")

    def __init__(self, left: int) -> None:
        self.left = left
        self.owed = 0  # of the relay's own bytes, not given back yet
        self.waiting: deque[_Waiting] = deque()
        self.is_ending = False  # with the last of what waits


class SendWindows:
    """The windows of one connection of a client, and the frames that wait for them."""

    def __init__(self) -> None:
        self._left = _FIRST_WINDOW
        self._owed = 0
        self._first = _FIRST_WINDOW
        self._settings: deque[int | None] = deque()  # not acknowledged yet: a stream's first window, if they say one
        self._streams: dict[int, _Stream] = {}
        self._waiting: dict[int, _Stream] = {}

    def begin(self, stream_id: int) -> None:
        """Note a stream that the client has begun."""
        self._streams[stream_id] = _Stream(self._first)

    def end(self, stream_id: int) -> int:
        """Forget a stream and what waits on it; return how many bytes of Triton's the client does not get."""
        stream = self._streams.pop(stream_id, None)
        self._waiting.pop(stream_id, None)
        if stream is None:
            return 0
        return sum(len(each.data) for each in stream.waiting if each.sender == _Sender.TRITON and not each.is_whole)

    def is_waiting(self, stream_id: int) -> bool:
        """Return whether frames of a stream wait."""
        return stream_id in self._waiting

    def spend(self, stream_id: int, num_bytes: int) -> bool:
        """Take the window for data of Triton's; return False, and take nothing, where it has to wait."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._left -= num_bytes
            return True
        if stream.waiting or num_bytes > stream.left or num_bytes > self._left:
            return False
        stream.left -= num_bytes
        self._left -= num_bytes
        return True

    def own(self, stream_id: int, message: bytes) -> bytes:
        """Return the frames that carry a message of the relay's own as far as the windows allow; the rest waits."""
        stream, size = self._streams.get(stream_id), len(message)
        if stream is None:
            return b""
        if not stream.waiting and size <= stream.left and size <= self._left and size <= _FRAME_BYTES:
            self._spend(stream, size, _Sender.RELAY)
            return h2.make_frame(h2.DATA, 0, stream_id, message)
        return self._wait(stream_id, stream, _Waiting(_Sender.RELAY, 0, memoryview(message)))

    def wait(self, stream_id: int, flags: int, data: bytes) -> bytes:
        """Keep data of Triton's that `spend` did not take; return the frames that may go now."""
        return self._wait(stream_id, self._streams[stream_id], _Waiting(_Sender.TRITON, flags, memoryview(data)))

    def wait_behind(self, stream_id: int, frames: bytes, *, is_last: bool) -> None:
        """Keep frames without a window, such as headers, behind the data that waits."""
        stream = self._waiting[stream_id]
        stream.waiting.append(_Waiting(_Sender.TRITON, 0, frames, is_whole=True))
        stream.is_ending = stream.is_ending or is_last

    def give(self, stream_id: int, num_bytes: int) -> tuple[int, bytes]:
        """Take what the client gives back. Args: `stream_id`: 0: on the connection.

        Returns:
            What is Triton's of it, and the frames that may go now.
        """
        if stream_id == 0:
            ours = min(num_bytes, self._owed)
            self._owed -= ours
            self._left += num_bytes
            return num_bytes - ours, self._flush_all()
        stream = self._streams.get(stream_id)
        if stream is None:
            return num_bytes, b""
        ours = min(num_bytes, stream.owed)
        stream.owed -= ours
        stream.left += num_bytes
        return num_bytes - ours, self._flush(stream_id, stream)

    def set_first(self, num_bytes: int | None) -> None:
        """Take the client's settings, of which one may be a stream's first window; they hold once it knows."""
        self._settings.append(num_bytes)

    def acknowledge(self) -> bytes:
        """Take Triton's acknowledgement of the client's settings; return the frames that may go behind it."""
        num_bytes = self._settings.popleft() if self._settings else None
        if num_bytes is None:
            return b""
        more, self._first = num_bytes - self._first, num_bytes
        for stream in self._streams.values():
            stream.left += more
        return self._flush_all()

    def _wait(self, stream_id: int, stream: _Stream, what: _Waiting) -> bytes:
        self._waiting[stream_id] = stream
        stream.waiting.append(what)
        stream.is_ending = stream.is_ending or bool(what.flags & h2.END_STREAM)
        return self._flush(stream_id, stream)

    def _flush_all(self) -> bytes:
        return b"".join([self._flush(stream_id, stream) for stream_id, stream in list(self._waiting.items())])

    def _flush(self, stream_id: int, stream: _Stream) -> bytes:
        frames, waiting = list[bytes](), stream.waiting
        while waiting:
            first = waiting[0]
            if first.is_whole:
                frames.append(bytes(first.data))
                waiting.popleft()
                continue
            size = min(len(first.data), stream.left, self._left, _FRAME_BYTES)
            if size < len(first.data):
                if size <= 0:
                    break
                waiting[0] = first._replace(data=first.data[size:])
                frames.append(h2.make_frame(h2.DATA, 0, stream_id, bytes(first.data[:size])))
            else:
                waiting.popleft()
                frames.append(h2.make_frame(h2.DATA, first.flags, stream_id, bytes(first.data)))
            self._spend(stream, size, first.sender)
        if not waiting:
            self._waiting.pop(stream_id, None)
            if stream.is_ending:
                self._streams.pop(stream_id, None)
        return b"".join(frames)

    def _spend(self, stream: _Stream, size: int, sender: _Sender) -> None:
        stream.left -= size
        self._left -= size
        if sender == _Sender.RELAY:
            stream.owed += size
            self._owed += size
