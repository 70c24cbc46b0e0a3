# SPDX-License-Identifier: Apache-2.0
"""Each event of a request is noted once, and reaches all listeners: its trace, the metrics, the times of its life."""

import pytest
import triton_python_backend_utils as pb_utils

from serving.engines.seam.base import FinishReason, TokenChunk
from serving.engines.seam.scheduling import Scheduling
from serving.requests.stream_state import StreamContext
from serving.telemetry import request_observer
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_observer import UNTRACED, RequestObserver
from serving.telemetry.request_trace import Adapter, RequestTrace
from serving.telemetry.span_record import SpanRecord
from serving.telemetry.trace_context import TraceContext
from trireme.base.errors import RequestError


class Export:
    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []

    def span(self, record: SpanRecord) -> None:
        self.spans.append(record)

    def first_token(self, seconds: float, labels: dict[str, str], context: TraceContext) -> None:
        pass


def metrics() -> RequestMetrics:
    return RequestMetrics(pb_utils.MetricFamily, model="m", version="1")


def observed(export: Export, parent: TraceContext | None = None) -> RequestObserver:
    context = parent.child() if parent else TraceContext(21, 22, is_sampled=True)
    return RequestObserver(RequestTrace(Adapter("m", "1", export), context, parent, "r1"))


def test_a_chunk_is_told_once_to_the_metrics_the_trace_and_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now_s = 100.0

        def monotonic(self) -> float:
            return self.now_s

    clock, export, shown = Clock(), Export(), metrics()
    monkeypatch.setattr(request_observer, "time", clock)
    request = observed(export)
    sequence = request.begin_sequence(shown, num_prompt_tokens=7, kv_block_tokens=16)
    sequence.arrival_s = clock.now_s
    for moment_s, reason in ((100.25, None), (100.75, None), (101.0, FinishReason.LENGTH)):
        clock.now_s = moment_s
        sequence.note_chunk(TokenChunk(1, [5], reason))
    request.end()
    assert (sequence.num_tokens, sequence.first_s, sequence.last_s) == (3, 100.25, 101.0)
    shown.flush()
    histograms = {family.name: metric.observed for family in shown._families for metric in family.metrics}
    assert histograms["trireme_time_to_first_token_seconds"] == [0.25]
    counted = {family.name: family.metrics[0].value() for family in shown._families}
    assert counted["trireme_inter_token_latency_seconds_sum"] == 0.75
    assert counted["trireme_inter_token_latency_seconds_count"] == 2
    engine, own = export.spans
    assert [(name, moment_ns - sequence.arrival_ns) for name, moment_ns in engine.events[:-1]] == [
        ("queued", 0),
        ("first_token", 250_000_000),
        ("last_token", 1_000_000_000),
    ]
    assert own.attributes["gen_ai.usage.output_tokens"] == 3


def test_what_happens_before_the_engine_is_in_the_trace() -> None:
    export = Export()
    request = observed(export)
    request.note_release("9")
    request.note_tokenized()
    request.note_read(Scheduling(tenant="acme"), None)
    request.end(RequestError("no"))
    request.end()
    [own] = export.spans
    assert (own.attributes["trireme.release"], own.attributes["trireme.tenant"]) == ("9", "acme")
    assert [name for name, _ in own.events] == ["tokenized"]
    assert own.error == "INVALID_ARG"
    assert request.told == {
        "request_id": "r1", "release": "9", "model": "m", "tenant": "acme", "trace_id": f"{21:032x}",
    }  # fmt: skip


def test_a_step_hands_its_trace_to_the_one_behind_it_unless_both_see_the_callers() -> None:
    export = Export()
    first, second = observed(export), observed(export)
    second.note_read(Scheduling(), StreamContext(1, (), first.traceparent))
    first.end_step("preprocessing")
    second.end()
    before, own = export.spans
    assert own.parent == before.context
    caller = TraceContext(11, 12, is_sampled=True)
    below = observed(export, caller)
    assert below.traceparent == ""
    below.note_read(Scheduling(), StreamContext(1, (), first.traceparent))
    below.end()
    assert export.spans[-1].parent == caller


def test_a_request_without_a_trace_is_counted_all_the_same() -> None:
    shown = metrics()
    UNTRACED.note_release("9")
    UNTRACED.note_tokenized()
    UNTRACED.note_read(Scheduling(), None)
    sequence = UNTRACED.begin_sequence(shown, num_prompt_tokens=7, kv_block_tokens=16)
    sequence.note_chunk(TokenChunk(1, [5], FinishReason.STOP))
    UNTRACED.end_step("preprocessing")
    UNTRACED.end()
    shown.flush()
    [ended] = [metric for metric in shown._ends.values() if metric.value()]
    assert ended.labels["finish_reason"] == "stop"
    assert (UNTRACED.told, UNTRACED.traceparent) == ({}, "")
