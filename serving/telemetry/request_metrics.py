# SPDX-License-Identifier: Apache-2.0
"""What requests lived through, as Prometheus histograms and counters of one model version.

Times are of this process, from a request's arrival to its tokens on their way out. The names follow vLLM's; the two
token lengths are TensorRT-LLM's own. An observation is a message to the server: by itself it wakes both sides, which
made a streamed response half as dear again (110 microseconds), among others it costs 11. So they go in bunches.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from serving.engines.seam.base import FinishReason, PerfMetrics, TokenChunk
from serving.telemetry.request_trace import RequestTrace, SequenceLife

FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_REQUEST_S = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)
_LENGTHS = (10.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 50000.0, 100000.0)  # tokens

_HISTOGRAMS = {
    "trireme_time_to_first_token_seconds": (
        "From a request's arrival to its first token, or to its client's leaving before that",
        FIRST_TOKEN_BUCKETS_S,
    ),
    "trireme_inter_token_latency_seconds": ("Between two responses' tokens of a request", TOKEN_BUCKETS_S),
    "trireme_time_per_output_token_seconds": ("Per request: mean time of a token after the first", TOKEN_BUCKETS_S),
    "trireme_e2e_request_latency_seconds": ("From a request's arrival to its last token", _REQUEST_S),
    "trireme_request_queue_time_seconds": ("From a request's arrival to its first step", FIRST_TOKEN_BUCKETS_S),
    "nv_llm_input_token_len": ("Prompt tokens of a request", _LENGTHS),
    "nv_llm_output_token_len": ("Generated tokens of a request", _LENGTHS),
}
_COUNTERS = {
    "trireme_prompt_tokens_total": "Prompt tokens of requests that ended",
    "trireme_generation_tokens_total": "Generated tokens of requests that ended",
    "trireme_draft_tokens_total": "Draft tokens that were verified",
    "trireme_accepted_draft_tokens_total": "Draft tokens that were accepted",
}
# Not there until the engine has told them once: 0 would say that nothing is ever reused.
_LOOKUPS = {
    "trireme_prefix_cache_queries_total": "Prompt tokens of requests whose engine tells how many were in the KV cache",
    "trireme_cached_prompt_tokens_total": "Prompt tokens that were in the KV cache and needed no prefill",
}
# Upstream's counter of requests whose prefill another engine did; it has had these since TensorRT-LLM 0.15.
_TRANSFER_FAMILY = "nv_trt_llm_disaggregated_serving_metrics"
_TRANSFERS = ("kv_cache_transfer_ms", "request_count")
# Upstream's histograms have a label of their own each.
_LABELS = {f"nv_llm_{side}_token_len": {"response_metric_type": f"total_{side}_tokens"} for side in ("input", "output")}
# How a request ended beside a FinishReason.
_ERROR = "error"


class RequestMetrics:
    """One for each model that takes requests. What was observed is shown with the next `flush`."""

    def __init__(self, metric_family: Any, *, model: str, version: str) -> None:
        """Args: `metric_family` is `pb_utils.MetricFamily`."""
        labels = {"model": model, "version": version}
        kind = metric_family
        histograms = {name: kind(name, text, kind.HISTOGRAM) for name, (text, _) in _HISTOGRAMS.items()}
        counters = {name: kind(name, text, kind.COUNTER) for name, text in _COUNTERS.items()}
        self._kind, self._labels = kind, labels
        self._lookups: dict[str, Any] = {}  # by name, once there is something to count
        self._looked_up: deque[tuple[int, int]] = deque()  # tokens of a prompt, and how many were cached
        ends = kind("trireme_requests_total", "Requests that ended, by how", kind.COUNTER)
        transfers = kind(_TRANSFER_FAMILY, "Prefills that came from another engine", kind.COUNTER)
        # Triton drops a family that nobody holds.
        self._families = (*histograms.values(), *counters.values(), ends, transfers)
        self._histograms = {
            name: family.Metric(labels=labels | _LABELS.get(name, {}), buckets=list(_HISTOGRAMS[name][1]))
            for name, family in histograms.items()
        }
        self._observed: deque[tuple[Any, float]] = deque()  # a histogram of Triton's and a value
        self._counted: deque[tuple[Any, float]] = deque()
        self._counters = {name: family.Metric(labels=labels) for name, family in counters.items()} | {
            name: transfers.Metric(labels=labels | {"disaggregated_serving_type": name}) for name in _TRANSFERS
        }
        self._ends = {
            reason: ends.Metric(labels=labels | {"finish_reason": reason}) for reason in (*FinishReason, _ERROR)
        }

    def observe(self, histogram: str, value: float) -> None:
        """One value, in the unit that the name says."""
        self._observed.append((self._histograms[histogram], value))

    def count(self, counter: str, number: float) -> None:
        """So many more."""
        if number:
            self._counted.append((self._counters[counter], number))

    def count_lookup(self, num_tokens: int, *, num_cached: int) -> None:
        """Count a prompt whose engine has told how much of it was in the KV cache."""
        self._looked_up.append((num_tokens, num_cached))

    def count_end(self, reason: str) -> None:
        """One more request that ended so."""
        self._counted.append((self._ends[reason], 1))

    def flush(self) -> None:
        """Tell the server what was observed; for one thread at a time, which may be another one than the observer's."""
        while self._observed:
            histogram, value = self._observed.popleft()
            histogram.observe(value)
        totals: dict[Any, float] = {}
        while self._counted:
            counter, number = self._counted.popleft()
            totals[counter] = totals.get(counter, 0) + number
        for counter, total in totals.items():
            counter.increment(total)
        self._flush_lookups()

    def _flush_lookups(self) -> None:
        totals = [0, 0]
        while self._looked_up:
            totals = [total + number for total, number in zip(totals, self._looked_up.popleft(), strict=True)]
        if not totals[0]:
            return
        for (name, text), total in zip(_LOOKUPS.items(), totals, strict=True):
            if name not in self._lookups:
                family = self._kind(name, text, self._kind.COUNTER)
                self._families += (family,)
                self._lookups[name] = family.Metric(labels=self._labels)
            self._lookups[name].increment(total)


