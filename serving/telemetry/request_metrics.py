# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of requests: histograms and counters of one model version.

Times are of this process, from a request's arrival to its tokens on their way out. The names follow vLLM's; the two
token lengths are TensorRT-LLM's own. An observation is a message to the server: a single message wakes both sides,
which made a streamed response half as dear again (110 microseconds); among others a message costs 11. So observations
go in bunches.
"""

import time
from collections import deque
from typing import Any

from serving.engines.seam.base import FinishReason, PerfMetrics, TokenChunk
from serving.telemetry.counted_histogram import CountedHistogram
from serving.telemetry.sequence_life import SequenceLife

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
    "trireme_time_per_output_token_seconds": ("Per request: mean time of a token after the first", TOKEN_BUCKETS_S),
    "trireme_e2e_request_latency_seconds": ("From a request's arrival to its last token", _REQUEST_S),
    "trireme_request_queue_time_seconds": ("From a request's arrival to its first step", FIRST_TOKEN_BUCKETS_S),
    "nv_llm_input_token_len": ("Prompt tokens of a request", _LENGTHS),
    "nv_llm_output_token_len": ("Generated tokens of a request", _LENGTHS),
}
_GAPS = ("trireme_inter_token_latency_seconds", "Between two responses' tokens of a request")  # with every token
_COUNTERS = {
    "trireme_prompt_tokens_total": "Prompt tokens of requests that ended",
    "trireme_generation_tokens_total": "Generated tokens of requests that ended",
    "trireme_draft_tokens_total": "Draft tokens that were verified",
    "trireme_accepted_draft_tokens_total": "Draft tokens that were accepted",
}
# Not there until the engine has reported them once: 0 would say that nothing is ever reused.
_LOOKUPS = {
    "trireme_prefix_cache_queries_total": "Prompt tokens of requests for which the engine reports cached tokens",
    "trireme_cached_prompt_tokens_total": "Prompt tokens that were in the KV cache and needed no prefill",
}
_PREFILLS = ("trireme_remote_prefills_total", "Long prompts by what came of asking `prefill_servers` for them")
PREFILL_OUTCOMES = (
    "computed",
    "busy",
    "refused",
    "failed",
    "ended",
    "cancelled",
)  # all but the first: the engine here does it
# Upstream's counter of requests whose prefill another engine did; it has had these since TensorRT-LLM 0.15.
_TRANSFER_FAMILY = "nv_trt_llm_disaggregated_serving_metrics"
_TRANSFERS = ("kv_cache_transfer_ms", "request_count")
# Upstream's histograms have a label of their own each.
_LABELS = {f"nv_llm_{side}_token_len": {"response_metric_type": f"total_{side}_tokens"} for side in ("input", "output")}
# How a request ended beside a FinishReason.
_ERROR = "error"


class RequestMetrics:
    """The request metrics of one model that takes requests; the next `flush` shows what was observed."""

    def __init__(self, metric_family: Any, *, model: str, version: str) -> None:
        """Make the metric families.

        Args:
            metric_family: `pb_utils.MetricFamily`.
            model: name of the model, for the labels.
            version: version of the model, for the labels.
        """
        labels = {"model": model, "version": version}
        kind = metric_family
        histograms = {name: kind(name, text, kind.HISTOGRAM) for name, (text, _) in _HISTOGRAMS.items()}
        counters = {name: kind(name, text, kind.COUNTER) for name, text in _COUNTERS.items()}
        self._kind, self._labels = kind, labels
        self._lookups: dict[str, Any] = {}  # by name, once there is something to count
        self._prefills: deque[str] = deque()
        self._prefill_counters: dict[str, Any] = {}  # by outcome, once there is any
        self._looked_up: deque[tuple[int, int]] = deque()  # tokens of a prompt, and how many were cached
        ends = kind("trireme_requests_total", "Requests that ended, by how", kind.COUNTER)
        transfers = kind(_TRANSFER_FAMILY, "Prefills that came from another engine", kind.COUNTER)
        self._gaps = CountedHistogram(kind, *_GAPS, buckets=TOKEN_BUCKETS_S, labels=labels)
        # Triton drops a family that nobody holds.
        self._families = (*histograms.values(), *counters.values(), ends, transfers, *self._gaps.families)
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

    def note_first_token(self, waited_s: float) -> None:
        """Observe the time from a request's arrival to a sequence's first token, or to its end without one."""
        self._observe("trireme_time_to_first_token_seconds", waited_s)

    def note_gap(self, gap_s: float) -> None:
        """Observe the time between the tokens of two chunks of a sequence."""
        self._gaps.observe(gap_s)

    def note_refusal(self) -> None:
        """Count a sequence that never reached the engine, as an error."""
        self._count_end(_ERROR)  # as any, or an outage would be over as soon as nothing ran any more

    def note_remote_prefill(self, outcome: str) -> None:
        """Count a prompt that was long enough for a prefill server, by one of `PREFILL_OUTCOMES`."""
        self._prefills.append(outcome)

    def note_end(self, chunk: TokenChunk, life: SequenceLife) -> None:
        """Observe and count a sequence that has had its last chunk."""
        self._count_end(_ERROR if chunk.error is not None else str(chunk.finish_reason))
        self._count("trireme_prompt_tokens_total", life.num_prompt_tokens)
        self._count("trireme_generation_tokens_total", life.num_tokens)
        self._observe("nv_llm_input_token_len", life.num_prompt_tokens)
        self._observe("nv_llm_output_token_len", life.num_tokens)
        if life.num_tokens:
            self._observe("trireme_e2e_request_latency_seconds", life.last_s - life.arrival_s)
        elif chunk.error is None and chunk.finish_reason is FinishReason.CANCELLED:
            # It waited so long at least. Without those that leave, a queue that outlasts all patience would look fast.
            self.note_first_token(time.monotonic() - life.arrival_s)
        if life.num_tokens > 1:
            tpot_s = (life.last_s - life.first_s) / (life.num_tokens - 1)
            self._observe("trireme_time_per_output_token_seconds", tpot_s)
        if chunk.error is None and chunk.perf is not None:
            self._note_perf(chunk.perf, life)

    def _note_perf(self, perf: PerfMetrics, life: SequenceLife) -> None:
        if perf.first_scheduled_time_ns:
            queued_s = max(0, perf.first_scheduled_time_ns - life.arrival_ns) / 1e9
            self._observe("trireme_request_queue_time_seconds", queued_s)
        num_cached = life.num_cached_tokens(perf)
        if num_cached is not None:
            self._looked_up.append((life.num_prompt_tokens, num_cached))
        self._count("trireme_draft_tokens_total", perf.total_draft_tokens or 0)
        self._count("trireme_accepted_draft_tokens_total", perf.total_accepted_draft_tokens or 0)
        if perf.kv_cache_transfer_ms is not None:
            self._count("kv_cache_transfer_ms", perf.kv_cache_transfer_ms)
            self._count("request_count", 1)

    def _observe(self, histogram: str, value: float) -> None:
        self._observed.append((self._histograms[histogram], value))

    def _count(self, counter: str, number: float) -> None:
        if number:
            self._counted.append((self._counters[counter], number))

    def _count_end(self, reason: str) -> None:
        self._counted.append((self._ends[reason], 1))

    def flush(self) -> None:
        """Send the observations to the server; for one thread at a time, which need not be the thread that observes."""
        while self._observed:
            histogram, value = self._observed.popleft()
            histogram.observe(value)
        self._gaps.flush()
        totals: dict[Any, float] = {}
        while self._counted:
            counter, number = self._counted.popleft()
            totals[counter] = totals.get(counter, 0) + number
        for counter, total in totals.items():
            counter.increment(total)
        self._flush_lookups()
        while self._prefills:
            self._count_prefill(self._prefills.popleft())

    def _count_prefill(self, outcome: str) -> None:
        if not self._prefill_counters:
            family = self._kind(*_PREFILLS, self._kind.COUNTER)
            self._families += (family,)
            self._prefill_counters = {
                one: family.Metric(labels=self._labels | {"outcome": one}) for one in PREFILL_OUTCOMES
            }
        self._prefill_counters[outcome].increment(1)

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
