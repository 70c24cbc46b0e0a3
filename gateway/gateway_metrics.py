# SPDX-License-Identifier: Apache-2.0
"""The metrics of a gateway for Prometheus: OpenTelemetry's GenAI names, and names of our own for what it lacks.

Source: OpenTelemetry semantic conventions, generative AI, metrics (status: development), read 2026-04-27.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from clients.openai_api.answer_deltas import Piece, Usage

# The conventions' advice for the boundaries.
_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TPOT_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(float(4**power) for power in range(14))
_OPERATION, _MODEL = "gen_ai_operation_name", "gen_ai_request_model"


class GatewayMetrics:
    """The metrics of one gateway process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = [_OPERATION, _MODEL]
        self._duration_s = self._histogram(
            "gen_ai_server_request_duration_seconds", "Time to the last byte", [*labels, "error_type"], _DURATION_S
        )
        self._ttft_s = self._histogram(
            "gen_ai_server_time_to_first_token_seconds", "Time to the first text of answers that stream",
            labels, _TTFT_S,
        )  # fmt: skip
        self._tpot_s = self._histogram(
            "gen_ai_server_time_per_output_token_seconds", "Time per token after the first, of answers that stream",
            labels, _TPOT_S,
        )  # fmt: skip
        self._tokens = self._histogram(
            "gen_ai_client_token_usage", "Tokens of a request", [*labels, "gen_ai_token_type"], _TOKENS
        )
        self._running = Gauge(
            "trireme_gateway_running_requests", "Requests that are being answered", registry=self._registry
        )
        self._errors = Counter(
            "trireme_gateway_errors", "Answers that were an error, by its code", ["code"], registry=self._registry
        )

    def page(self) -> bytes:
        """Return the metrics as text for Prometheus."""
        return generate_latest(self._registry)

    def note_error(self, code: str) -> None:
        """Count an answer that is an error, or breaks off with one."""
        self._errors.labels(code).inc()

    @contextmanager
    def watching(self, operation: str, model: str) -> Iterator["RequestWatch"]:
        """Watch a request from now to the end of the block."""
        watch = RequestWatch()
        self._running.inc()
        try:
            yield watch
        finally:
            self._running.dec()
            self._note(watch, operation, model)

    def _note(self, watch: "RequestWatch", operation: str, model: str) -> None:
        now_s = time.monotonic()
        self._duration_s.labels(operation, model, watch.error).observe(now_s - watch.begun_s)
        for kind, count in (("input", watch.usage.prompt_tokens), ("output", watch.usage.completion_tokens)):
            if count:
                self._tokens.labels(operation, model, kind).observe(count)
        if watch.first_s is None:
            return
        self._ttft_s.labels(operation, model).observe(watch.first_s - watch.begun_s)
        num_later = watch.usage.completion_tokens - 1
        if num_later > 0 and not watch.error:
            self._tpot_s.labels(operation, model).observe((watch.last_s - watch.first_s) / num_later)

    def _histogram(self, name: str, help_text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, labels, buckets=buckets, registry=self._registry)


class RequestWatch:
    """The facts of a request that is being answered.

    Attributes:
        usage: tokens so far.
        error: code of the error that ended the request; "": none.
    """

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self.first_s: float | None = None
        self.last_s = 0.0
        self.usage = Usage()
        self.error = ""

    def note(self, piece: Piece, usage: Usage) -> None:
        """Note a piece that goes to the client now. Args: `usage`: the tokens with this piece."""
        self.usage = usage
        if piece.deltas:
            self.last_s = time.monotonic()
            if self.first_s is None:
                self.first_s = self.last_s
