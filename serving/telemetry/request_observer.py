# SPDX-License-Identifier: Apache-2.0
"""The observer of a request's life: it takes each event once, and passes it on to every listener.

Listeners are a request's trace with its line of the log (`request_trace`, where the deployment asks for either), the
metrics (`request_metrics`), the outcome that a rollout is told (`request_outcome`), and the times that a response may
have. A new event is a method here; a new listener is a
line in the methods of its events. Events in the engine's process come with the chunks, as `PerfMetrics`. The work of a
step belongs to no request: `step_account` sums it up in the engine's process.
"""

import time
from dataclasses import dataclass

from serving.engines.seam.base import TokenChunk
from serving.engines.seam.scheduling import Scheduling
from serving.requests.stream_state import StreamContext
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_outcome import OutcomeRecorder
from serving.telemetry.request_trace import RequestTrace
from serving.telemetry.sequence_life import SequenceLife
from serving.telemetry.trace_context import read_context
from trireme.base.errors import ServingError


class RequestObserver:
    """The observer of one request in one adapter, made at the request's arrival and used until its last response.

    Args:
        trace: trace of the request; None: neither spans nor lines of the log are asked for.
        outcome: recorder of the outcome; None: no rollout compares the request.
    """

    __slots__ = ("_outcome", "_trace")

    def __init__(self, trace: RequestTrace | None = None, outcome: OutcomeRecorder | None = None) -> None:
        self._trace = trace
        self._outcome = outcome

    def with_outcome(self, outcome: OutcomeRecorder) -> "RequestObserver":
        """Return an observer of the same request that records an outcome, too."""
        return RequestObserver(self._trace, outcome)

    @property
    def told(self) -> dict[str, str]:
        """Return the fields that name the request in a line of the log; empty without a trace."""
        return {} if self._trace is None else self._trace.told

    @property
    def traceparent(self) -> str:
        """Return the trace context for the next step; empty: none, or the next step sees the caller's context."""
        return "" if self._trace is None else self._trace.handed_on()

    def note_release(self, version: str) -> None:
        """Note the release that serves the request instead of the adapter's own release."""
        if self._trace is not None:
            self._trace.release = version

    def note_tokenized(self) -> None:
        """Note that the text has become token ids."""
        if self._trace is not None:
            self._trace.note_tokenized()

    def note_read(self, scheduling: Scheduling, context: StreamContext | None) -> None:
        """Note the request's tenant and priority, and the trace of the previous step."""
        if self._trace is not None:
            earlier = None if context is None else read_context(context.traceparent)
            self._trace.note_read(scheduling, earlier)

    def begin_sequence(
        self, metrics: RequestMetrics, *, num_prompt_tokens: int, kv_block_tokens: int
    ) -> "SequenceObserver":
        """Begin to observe one sequence of the request, which is on its way to the engine.

        Args:
            metrics: metrics of the release that serves the request.
            num_prompt_tokens: tokens of the prompt.
            kv_block_tokens: tokens in a block of the engine's cache.
        """
        return SequenceObserver(num_prompt_tokens, kv_block_tokens, self, metrics)

    def note_sequence_end(self, chunk: TokenChunk, life: SequenceLife) -> None:
        """Note that a sequence of the request has had its last chunk."""
        if self._trace is not None:
            self._trace.note_end(chunk, life)
        if self._outcome is not None:
            self._outcome.note_end(chunk, life)

    def end_step(self, name: str) -> None:
        """Note that the request has passed the step `name` of several, and goes on in the next step."""
        if self._trace is not None:
            self._trace.end_step(name)

    def end(self, error: ServingError | None = None) -> None:
        """Note that the request has had its last response, or `error` instead; only the first end counts."""
        if self._trace is not None:
            self._trace.end(error)


UNTRACED = RequestObserver()  # shared by all requests of which neither spans nor lines of the log are asked for


@dataclass(slots=True)
class SequenceObserver(SequenceLife):
    """The observer of one sequence of a request on its way through the engine."""

    request: RequestObserver
    metrics: RequestMetrics

    def note_chunk(self, chunk: TokenChunk) -> None:
        """Note that a chunk has come out of the engine: the first token, more tokens, or the end."""
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
        """Note that the sequence never reached the engine."""
        self.metrics.note_refusal()