@dataclass(slots=True)
class RequestTimes:
    """One request's times on their way into the metrics."""

    metrics: RequestMetrics
    num_prompt_tokens: int
    kv_block_tokens: int
    trace: RequestTrace | None = None  # of its request
    arrival_s: float = field(default_factory=time.monotonic)
    arrival_ns: int = field(default_factory=time.time_ns)
    num_tokens: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    def note(self, chunk: TokenChunk) -> None:
        """A chunk has come out of the engine."""
        if chunk.token_ids:
            self._note_tokens(len(chunk.token_ids))
        if chunk.error is not None:
            self._note_end(_ERROR, None)
        elif chunk.finish_reason is not None:
            self._note_end(chunk.finish_reason, chunk.perf)
        else:
            return
        if self.trace is not None:
            self.trace.note_end(chunk, self._life(chunk.perf))

    def note_refusal(self) -> None:
        """The engine never had it: an error as any, or an outage would be over as soon as nothing ran any more."""
        self.metrics.count_end(_ERROR)

    def _life(self, perf: PerfMetrics | None) -> SequenceLife:
        return SequenceLife(
            start_ns=self.arrival_ns,
            first_token_ns=self._wall_ns(self.first_s),
            last_token_ns=self._wall_ns(self.last_s),
            num_prompt_tokens=self.num_prompt_tokens,
            num_tokens=self.num_tokens,
            num_cached_tokens=None if perf is None else perf.cached_tokens(self.kv_block_tokens),
        )

    def _wall_ns(self, moment_s: float) -> int:
        """A moment of the monotonic clock; 0: it has not come."""
        return self.arrival_ns + round((moment_s - self.arrival_s) * 1e9) if moment_s else 0

    def _note_tokens(self, count: int) -> None:
        now_s = time.monotonic()
        if self.num_tokens:
            self.metrics.observe("trireme_inter_token_latency_seconds", now_s - self.last_s)
        else:
            self.metrics.observe("trireme_time_to_first_token_seconds", now_s - self.arrival_s)
            self.first_s = now_s
        self.num_tokens += count
        self.last_s = now_s

    def _note_end(self, reason: str, perf: PerfMetrics | None) -> None:
        metrics = self.metrics
        metrics.count_end(reason)
        metrics.count("trireme_prompt_tokens_total", self.num_prompt_tokens)
        metrics.count("trireme_generation_tokens_total", self.num_tokens)
        metrics.observe("nv_llm_input_token_len", self.num_prompt_tokens)
        metrics.observe("nv_llm_output_token_len", self.num_tokens)
        if self.num_tokens:
            metrics.observe("trireme_e2e_request_latency_seconds", self.last_s - self.arrival_s)
        elif reason == FinishReason.CANCELLED:
            # It waited so long at least. Of those who stay alone, a queue that outlasts all patience would look fast.
            metrics.observe("trireme_time_to_first_token_seconds", time.monotonic() - self.arrival_s)
        if self.num_tokens > 1:
            tpot_s = (self.last_s - self.first_s) / (self.num_tokens - 1)
            metrics.observe("trireme_time_per_output_token_seconds", tpot_s)
        if perf is not None:
            self._note_perf(perf)

    def _note_perf(self, perf: PerfMetrics) -> None:
        metrics = self.metrics
        if perf.first_scheduled_time_ns:
            queued_s = max(0, perf.first_scheduled_time_ns - self.arrival_ns) / 1e9
            metrics.observe("trireme_request_queue_time_seconds", queued_s)
        num_cached = perf.cached_tokens(self.kv_block_tokens)
        if num_cached is not None:
            metrics.count_lookup(self.num_prompt_tokens, num_cached=num_cached)
        metrics.count("trireme_draft_tokens_total", perf.total_draft_tokens or 0)
        metrics.count("trireme_accepted_draft_tokens_total", perf.total_accepted_draft_tokens or 0)
        if perf.kv_cache_transfer_ms is not None:
            metrics.count("kv_cache_transfer_ms", perf.kv_cache_transfer_ms)
            metrics.count("request_count", 1)
