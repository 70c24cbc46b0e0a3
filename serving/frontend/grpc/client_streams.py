# SPDX-License-Identifier: Apache-2.0
"""The streams of one connection of a client: running, left by the client, and refused.

Triton 2.51 does not see a client leave: its handlers leak memory at a cancelled stream, and crash where the model's
answer comes at the same moment. The models are told, and Triton sees a client that has said all that it had to say;
what still comes is dropped. Only a stream that has not ended a while later is reset.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from serving.frontend.common.departures import Departures
from serving.frontend.grpc import http2_frames as h2
from serving.frontend.grpc.direct_responses import DirectResponses, Taker
from serving.frontend.grpc.grpc_messages import MessageReader

_MESSAGE_S = 30.0  # for the rest of a message, and as long as a slow line may take
_LEAST_BYTES_PER_S = 262_144
_MAX_REFUSED = 256  # refused streams with late frames still expected
# For the models to answer a stream that its client has left: a step, and what Triton has queued in its own ensemble.
_WIND_UP_S = 20.0
# For Triton to end a stream with nothing running any more. Only a model that is not told may still run then.
_WIND_UP_UNTOLD_S = 0.5
# What the client had not acknowledged when it left is lost to the window. What comes then is given back here.
_WINDOW_BYTES = 65_535


@dataclass(slots=True)
class ClientStream:
    """A call of gRPC."""

    name: str  # to the models, which are told when its client leaves
    messages: MessageReader
    is_answered: bool = False  # headers of an answer have been sent: Triton's, or the relay's own
    is_headed_here: bool = False  # they are the relay's own, and Triton's are still to come
    # Triton does not know of it: it is refused with its first message, since a client that has not sent one yet does
    # not look for an answer.
    is_held: bool = False
    is_half_closed: bool = False  # its client has said that it sends no more
    are_models_told: bool = True  # each model that it asks hears of clients that leave
    is_pinned: bool = False  # it has named a version of a model, so no split may move it
    is_direct: bool = False  # responses may come for it past Triton


class ClientStreams:
    """The streams of a connection, by the ids that HTTP/2 gives them."""

    def __init__(self, departures: Departures, direct: DirectResponses) -> None:
        self._departures = departures
        self._direct = direct
        self._running: dict[int, ClientStream] = {}
        self._refused: dict[int, None] = {}
        self._ending: dict[int, float] = {}  # streams that were left, and until when they may go on
        self._num_direct = 0
        self.last_id = 0

    def __len__(self) -> int:
        """Return how many streams run."""
        return len(self._running)

    def begin(self, stream_id: int, stream: ClientStream) -> None:
        """Add a stream; its id is higher than all before it."""
        self.last_id = stream_id
        self._running[stream_id] = stream

    def pin(self, stream: ClientStream) -> None:
        """Note that a stream names a version, before the last byte of its request goes on."""
        if not stream.is_pinned:
            stream.is_pinned = True
            self._departures.pin(stream.name)

    def get(self, stream_id: int) -> ClientStream | None:
        """Return the running stream with an id; None: there is none."""
        return self._running.get(stream_id)

    def name_to(self, model: str, stream_id: int, taker: Taker) -> None:
        """Name a request of a stream to its model, before Triton has the last byte of the request.

        Args:
            model: may then answer past Triton, if it is connected.
            stream_id: of the stream.
            taker: takes the answers.
        """
        if not self._direct.has(model):
            return
        stream = self._running[stream_id]
        if not stream.is_direct:
            stream.is_direct = True
            self._num_direct += 1
            self._direct.expect(stream.name, taker, stream_id)
        self._direct.name(model, stream.name)

    @property
    def has_direct(self) -> bool:
        """Return whether responses may come for a stream past Triton."""
        return self._num_direct > 0

    @property
    def is_winding_up(self) -> bool:
        """Return whether Triton still answers streams that were left."""
        return bool(self._ending)

    def leave(self, stream_id: int) -> bytes:
        """Remove a stream that its client ends; return the bytes that tell Triton."""
        stream = self._running.get(stream_id)
        if stream is None or stream.is_held:
            self._end(stream_id)
            return b""
        if stream.messages.since_s is not None:  # Triton would wait for the rest
            return self._reset(stream_id, stream)
        self._end(stream_id)
        self._departures.leave([stream.name])
        self._ending[stream_id] = time.monotonic() + (_WIND_UP_S if stream.are_models_told else _WIND_UP_UNTOLD_S)
        window = h2.give_back(_WINDOW_BYTES, stream_id)
        return window if stream.is_half_closed else window + h2.make_frame(h2.DATA, h2.END_STREAM, stream_id)

    def leave_all(self) -> bytes:
        """Remove all streams, as the connection has ended; return the bytes that tell Triton."""
        return b"".join([h2.give_back(_WINDOW_BYTES), *map(self.leave, list(self._running))])

    def refuse(self, stream_id: int) -> tuple[ClientStream, bytes]:
        """Remove a stream that is refused; return the stream, and the bytes that tell Triton."""
        stream = self._running[stream_id]
        if stream.is_held:
            self._end(stream_id)
            self._drop(stream_id)
            return stream, b""
        return stream, self._reset(stream_id, stream)

    def overdue(self, now_s: float) -> bytes:
        """Return the bytes that reset the streams which were left and do not end."""
        late = [stream_id for stream_id, until_s in self._ending.items() if now_s > until_s]
        for stream_id in late:
            del self._ending[stream_id]
            self._drop(stream_id)
        return b"".join(h2.reset(stream_id, h2.CANCEL) for stream_id in late)

    def is_dropped(self, stream_id: int) -> bool:
        """Return whether Triton's frames of a stream are dropped."""
        return stream_id in self._refused or stream_id in self._ending

    def is_tritons(self, stream_id: int) -> bool:
        """Return whether Triton may be told of a stream."""
        stream = self._running.get(stream_id)
        return not self.is_dropped(stream_id) and (stream is None or not stream.is_held)

    def note_answer(self, frame_kind: int, flags: int, stream_id: int) -> None:
        """Follow a stream by the head of a frame of Triton's."""
        stream = self._running.get(stream_id)
        if stream is not None:
            stream.is_answered = stream.is_answered or frame_kind == h2.HEADERS
        if frame_kind == h2.RST_STREAM or flags & h2.END_STREAM:
            self._end(stream_id)
            self._ending.pop(stream_id, None)

    def late(self, now_s: float) -> Iterator[int]:
        """Yield the streams on which the rest of a message takes too long."""
        for stream_id, stream in list(self._running.items()):
            since_s = stream.messages.since_s
            if since_s is not None and now_s - since_s > _MESSAGE_S + stream.messages.num_bytes / _LEAST_BYTES_PER_S:
                yield stream_id

    def _reset(self, stream_id: int, stream: ClientStream) -> bytes:
        self._end(stream_id)
        self._drop(stream_id)
        self._departures.leave_later([stream.name])
        return h2.reset(stream_id, h2.CANCEL)

    def _drop(self, stream_id: int) -> None:
        self._refused[stream_id] = None
        if len(self._refused) > _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _end(self, stream_id: int) -> ClientStream | None:
        stream = self._running.pop(stream_id, None)
        if stream is not None:
            stream.messages.close()
            if stream.is_pinned:
                self._departures.unpin(stream.name)
            if stream.is_direct:
                self._num_direct -= 1
                self._direct.forget(stream.name)
        return stream
