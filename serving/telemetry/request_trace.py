# SPDX-License-Identifier: Apache-2.0
"""The trace of one request in one adapter: notes while the request runs, spans and a line of the log at its end.

The notes cost a few assignments for a request, and nothing for a token. A span for the request itself holds one for
each sequence in the engine, whose events come from the engine's process with the last chunk.
"""

import logging
import time
from typing import Protocol

import msgspec

from serving.engines.seam.base import PerfMetrics, TokenChunk
from serving.engines.seam.scheduling import Priority, Scheduling
from serving.telemetry.sequence_life import SequenceLife
from serving.telemetry.span_record import Attribute, SpanRecord, told_of
from serving.telemetry.trace_context import TraceContext
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.request")

ENGINE_SPAN = "engine"


class Export(Protocol):
    """The receiver of spans and of times to the first token."""

    def span(self, record: SpanRecord) -> None:
        """Send a span that is over."""

    def first_token(self, seconds: float, labels: dict[str, str], context: TraceContext) -> None:
        """Count the time in seconds from a request's arrival to its first token."""


class Adapter(msgspec.Struct, frozen=True):
    """The adapter that takes requests, and the spans and log lines that it makes of them."""

    model: str
    version: str
    export: Export | None  # None: no spans
    logs: str = "none"  # which requests have a line in the log: none, failed, all


