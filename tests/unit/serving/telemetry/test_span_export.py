# SPDX-License-Identifier: Apache-2.0
"""Spans on their way to a real OTLP receiver, or to none."""

import importlib.util
import socket
import threading
import time

import pytest
from otlp_receiver import OtlpReceiver

from ensemble_configs.spec.observability_spec import TracingSpec
from serving.telemetry.request_tracer import check_installed
from serving.telemetry.span_export import SpanExport
from serving.telemetry.span_record import SpanRecord
from serving.telemetry.trace_context import TraceContext
from trireme.base.errors import SpecError

CONTEXT = TraceContext(0xAB, 0xCD, is_sampled=True, state="vendor=1")


def record(**more: object) -> SpanRecord:
    given: dict[str, object] = {"attributes": {"a": 1, "b": ["x"]}, "events": [("queued", 15)], "error": "DEADLINE"}
    given |= {"name": "n", "context": CONTEXT.child(), "parent": CONTEXT, "start_ns": 10, "end_ns": 20, **more}
    return SpanRecord(**given)  # type: ignore[arg-type]


def test_a_span_arrives_as_it_was_told_at_the_latest_when_all_ends() -> None:
    with OtlpReceiver() as receiver:
        export = SpanExport(TracingSpec(endpoint=receiver.endpoint, export_delay_s=60), service={"service.name": "s"})
        export.span(record())
        export.first_token(0.03, {"model": "m"}, CONTEXT)
        export.first_token(0.03, {"model": "m"}, TraceContext(1, 2, is_sampled=False))
        assert receiver.spans == []
        export.close()
        [span] = receiver.spans
    assert (span.trace_id, span.parent_id) == (f"{0xAB:032x}", f"{0xCD:016x}")
    assert (span.name, span.start_ns, span.end_ns, span.events) == ("n", 10, 20, [("queued", 15)])
    assert (span.attributes, span.is_error, span.status) == ({"a": 1, "b": ["x"]}, True, "DEADLINE")
    assert span.resource["service.name"] == "s"
    assert receiver.counts == {"gen_ai.server.time_to_first_token": 2}
    assert [(one.trace_id, one.value) for one in receiver.exemplars] == [(f"{0xAB:032x}", 0.03)]
    assert receiver.content_types == {"application/x-protobuf"}


def test_a_receiver_that_never_answers_holds_up_nobody() -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and no more
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        export = SpanExport(TracingSpec(endpoint=endpoint, export_delay_s=0.05), service={})
        start_s = time.monotonic()
        for _ in range(20_000):  # more than are kept
            export.span(record())
        assert time.monotonic() - start_s < 15
        start_s = time.monotonic()
        export.close()
        assert time.monotonic() - start_s < 3
    # What is queued would be tried for half a minute, and complained of in the log of whoever runs then.
    deadline_s = time.monotonic() + 12
    while threading.active_count() > before:
        assert time.monotonic() < deadline_s, threading.enumerate()
        time.sleep(0.02)


def test_what_is_not_installed_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "otlp" in name else object())
    with pytest.raises(SpecError, match=r"opentelemetry-exporter-otlp-proto-http.*pip install '.*\[tracing\]'"):
        check_installed()
