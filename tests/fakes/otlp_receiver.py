# SPDX-License-Identifier: Apache-2.0
"""An OTLP/HTTP receiver in this process: what a collector would get, decoded by OpenTelemetry's own schema."""

import base64
import gzip
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span; ids are hexadecimal, and a span without a parent has the empty text."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    is_error: bool
    status: str
    resource: dict[str, Any]

    @property
    def event_names(self) -> list[str]:
        return [name for name, _ in self.events]


@dataclass(frozen=True)
class Exemplar:
    """An exemplar of a point of a histogram."""

    trace_id: str
    span_id: str
    value: float


@dataclass
class OtlpReceiver:
    """A receiver that listens while it is entered."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    exemplars: list[Exemplar] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # observations of each histogram, all labels together
    content_types: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, body, self.headers["Content-Type"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Log nothing to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes, content_type: str) -> None:
        self.content_types.add(content_type)
        if path == "/v1/traces":
            self._take_spans(_parsed(ExportTraceServiceRequest(), body, content_type))
        else:
            assert path == "/v1/metrics", path
            self._take_metrics(_parsed(ExportMetricsServiceRequest(), body, content_type))

    def of_trace(self, trace_id: str, *, names: set[str], timeout_s: float = 10.0) -> dict[str, ReceivedSpan]:
        """Return the spans of a trace by name, once these are all there; each comes once."""
        self.wait(lambda: names <= {span.name for span in self.spans if span.trace_id == trace_id}, timeout_s)
        found = [span for span in self.spans if span.trace_id == trace_id]
        assert len({span.name for span in found}) == len(found), found
        return {span.name: span for span in found}

    def wait(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, [(span.name, span.trace_id, span.status) for span in self.spans]
            time.sleep(0.02)

    def _take_spans(self, request: Any) -> None:
        for resource_spans in request.resource_spans:
            resource = _values(resource_spans.resource.attributes)
            for scope in resource_spans.scope_spans:
                self.spans += [_span(span, resource) for span in scope.spans]

    def _take_metrics(self, request: Any) -> None:
        for resource_metrics in request.resource_metrics:
            for scope in resource_metrics.scope_metrics:
                for metric in scope.metrics:
                    points = metric.histogram.data_points
                    self.counts[metric.name] = sum(point.count for point in points)
                    self.exemplars += [
                        Exemplar(one.trace_id.hex(), one.span_id.hex(), one.as_double)
                        for point in points
                        for one in point.exemplars
                    ]


def _parsed(message: Any, body: bytes, content_type: str) -> Any:
    if content_type == "application/x-protobuf":
        message.ParseFromString(body)
        return message
    return json_format.Parse(_with_base64_ids(body), message)  # Triton's own exporter


def _with_base64_ids(body: bytes) -> str:
    """Return the body with ids in base64: OTLP's JSON has them in hexadecimal, and protobuf's reader wants base64."""

    data = json.loads(body)
    for resource_spans in data["resourceSpans"]:
        for scope in resource_spans["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    span[key] = base64.b64encode(bytes.fromhex(span.get(key, ""))).decode()
    return json.dumps(data)


def _span(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        events=[(event.name, event.time_unix_nano) for event in span.events],
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        status=span.status.message,
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
