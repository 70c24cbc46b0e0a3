# SPDX-License-Identifier: Apache-2.0
"""The observer of a request's life: each event is told here, once, and here it is told to everybody who listens.

Listeners are a request's trace with its line of the log (`request_trace`, where the deployment asks for either), the
metrics (`request_metrics`), and the times that a response may have. A new event is a method here, a new listener a line
in those that it listens to. What happens in the engine's process comes with the chunks, as `PerfMetrics`; what a step
did is no request's, and `step_account` sums it up there.
"""

import time
from dataclasses import dataclass

from serving.engines.seam.base import TokenChunk
from serving.engines.seam.scheduling import Scheduling
from serving.requests.stream_state import StreamContext
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_trace import RequestTrace
from serving.telemetry.sequence_life import SequenceLife
from serving.telemetry.trace_context import read_context
from trireme.base.errors import ServingError


class RequestObserver:
    """One request in one adapter, from its arrival, with which this is made, to its last response.

    Args:
        trace: the request's; None: neither spans nor lines of the log are asked for.
    """

    __slots__ = ("_trace",)

    def __init__(self, trace: RequestTrace | None = None) -> None:
        self._trace = trace

    @property
    def told(self) -> dict[str, str]:
        """Return what a line of the log has to say of the request; empty without a trace."""
        return {} if self._trace is None else self._trace.told

    @property
    def traceparent(self) -> str:
        """Return what the step behind this one joins; empty: nothing, or it can see the caller's as well."""
        return "" if self._trace is None else self._trace.handed_on()

    def note_release(self, version: str) -> None:
        """Note that another release than the adapter's own serves the request."""
        if self._trace is not None:
            self._trace.release = version

    def note_tokenized(self) -> None:
        """Note that the text has become token ids."""
        if self._trace is not None:
            self._trace.note_tokenized()

    def note_read(self, scheduling: Scheduling, context: StreamContext | None) -> None:
        """Note what the request says of itself, and in which trace the step before this one was."""
        if self._trace is not None:
            earlier = None if context is None else read_context(context.traceparent)
            self._trace.note_read(scheduling, earlier)

    def begin_sequence(
        self, metrics: RequestMetrics, *, num_prompt_tokens: int, kv_block_tokens: int
    ) -> "SequenceObserver":
        """Begin to observe one sequence of the request, which is on its way to the engine.

        Args:
            metrics: of the release that serves it.
            num_prompt_tokens: its prompt's.
            kv_block_tokens: tokens in a block of the engine's cache.
        """
        return SequenceObserver(num_prompt_tokens, kv_block_tokens, self, metrics)

    def note_sequence_end(self, chunk: TokenChunk, life: SequenceLife) -> None:
        """Note that a sequence of the request has had its last chunk."""
        if self._trace is not None:
            self._trace.note_end(chunk, life)

    def end_step(self, name: str) -> None:
        """Note that the request has passed one step of several, and goes on in the next."""
        if self._trace is not None:
            self._trace.end_step(name)

    def end(self, error: ServingError | None = None) -> None:
        """Note that the request has had its last response, or `error` instead of one; only the first end counts."""
        if self._trace is not None:
            self._trace.end(error)


UNTRACED = RequestObserver()  # shared by all requests of which neither spans nor lines of the log are asked for


@dataclass(slots=True)
class SequenceObserver(SequenceLife):
    """One sequence of a request on its way through the engine."""

    request: RequestObserver
    metrics: RequestMetrics

    def note_chunk(self, chunk: TokenChunk) -> None:
        """Note that a chunk has come out of the engine: the first token, more of them, or the end."""
        if chunk.token_ids:
            now_s = time.monotonic()
            if self.num_tokens:
                self.metrics.note_gap(now_s - self.last_s)
            else:
                self.metrics.note_first_token(now_s - self.arrival_s)
                self.first_s = now_s
            self.num_tokens += len(chunk.token_ids)
            self.last_s = now_s
        if chunk.finish_reason is not None or chunk.error is not None:
            self.metrics.note_end(chunk, self)
            self.request.note_sequence_end(chunk, self)

    def note_refusal(self) -> None:
        """Note that the engine never had the sequence."""
        self.metrics.note_refusal()
