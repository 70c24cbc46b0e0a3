# SPDX-License-Identifier: Apache-2.0
"""The metrics of a gateway for Prometheus: OpenTelemetry's GenAI names, and names of our own for what it lacks.

Source: OpenTelemetry semantic conventions, generative AI, metrics (status: development), read 2026-04-27.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from clients.openai_api.answer_deltas import Usage
from gateway.request_watch import RequestWatch
from gateway.servers.server import Server

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

        self._gap_s = self._histogram(
            "trireme_gateway_stream_gap_seconds", "Time to the next token of a stream that went on at another server",
            [], _TTFT_S,
        )  # fmt: skip

        self._fallbacks = Counter(
            "trireme_gateway_fallbacks", "Answers by another model than was asked for",
            ["gen_ai_request_model", "answered_by"], registry=self._registry,
        )  # fmt: skip

        self._lookups = Counter(
            "trireme_gateway_cache_lookups", "Requests that a kept answer may answer",
            ["gen_ai_request_model", "result"], registry=self._registry,
        )  # fmt: skip

        self._similar = Counter(
            "trireme_gateway_similar_lookups", "Questions that were compared with those that have kept answers",
            ["gen_ai_request_model", "result"], registry=self._registry,
        )  # fmt: skip

        self._saved_usd = Counter(
            "trireme_gateway_saved_usd", "What tiers and kept answers have saved, by the prices of models", ["by"],
            registry=self._registry,
        )  # fmt: skip

    def watch_ledger(self, num_waiting_bytes: Callable[[], int]) -> None:
        """Show how much of the ledger's journal is not in its database."""
        gauge = Gauge(
            "trireme_gateway_ledger_waiting_bytes",
            "Bytes of the ledger's journal that are not in its database",
            registry=self._registry,
        )
        gauge.set_function(lambda: float(num_waiting_bytes()))

    def watch_servers(self, servers: Sequence[Server]) -> None:
        """Show how many requests run at each server, and whether it takes them; servers may come and go."""
        self._registry.register(_Servers(servers))

    def page(self) -> bytes:
        """Return the metrics as text for Prometheus."""
        return generate_latest(self._registry)

    def note_error(self, code: str) -> None:
        """Count an answer that is an error, or breaks off with one."""
        self._errors.labels(code).inc()

    def note_fallback(self, model: str, answered_by: str) -> None:
        """Count an answer by another model, or an API, than was asked for."""
        self._fallbacks.labels(model, answered_by).inc()

    def note_lookup(self, model: str, *, is_hit: bool) -> None:
        """Count a request that was looked up among the kept answers."""
        self._lookups.labels(model, "hit" if is_hit else "miss").inc()

    def note_similar(self, model: str, result: str) -> None:
        """Count a question that was compared with others. Args: `result`: hit, miss, or failed without a vector."""
        self._similar.labels(model, result).inc()

    def note_saved(self, by: str, nano_usd: int) -> None:
        """Count what a tier, or a kept answer, has saved, in billionths of a US dollar."""
        if nano_usd:
            self._saved_usd.labels(by).inc(nano_usd / 1e9)

    def note_move(self, gap_s: float) -> None:
        """Count a stream that went on at another server, after a gap."""
        self._gap_s.observe(gap_s)

    def note_begin(self) -> None:
        """Count a request that is being answered from now on."""
        self._running.inc()

    def note_end(self, operation: str, model: str, watch: RequestWatch, usage: Usage) -> None:
        """Count a request that is over."""
        self._running.dec()
        assert watch.duration_s is not None
        self._duration_s.labels(operation, model, watch.error).observe(watch.duration_s)
        for kind, count in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            if count:
                self._tokens.labels(operation, model, kind).observe(count)
        if watch.ttft_s is not None:
            self._ttft_s.labels(operation, model).observe(watch.ttft_s)
        if (tpot_s := watch.tpot_s(usage.completion_tokens)) is not None:
            self._tpot_s.labels(operation, model).observe(tpot_s)

    def _histogram(self, name: str, help_text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, labels, buckets=buckets, registry=self._registry)


class _Servers(Collector):
    """The metrics of the servers that there are."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each metric of all servers."""
        running = GaugeMetricFamily(
            "trireme_gateway_server_running_requests", "Requests of this gateway at a server", labels=["server"]
        )
        takes = GaugeMetricFamily(
            "trireme_gateway_server_is_taking_requests",
            "1: the server takes requests for every model; 0: not for all, it goes, or it failed and is left alone",
            labels=["server"],
        )
        load = GaugeMetricFamily(
            "trireme_gateway_server_load_requests",
            "Requests at a server, those of others too, as its figures tell; absent where they are unknown or too old",
            labels=["server"],
        )
        for server in self._servers:
            running.add_metric([server.url], server.num_running)
            takes.add_metric([server.url], server.takes_all)
            if (figures := server.figures) is not None:
                load.add_metric([server.url], server.num_running + figures.num_of_others)
        yield running
        yield takes
        yield load
