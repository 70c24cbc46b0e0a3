# SPDX-License-Identifier: Apache-2.0
"""The streams of one connection of a client: those that run, and those that were refused."""

from collections.abc import Iterator
from dataclasses import dataclass

from serving.frontend import http2_frames as h2
from serving.frontend.departures import Departures
from serving.frontend.grpc_messages import MessageReader

_MESSAGE_S = 30.0  # for the rest of a message, and as long as a slow line may take
_LEAST_BYTES_PER_S = 262_144
_MAX_REFUSED = 256  # of which late frames are still expected


@dataclass(slots=True)
class ClientStream:
    """A call of gRPC."""

    name: str  # to the models, which are told when its client leaves
    messages: MessageReader
    is_answered: bool = False  # Triton's headers have been sent on
    # Triton does not know of it: it is refused with its first message, since a client that has not sent one yet does
    # not look for an answer.
    is_held: bool = False


class ClientStreams:
    """By the ids that HTTP/2 gives them."""

    def __init__(self, departures: Departures) -> None:
        self._departures = departures
        self._running: dict[int, ClientStream] = {}
        self._refused: dict[int, None] = {}
        self.last_id = 0

    def __len__(self) -> int:
        """Return how many run."""
        return len(self._running)

    def begin(self, stream_id: int, stream: ClientStream) -> None:
        """Add one; its id is higher than all before it."""
        self.last_id = stream_id
        self._running[stream_id] = stream

    def get(self, stream_id: int) -> ClientStream | None:
        """Return one that runs."""
        return self._running.get(stream_id)

    def leave(self, stream_id: int) -> ClientStream | None:
        """Take out one that its client ends, and tell the models."""
        stream = self._end(stream_id)
        if stream is not None and not stream.is_held:
            self._departures.leave([stream.name])
        return stream

    def leave_all(self) -> None:
        """Take out all, as the connection has ended."""
        for stream_id in list(self._running):
            self.leave(stream_id)

    def refuse(self, stream_id: int) -> ClientStream:
        """Take out one that is refused; what still comes of it is for nobody."""
        stream = self._running[stream_id]
        self.leave(stream_id)
        self._refused[stream_id] = None
        if len(self._refused) > _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        return stream

    def is_refused(self, stream_id: int) -> bool:
        """Return whether it was refused, a short while ago."""
        return stream_id in self._refused

    def is_tritons(self, stream_id: int) -> bool:
        """Return whether Triton may be told of it."""
        stream = self._running.get(stream_id)
        return stream_id not in self._refused and (stream is None or not stream.is_held)

    def note_answer(self, frame_kind: int, flags: int, stream_id: int) -> None:
        """Follow one by the head of a frame of Triton's."""
        stream = self._running.get(stream_id)
        if stream is None:
            return
        stream.is_answered = stream.is_answered or frame_kind == h2.HEADERS
        if frame_kind == h2.RST_STREAM or flags & h2.END_STREAM:
            self._end(stream_id)

    def late(self, now_s: float) -> Iterator[int]:
        """Yield those of which the rest of a message takes too long."""
        for stream_id, stream in list(self._running.items()):
            since_s = stream.messages.since_s
            if since_s is not None and now_s - since_s > _MESSAGE_S + stream.messages.num_bytes / _LEAST_BYTES_PER_S:
                yield stream_id

    def _end(self, stream_id: int) -> ClientStream | None:
        stream = self._running.pop(stream_id, None)
        if stream is not None:
            stream.messages.close()
        return stream
