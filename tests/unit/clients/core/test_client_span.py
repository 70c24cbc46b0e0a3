# SPDX-License-Identifier: Apache-2.0
"""The client's span of a request: what the server is sent, what is noted, and how it ends; without a tracer nothing."""

import subprocess
import sys
from typing import Any

import pytest
from kserve_server import HANG, KServeServer, response, story
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from clients.streaming import GenerateRequest, TritonClient
from trireme.base.errors import RequestError, ServingError

REQUEST = GenerateRequest(text_input="zebras", max_tokens=4)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class ListeningServer(KServeServer):
    """A server that keeps the metadata of each stream, too."""

    def __init__(self, *script: object) -> None:
        super().__init__(*script)
        self.metadata: list[dict[str, str]] = []

    def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802  KServe's name
        self.metadata.append({key: value for key, value in context.invocation_metadata() if key.startswith("trace")})
        return super().ModelStreamInfer(requests, context)


def asked(server: KServeServer, *, num_chunks: int | None = None) -> tuple[ReadableSpan, ServingError | None]:
    """Return the span of one request, of which `num_chunks` chunks are read, and how it failed."""
    provider, kept, failure = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter(), None
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with TritonClient(server.url, tracer=provider.get_tracer("test")) as client:
        chunks = client.generate(REQUEST, timeout_s=2)
        try:
            for _, _ in zip(range(num_chunks or 100), chunks, strict=False):
                pass
        except ServingError as exc:
            failure = exc
        chunks.close()
    [span] = kept.get_finished_spans()
    return span, failure


def test_the_server_is_sent_the_span_that_is_made() -> None:
    with ListeningServer(*story()) as server:
        span, failure = asked(server)
    assert failure is None
    assert span.context is not None
    ids = f"{span.context.trace_id:032x}-{span.context.span_id:016x}"
    assert server.metadata == [{"traceparent": f"00-{ids}-{span.context.trace_flags:02x}"}]
    assert [event.name for event in span.events] == ["first_chunk"]
    assert span.attributes is not None
    assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert span.attributes["trireme.num_chunks"] == 3
    assert span.attributes["trireme.request_id"] == server.requests[0].id
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("script", "status"),
    [
        pytest.param(["[UNAVAILABLE reason=queue_full] of zebras"], "UNAVAILABLE reason=queue_full", id="refused"),
        pytest.param(["[INVALID_ARG field=seed] of zebras"], "INVALID_ARG", id="wrong"),
        pytest.param([response("Once")], "UNAVAILABLE reason=connection_lost", id="cut"),
        pytest.param([response("Once"), HANG], "DEADLINE", id="late"),
    ],
)
def test_a_failure_is_told_by_its_code_and_reason(script: list[object], status: str) -> None:
    with ListeningServer(*script) as server:
        span, failure = asked(server)
    assert failure is not None
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, status)
    assert "zebras" not in span.to_json()


def test_who_leaves_early_has_not_failed() -> None:
    with ListeningServer(response("Once"), HANG) as server:
        span, failure = asked(server, num_chunks=1)
    assert failure is None
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes is not None
    assert span.attributes["error.type"] == "left_early"


def test_a_callers_own_span_is_handed_on() -> None:
    with ListeningServer(*story()) as server, TritonClient(server.url) as client:
        list(client.generate(REQUEST, traceparent=TRACEPARENT))
        list(client.generate(REQUEST))
    assert server.metadata == [{"traceparent": TRACEPARENT}, {}]


@pytest.mark.parametrize("wrong", ["", "x", TRACEPARENT.upper(), TRACEPARENT + "\r\nkey: value"])
def test_what_is_no_trace_context_is_refused_before_anything_is_sent(wrong: str) -> None:
    with ListeningServer(*story()) as server, TritonClient(server.url) as client:
        with pytest.raises(RequestError, match="traceparent must be W3C trace context"):
            list(client.generate(REQUEST, traceparent=wrong))
        assert server.requests == []


def test_the_client_needs_no_opentelemetry() -> None:
    program = "import sys, clients.streaming; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_adapter_without_tracing_needs_none_either() -> None:
    program = (
        "import sys, serving.telemetry.request_tracer as t; t.RequestTracer({'model_name': 'm', 'model_version': '1'});"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
