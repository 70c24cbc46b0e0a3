# SPDX-License-Identifier: Apache-2.0
"""The group of a request's sequences (a batch, `num_return_sequences`), generated one by one, with one sink.

The sink sees one request: replies that name their sequence, of which the very last is final, or one error.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from serving.engines.seam.base import SamplingParams
from serving.pipeline.running_request import Reply, ReplySink
from serving.requests.stream_state import StreamContext
from trireme.base.errors import ServingError

_SEED_MASK = (1 << 64) - 1


def sampling_of(sampling: SamplingParams, index: int) -> SamplingParams:
    """Return the sampling of the prompt's sequence `index`: with a seed of its own, the given seed + index."""
    if sampling.seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index) & _SEED_MASK)


def context_of(context: StreamContext | None, index: int) -> StreamContext | None:
    """Return the stream of sequence `index`, under a name that the request owns; postprocessing keeps its text."""
    return None if context is None else msgspec.structs.replace(context, key=context.key + index)


class Member(NamedTuple):
    """The place of a sequence in its request."""

    batch_index: int | None  # of its prompt; None: the request has one
    sequence_index: int | None  # among those of its prompt; None: that has one


class SequenceGroup:
    """The sequences of one request on their way to its sink.

    Args:
        sink: sink of the request.
        members: the sequences, more than one.
        on_failure: called once when a sequence has failed, and the request with it, to stop every other sequence.
    """

    def __init__(self, sink: ReplySink, members: Sequence[Member], *, on_failure: Callable[[], None]) -> None:
        self.takes_one = sink.takes_one
        self.named_outputs = sink.named_outputs
        self._sink = sink
        self._num_open = len(members)
        self._on_failure = on_failure
        # Held over every call to the sink: Triton frees a request with its last response, on any thread.
        self._lock = threading.Lock()
        self._is_over = False
        self.sinks: list[ReplySink] = [_SequenceSink(self, member) for member in members]

    def send(self, reply: Reply, member: Member) -> None:
        """Send a reply of one sequence; it is the request's last reply if no other sequence is open."""
        with self._lock:
            if self._is_over:
                return
            self._num_open -= reply.is_final
            self._is_over = self._num_open == 0
            self._sink.send(
                msgspec.structs.replace(
                    reply,
                    is_final=self._is_over,
                    batch_index=member.batch_index,
                    sequence_index=member.sequence_index,
                )
            )

    def fail(self, error: ServingError) -> None:
        """Fail the request with the error of the first sequence that fails."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._sink.fail(error)
        self._on_failure()

    def is_cancelled(self) -> bool:
        """Return whether no client waits for the replies any more."""
        with self._lock:
            return not self._is_over and self._sink.is_cancelled()


class _SequenceSink:
    """The sink of one sequence."""

    def __init__(self, group: SequenceGroup, member: Member) -> None:
        self._group = group
        self._member = member
        self.takes_one = group.takes_one
        self.named_outputs = group.named_outputs
        self.fail = group.fail
        self.is_cancelled = group.is_cancelled

    def send(self, reply: Reply) -> None:
        self._group.send(reply, self._member)
