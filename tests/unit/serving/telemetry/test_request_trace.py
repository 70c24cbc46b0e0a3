# SPDX-License-Identifier: Apache-2.0
"""The trace of a request: its spans, its first token, its line of the log, and the parts that are left out."""

import json
import logging
from typing import Any

import pytest

from serving.engines.seam.base import FinishReason, PerfMetrics, TokenChunk
from serving.engines.seam.scheduling import Priority, Scheduling
from serving.telemetry.request_observer import UNTRACED
from serving.telemetry.request_trace import Adapter, RequestTrace
from serving.telemetry.request_tracer import RequestTracer
from serving.telemetry.sequence_life import SequenceLife
from serving.telemetry.span_record import SpanRecord, told_of
from serving.telemetry.trace_context import TraceContext
from trireme.base.errors import QueueFull, RequestError, ServingError

PARENT = TraceContext(11, 12, is_sampled=True)


class Export:
    """An export that keeps its spans and first tokens."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.first_tokens: list[tuple[float, dict[str, str], TraceContext]] = []

    def span(self, record: SpanRecord) -> None:
        self.spans.append(record)

    def first_token(self, seconds: float, labels: dict[str, str], context: TraceContext) -> None:
        self.first_tokens.append((seconds, labels, context))


def trace_of(export: Export | None, *, parent: TraceContext = PARENT, logs: str = "none") -> RequestTrace:
    return RequestTrace(Adapter("ensemble", "3", export, logs), parent.child(), parent, "r1")


def life(trace: RequestTrace, *, first_ms: int = 5, last_ms: int = 9, num_tokens: int = 4) -> SequenceLife:
    life = SequenceLife(num_prompt_tokens=7, kv_block_tokens=16)
    life.arrival_ns, life.num_tokens = trace._start_ns, num_tokens
    life.first_s, life.last_s = (life.arrival_s + after_ms / 1000 for after_ms in (first_ms, last_ms))
    return life


def test_the_engines_times_are_the_events_of_its_span() -> None:
    export = Export()
    trace = trace_of(export)
    start_ns = trace._start_ns
    perf = PerfMetrics(
        start_ns + 1, start_ns + 2, start_ns + 3, start_ns + 4, kv_cache_reused_blocks=1, num_preemptions=2
    )
    trace.note_read(Scheduling(priority=Priority.BATCH, tenant="acme"), None)
    trace.note_end(TokenChunk(1, [], FinishReason.STOP, perf=perf), life(trace))
    trace.end()
    engine, own = export.spans
    assert engine.parent == own.context
    assert engine.events[:-1] == [
        ("queued", start_ns),
        ("admitted", start_ns + 1),
        ("scheduled", start_ns + 2),
        ("first_token", start_ns + 3),
        ("last_token", start_ns + 4),
    ]
    assert engine.events[-1] == ("done", engine.end_ns)
    assert engine.attributes["trireme.preemptions"] == 2
    assert engine.attributes["trireme.cached_tokens"] == 16
    assert own.attributes["trireme.tenant"] == engine.attributes["trireme.tenant"] == "acme"
    assert own.attributes["trireme.priority_class"] == "batch"
    assert own.attributes["trireme.release"] == "3"
    assert (own.attributes["gen_ai.usage.input_tokens"], own.attributes["gen_ai.usage.output_tokens"]) == (7, 4)
    assert export.first_tokens == [(0.005, {"gen_ai.request.model": "ensemble", "trireme.release": "3"}, own.context)]


def test_several_sequences_are_several_spans_of_one_request() -> None:
    export = Export()
    trace = trace_of(export)
    for reason, first_ms in ((FinishReason.STOP, 8), (FinishReason.LENGTH, 6)):
        trace.note_end(TokenChunk(1, [], reason), life(trace, first_ms=first_ms))
    trace.end()
    *sequences, own = export.spans
    assert [span.parent for span in sequences] == [own.context, own.context]
    assert len({span.context.span_id for span in export.spans}) == 3
    assert own.attributes["gen_ai.response.finish_reasons"] == ["stop", "length"]
    assert own.attributes["gen_ai.usage.output_tokens"] == 8
    assert [seconds for seconds, _, _ in export.first_tokens] == [0.006], "the first of all"


def test_a_request_ends_once() -> None:
    export = Export()
    trace = trace_of(export)
    trace.end(RequestError("no"))
    trace.end()
    [own] = export.spans
    assert own.error == "INVALID_ARG"
    assert own.attributes["error.type"] == "INVALID_ARG"


def test_who_is_not_sampled_has_no_span_and_is_counted_without_an_exemplar() -> None:
    export = Export()
    trace = trace_of(export, parent=TraceContext(11, 12, is_sampled=False))
    trace.note_end(TokenChunk(1, [], FinishReason.STOP), life(trace))
    trace.end()
    assert export.spans == []
    [(_, _, context)] = export.first_tokens
    assert not context.is_sampled


def test_what_cannot_be_told_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Export):
        def span(self, record: SpanRecord) -> None:
            raise OSError(record.name)

    trace_of(Broken()).end()
    assert "could not be told of" in caplog.text


@pytest.mark.parametrize(
    ("logs", "told"), [("none", []), ("failed", ["UNAVAILABLE"]), ("all", ["done", "UNAVAILABLE"])]
)
def test_the_log_has_the_lines_that_were_asked_for(
    logs: str, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trace_of(None, logs=logs).end()
    trace_of(None, logs=logs).end(QueueFull("of zebras", reason="queue_full", retry_after_ms=5))
    assert [word for record in caplog.records for word in told if word in record.getMessage()] == told
    assert all(getattr(record, "request_id", None) == "r1" for record in caplog.records)
    assert "zebras" not in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RequestError("the secret", field="top_p", value="secret"), "INVALID_ARG field=top_p"),
        (QueueFull("secret", reason="queue_full", retry_after_ms=7), "UNAVAILABLE reason=queue_full"),
        (RequestError("x", field="a secret field"), "INVALID_ARG"),
        (RequestError("x", value='[X reason=secret] "y', field="seed"), "INVALID_ARG field=seed"),
        ("in front [DEADLINE reason=late] secret reason=secret", "DEADLINE reason=late"),
        ("secret", "INTERNAL"),
    ],
)
def test_of_an_error_its_code_and_reason_are_told(error: ServingError | str, told: str) -> None:
    assert told_of(error) == told


class Request:
    """A Triton request with the methods that the tracer calls."""

    def __init__(self, parameters: str = "", triton: str | None = None) -> None:
        self._parameters, self._triton = parameters, triton

    def parameters(self) -> str:
        return self._parameters

    def request_id(self) -> str:
        return "r1"

    def trace(self) -> "Request":
        return self

    def get_context(self) -> str | None:
        return self._triton


def tracer(tracing: dict[str, object] | None = None, logs: dict[str, object] | None = None) -> RequestTracer:
    parameters = {
        name: {"string_value": json.dumps(value)} for name, value in (("tracing", tracing), ("logs", logs)) if value
    }
    config = json.dumps({"parameters": parameters})
    return RequestTracer({"model_name": "ensemble", "model_version": "1", "model_config": config})


def sent(trace_id: int, flags: str = "01") -> str:
    return json.dumps({"traceparent": f"00-{trace_id:032x}-{7:016x}-{flags}"})


NOWHERE: dict[str, Any] = {"endpoint": "http://127.0.0.1:9"}


def test_without_tracing_and_request_lines_nothing_is_noted() -> None:
    assert tracer().begin(Request(sent(5))) is UNTRACED
    assert tracer(logs={"format": "json"}).begin(Request(sent(5))) is UNTRACED
    assert tracer(logs={"requests": "all"}).begin(Request(sent(5))) is not UNTRACED


@pytest.mark.parametrize(
    ("tracing", "request_of_triton", "trace_id", "is_sampled"),
    [
        pytest.param({"sample_ratio": 0.0}, Request(sent(5)), 5, True, id="the caller decides: yes"),
        pytest.param({"sample_ratio": 1.0}, Request(sent(5, "00")), 5, False, id="the caller decides: no"),
        pytest.param({"sample_ratio": 1.0}, Request(), None, True, id="nobody else: all"),
        pytest.param({"sample_ratio": 0.0}, Request("[]"), None, False, id="nobody else: none"),
        pytest.param({}, Request("not JSON"), None, True, id="what is wrong is another's to refuse"),
        pytest.param({"is_triton_traced": True}, Request(sent(5), sent(5)), 5, True, id="below Triton's own"),
        pytest.param({"is_triton_traced": True}, Request(sent(5), sent(6)), 5, True, id="Triton lost the trace"),
        pytest.param(
            {"is_triton_traced": True}, Request(sent(5, "00"), sent(5)), 5, False, id="Triton forgot the flag"
        ),
        pytest.param({"is_triton_traced": True}, Request("", sent(6)), 6, True, id="Triton began the trace"),
        pytest.param({"is_triton_traced": True}, Request(), None, False, id="Triton sampled it out"),
    ],
)
def test_whose_trace_a_request_is_in(
    tracing: dict[str, object], request_of_triton: Request, trace_id: int | None, is_sampled: bool
) -> None:
    watching = tracer(NOWHERE | tracing)
    trace = watching.begin(request_of_triton)._trace
    watching.close()
    assert trace is not None
    assert trace.context.is_sampled is is_sampled
    assert trace_id is None or trace.context.trace_id == trace_id


def test_a_request_that_cannot_be_asked_is_answered_untraced(caplog: pytest.LogCaptureFixture) -> None:
    watching = tracer(NOWHERE)
    assert watching.begin(object()) is UNTRACED
    watching.close()
    assert "could not be traced" in caplog.text