class RequestTrace:
    """The notes of one request, from which its spans and its line of the log are made.

    Args:
        parent: span of the caller; None: there is none.
        context: span of the request, sampled or not.
    """

    __slots__ = (
        "_adapter",
        "_end_reasons",
        "_first_token_ns",
        "_is_over",
        "_num_prompt_tokens",
        "_num_tokens",
        "_parent",
        "_scheduling",
        "_start_ns",
        "_tokenized_ns",
        "context",
        "release",
        "request_id",
    )

    def __init__(self, adapter: Adapter, context: TraceContext, parent: TraceContext | None, request_id: str) -> None:
        self._adapter = adapter
        self._parent = parent
        self._start_ns = time.time_ns()
        self._tokenized_ns = 0
        self._first_token_ns = 0
        self._scheduling: Scheduling | None = None
        self._num_prompt_tokens = self._num_tokens = 0
        self._end_reasons: list[str] = []
        self._is_over = False
        self.context = context
        self.request_id = request_id
        self.release = adapter.version

    @property
    def told(self) -> dict[str, str]:
        """Return the fields that name the request in a line of the log."""
        told = {"request_id": self.request_id, "release": self.release, "model": self._adapter.model}
        if self._scheduling is not None and self._scheduling.tenant:
            told["tenant"] = self._scheduling.tenant
        return told | {"trace_id": f"{self.context.trace_id:032x}"}

    def handed_on(self) -> str:
        """Return the trace context for the next step; empty where the next step sees the caller's context."""
        return "" if self._parent is not None else self.context.traceparent

    def note_tokenized(self) -> None:
        """Note that the text has become token ids."""
        self._tokenized_ns = time.time_ns()

    def note_read(self, scheduling: Scheduling, earlier: TraceContext | None) -> None:
        """Note tenant and priority, and join the trace of the previous step, unless the caller's trace is known.

        Args:
            scheduling: tenant and urgency of the request.
            earlier: span of the previous step; None: there is none.
        """
        self._scheduling = scheduling
        if self._parent is None and earlier is not None:
            self._parent = earlier
            self.context = earlier.child()

    def note_end(self, chunk: TokenChunk, life: SequenceLife) -> None:
        """Note that a sequence of the request has had its last chunk."""
        reason = "error" if chunk.finish_reason is None else str(chunk.finish_reason)
        self._end_reasons.append(reason)
        self._num_prompt_tokens = max(self._num_prompt_tokens, life.num_prompt_tokens)
        self._num_tokens += life.num_tokens
        first_token_ns = life.first_token_ns
        if first_token_ns and (not self._first_token_ns or first_token_ns < self._first_token_ns):
            self._first_token_ns = first_token_ns
        export = self._adapter.export
        if export is not None and self.context.is_sampled:
            export.span(self._engine_span(chunk, life, reason))

    def end(self, error: ServingError | None = None) -> None:
        """Make the spans and the line of the log at the last reply, or at `error` instead; ignore later calls."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._tell(None if error is None else told_of(error), time.time_ns())
        except Exception:  # a request that cannot be traced must still be answered
            _log.exception("a request could not be told of", extra=self.told | {"is_of_request": True})

    def end_step(self, name: str) -> None:
        """Send the span of the step `name` that the request has passed; the request goes on in the next step."""
        self._is_over = True
        export = self._adapter.export
        if export is not None and self.context.is_sampled:
            export.span(
                SpanRecord(
                    name=name,
                    context=self.context,
                    parent=self._parent,
                    start_ns=self._start_ns,
                    end_ns=time.time_ns(),
                    attributes=self._attributes(),
                    is_entry=True,
                )
            )

    def _tell(self, error: str | None, now_ns: int) -> None:
        adapter, export = self._adapter, self._adapter.export
        if export is not None:
            if self._first_token_ns:
                labels = {"gen_ai.request.model": adapter.model, "trireme.release": self.release}
                export.first_token((self._first_token_ns - self._start_ns) / 1e9, labels, self.context)
            if self.context.is_sampled:
                export.span(self._own_span(error, now_ns))
        if adapter.logs == "all" or (adapter.logs == "failed" and error is not None):
            self._write_line(error, now_ns)

    def _write_line(self, error: str | None, now_ns: int) -> None:
        facts: dict[str, object] = {
            **self.told,
            "finish_reason": ",".join(self._end_reasons) or None,
            "num_input_tokens": self._num_prompt_tokens or None,
            "num_output_tokens": self._num_tokens,
            "ttft_ms": round((self._first_token_ns - self._start_ns) / 1e6, 3) if self._first_token_ns else None,
            "e2e_ms": round((now_ns - self._start_ns) / 1e6, 3),
        }
        level = logging.INFO if error is None else logging.WARNING
        message = "request done" if error is None else f"request failed: {error}"
        _log.log(level, message, extra={name: value for name, value in facts.items() if value is not None})

    def _own_span(self, error: str | None, now_ns: int) -> SpanRecord:
        attributes = self._attributes() | {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "trireme",
            "trireme.request_id": self.request_id,
            "gen_ai.usage.input_tokens": self._num_prompt_tokens,
            "gen_ai.usage.output_tokens": self._num_tokens,
            "gen_ai.response.finish_reasons": list(self._end_reasons),
            **({} if error is None else {"error.type": error.partition(" ")[0]}),
        }
        events = [("tokenized", self._tokenized_ns), ("first_token", self._first_token_ns)]
        return SpanRecord(
            name=f"text_completion {self._adapter.model}",
            context=self.context,
            parent=self._parent,
            start_ns=self._start_ns,
            end_ns=now_ns,
            attributes=attributes,
            events=[event for event in events if event[1]],
            error=error,
            is_entry=True,
        )

    def _engine_span(self, chunk: TokenChunk, life: SequenceLife, reason: str) -> SpanRecord:
        now_ns = time.time_ns()
        attributes = self._attributes() | {
            "gen_ai.usage.input_tokens": life.num_prompt_tokens,
            "gen_ai.usage.output_tokens": life.num_tokens,
            "gen_ai.response.finish_reasons": [reason],
        }
        told = {
            "trireme.cached_tokens": life.num_cached_tokens(chunk.perf),
            "trireme.preemptions": chunk.perf.num_preemptions if chunk.perf else None,
        }
        attributes |= {name: value for name, value in told.items() if value is not None}
        error = None if chunk.error is None else told_of(chunk.error)
        return SpanRecord(
            name=ENGINE_SPAN,
            context=self.context.child(),
            parent=self.context,
            start_ns=life.arrival_ns,
            end_ns=now_ns,
            attributes=attributes if error is None else attributes | {"error.type": error.partition(" ")[0]},
            events=_events(life, chunk.perf, now_ns),
            error=error,
        )

    def _attributes(self) -> dict[str, Attribute]:
        attributes: dict[str, Attribute] = {
            "gen_ai.request.model": self._adapter.model,
            "trireme.release": self.release,
        }
        if self._scheduling is not None:
            attributes["trireme.priority_class"] = Priority(self._scheduling.priority).name.lower()
            if self._scheduling.tenant:
                attributes["trireme.tenant"] = self._scheduling.tenant
        return attributes


def _events(life: SequenceLife, perf: PerfMetrics | None, now_ns: int) -> list[tuple[str, int]]:
    """Return the events of a sequence with their times: the engine's own times, else the times of its chunks here."""
    times = [("queued", life.arrival_ns)]
    if perf is not None:
        times += [
            ("admitted", perf.arrival_time_ns),
            ("scheduled", perf.first_scheduled_time_ns),
            ("first_token", perf.first_token_time_ns),
            ("last_token", perf.last_token_time_ns),
        ]
    else:
        times += [("first_token", life.first_token_ns), ("last_token", life.last_token_ns)]
    return [*sorted((time for time in times if time[1]), key=lambda time: time[1]), ("done", now_ns)]
