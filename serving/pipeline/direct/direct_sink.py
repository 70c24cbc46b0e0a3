# SPDX-License-Identifier: Apache-2.0
"""The sink whose responses go past Triton, all but the last of a request (`serving.pipeline.direct.direct_replies`)."""

from typing import Protocol

from serving.pipeline.direct.direct_replies import DirectWay
from serving.requests.stream_message import StreamMessages
from serving.requests.tensor_sink import Tensors, TensorSink
from trireme.base.errors import ServingError, Unavailable

_MAX_BYTES = 1_000_000  # of a response's tensors: more is logits


class NamedSink(TensorSink, Protocol):
    """A sink that knows the names of the outputs that its request wants."""

    names: frozenset[str]


class DirectSink:
    """The sink of a request whose frontend is reached.

    Args:
        sink: the way through Triton, for the last response or the error.
        way: the way to the frontend.
        stream_name: the frontend's name of the stream.
        messages: writes the responses.
    """

    takes_one = False

    def __init__(self, sink: NamedSink, way: DirectWay, stream_name: str, messages: StreamMessages) -> None:
        self._sink = sink
        self._way = way
        self._stream_name = stream_name.encode()
        self._messages = messages
        self._is_begun = False
        self._is_through = False  # a large response went through Triton, and none may overtake it
        self.named_outputs = sink.named_outputs

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        """Keep one response for the frontend; send the last one through Triton, behind all that was kept.

        A large one goes through Triton, too, and all that follow it: each frontend has one way, which it would hold up.
        """
        self._is_through = self._is_through or sum(each.nbytes for each in tensors.values()) > _MAX_BYTES
        if not is_final and not self._is_through:
            self._is_begun = True
            wanted = {name: tensor for name, tensor in tensors.items() if name in self._sink.names}
            self._way.put(self._stream_name, self._messages.message(wanted))
        elif self._is_written():
            self._sink.send(tensors, is_final=is_final)
        elif is_final:
            self._sink.fail(
                Unavailable(
                    "the server's frontend did not take the whole answer; send it again", reason="frontend_died"
                )
            )

    def is_cancelled(self) -> bool:
        """Return whether the client has gone; its frontend tells while it is there (`serving.process.left_streams`)."""
        return not self._way.is_there() and self._sink.is_cancelled()

    def fail(self, error: ServingError) -> None:
        """Send an error through Triton, behind all that was kept."""
        self._is_written()
        self._sink.fail(error)

    def _is_written(self) -> bool:
        """Write what was kept; return whether everything of this request has reached the frontend."""
        if self._is_begun:
            self._way.flush()
        return not self._is_begun or self._way.is_open
