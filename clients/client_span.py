# SPDX-License-Identifier: Apache-2.0
"""The client's own span of a request, by the tracer of a program that has OpenTelemetry; others need none of it.

Of its API alone: which spans are kept, and where they go, is for whoever has set up the tracer.
"""

import re
from typing import TYPE_CHECKING

from clients.infer_messages import GenerateChunk
from trireme.base.errors import RequestError, ServingError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Metadata = tuple[tuple[str, str], ...]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class NoSpan:
    """The absence of a span: nothing is noted, and the server goes on in the caller's own span, if that is named.

    Raises:
        RequestError: that is not W3C trace context.
    """

    def __init__(self, traceparent: str | None = None) -> None:
        if traceparent is not None and not _TRACEPARENT.fullmatch(traceparent):
            raise RequestError(
                "traceparent must be W3C trace context, 00-TRACE-SPAN-01 with 32 and 16 hexadecimal digits in lower "
                f"case; got {traceparent!r}",
                field="traceparent",
                value=traceparent,
            )
        self.metadata: Metadata = () if traceparent is None else (("traceparent", traceparent),)

    def note(self, chunk: GenerateChunk) -> None:
        """Do nothing."""

    def end(self, failure: ServingError | None, *, is_complete: bool) -> None:
        """Do nothing."""


class ClientSpan:
    """The span from the call to the last chunk, below the span that is current when it begins."""

    def __init__(self, tracer: "Tracer", *, model: str, request_id: str, address: str) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415  it is there: a tracer is
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        attributes = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "trireme",
            "gen_ai.request.model": model,
            "trireme.request_id": request_id,
            "server.address": address,
        }
        self._span: Span = tracer.start_span(f"text_completion {model}", kind=SpanKind.CLIENT, attributes=attributes)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self._span))
        self.metadata: Metadata = tuple(carrier.items())  # for the server
        self._num_chunks = 0

    def note(self, chunk: GenerateChunk) -> None:
        """Note a chunk: the first one as an event, the last one with how it ended, where that was asked for."""
        self._num_chunks += 1
        if self._num_chunks == 1:
            self._span.add_event("first_chunk")
        if chunk.finish_reason is not None:
            self._span.set_attribute("gen_ai.response.finish_reasons", [chunk.finish_reason])

    def end(self, failure: ServingError | None, *, is_complete: bool) -> None:
        """End the span; an error is told by its code and reason, for its text may quote the prompt."""
        from opentelemetry.trace import StatusCode  # noqa: PLC0415

        self._span.set_attribute("trireme.num_chunks", self._num_chunks)
        if not is_complete:
            self._span.set_attribute("error.type", "left_early" if failure is None else failure.code)
        if failure is not None and not is_complete:
            reason = failure.facts.get("reason")
            self._span.set_status(StatusCode.ERROR, failure.code + ("" if reason is None else f" reason={reason}"))
        self._span.end()
