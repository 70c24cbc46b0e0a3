# SPDX-License-Identifier: Apache-2.0
"""The export of spans, and of times to the first token with exemplars, to an OTLP receiver by OpenTelemetry's SDK.

Only `close` waits for the receiver, for `_FLUSH_S` at most: spans that the receiver does not take are dropped. The
histogram goes this way because Triton's own metrics page has no place for an exemplar. This module is imported only
where a deployment has `tracing`: no other deployment needs OpenTelemetry's packages.
"""

import threading
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from ensemble_configs.spec.observability_spec import TracingSpec
from serving.telemetry.request_metrics import FIRST_TOKEN_BUCKETS_S
from serving.telemetry.span_record import SpanRecord
from serving.telemetry.trace_context import TraceContext

_FLUSH_S = 2.0  # Triton waits 5 s for all models together
_SEND_TIMEOUT_S = 5.0
_MAX_QUEUE_SPANS = 8192
_SCOPE = "trireme"
_NO_SPAN = Context()
# OpenTelemetry's semantic conventions for generative AI; the bounds up to 10 s are theirs.
_TTFT_NAME = "gen_ai.server.time_to_first_token"


class SpanExport:
    """The export of one process; any thread may call it."""

    def __init__(self, spec: TracingSpec, *, service: Mapping[str, str]) -> None:
        """Open the export.

        Args:
            spec: receiver and sampling.
            service: description of this service, by the names of OpenTelemetry's resource attributes.
        """
        self._resource = Resource.create(dict(service))
        self._scope = InstrumentationScope(_SCOPE)
        self._sender = OTLPSpanExporter(f"{spec.endpoint}/v1/traces", timeout=_SEND_TIMEOUT_S)
        self._spans = BatchSpanProcessor(
            self._sender,
            max_queue_size=_MAX_QUEUE_SPANS,
            schedule_delay_millis=spec.export_delay_s * 1000,
        )
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{spec.endpoint}/v1/metrics", timeout=_SEND_TIMEOUT_S),
            export_interval_millis=spec.metrics_period_s * 1000,
        )
        self._meters = MeterProvider(
            [reader], resource=self._resource, exemplar_filter=TraceBasedExemplarFilter(), shutdown_on_exit=False
        )
        self._ttft = self._meters.get_meter(_SCOPE).create_histogram(
            _TTFT_NAME,
            unit="s",
            description="From a request's arrival to its first token",
            explicit_bucket_boundaries_advisory=FIRST_TOKEN_BUCKETS_S,
        )

    def span(self, record: SpanRecord) -> None:
        """Queue a span to be sent."""
        # Made whole from known times, not opened and closed: nothing happens in between.
        span = ReadableSpan(
            record.name,
            context=_sdk_context(record.context, is_remote=False),
            parent=None if record.parent is None else _sdk_context(record.parent, is_remote=record.is_entry),
            resource=self._resource,
            attributes=record.attributes,
            events=[Event(name, timestamp=time_ns) for name, time_ns in record.events],
            kind=SpanKind.SERVER if record.is_entry else SpanKind.INTERNAL,
            status=Status() if record.error is None else Status(StatusCode.ERROR, record.error),
            start_time=record.start_ns,
            end_time=record.end_ns,
            instrumentation_scope=self._scope,
        )
        self._spans.on_end(span)

    def first_token(self, seconds: float, labels: Mapping[str, str], context: TraceContext) -> None:
        """Count a request's seconds to its first token, with the request's span, where sampled, as the exemplar."""
        where = _NO_SPAN
        if context.is_sampled:
            where = set_span_in_context(NonRecordingSpan(_sdk_context(context, is_remote=False)), _NO_SPAN)
        self._ttft.record(seconds, labels, context=where)

    def close(self) -> None:
        """Send the spans that are left, as far as the receiver takes them within `_FLUSH_S`."""
        closers = [
            threading.Thread(target=shutdown, name="span-flush", daemon=True)
            for shutdown in (self._spans.shutdown, self._meters.shutdown)
        ]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(_FLUSH_S / len(closers))
        # Else the SDK would go on with what is queued, batch by batch, as long as nobody takes it: half a minute.
        self._sender.shutdown()  # type: ignore[no-untyped-call]


def _sdk_context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, is_remote, TraceFlags(int(context.is_sampled)), state)
