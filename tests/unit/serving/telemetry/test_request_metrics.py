# SPDX-License-Identifier: Apache-2.0
"""Each request is counted once, with the times between its arrival and its tokens, under names that dashboards know."""

import pytest
import triton_python_backend_utils as pb_utils
from manual_clock import ManualClock

from serving.admission.joined_perf import joined_perf
from serving.engines.seam.base import FinishReason, PerfMetrics, TokenChunk
from serving.telemetry import request_metrics, request_observer
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_observer import UNTRACED, SequenceObserver


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    for module in (request_metrics, request_observer):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics(pb_utils.MetricFamily, model="ensemble", version="2")


def begin(metrics: RequestMetrics, clock: ManualClock) -> SequenceObserver:
    sequence = UNTRACED.begin_sequence(metrics, num_prompt_tokens=7, kv_block_tokens=16)
    sequence.arrival_s, sequence.arrival_ns = clock.monotonic(), clock.time_ns()
    return sequence


def observed(metrics: RequestMetrics) -> dict[str, list[float]]:
    """Return the observations of each histogram that has any."""
    metrics.flush()
    families: tuple[pb_utils.MetricFamily, ...] = metrics._families
    found = {}
    for family in families:
        for metric in family.metrics:
            if "inter_token" in family.name:  # counters: tests/unit/serving/telemetry/test_counted_histogram.py
                continue
            assert {"model": "ensemble", "version": "2"}.items() <= metric.labels.items()
            if metric.observed:
                found[family.name] = metric.observed
    return found


def counted(metrics: RequestMetrics) -> dict[str, float]:
    """Return the values of the counters above zero."""
    metrics.flush()
    families: tuple[pb_utils.MetricFamily, ...] = metrics._families
    return {
        family.name + metric.labels.get("finish_reason", ""): metric.value()
        for family in families
        for metric in family.metrics
        if metric.value() and "inter_token" not in family.name
    }


def test_a_stream_leaves_its_latencies_and_its_tokens(clock: ManualClock, metrics: RequestMetrics) -> None:
    sequence = begin(metrics, clock)
    clock.now_s += 0.25
    sequence.note_chunk(TokenChunk(1, [5]))
    clock.now_s += 0.5
    sequence.note_chunk(TokenChunk(1, [6, 7]))
    clock.now_s += 0.25
    sequence.note_chunk(TokenChunk(1, [8, 9], FinishReason.LENGTH))
    assert observed(metrics) == {
        "trireme_time_to_first_token_seconds": [0.25],
        "trireme_time_per_output_token_seconds": [0.75 / 4],
        "trireme_e2e_request_latency_seconds": [1.0],
        "nv_llm_input_token_len": [7],
        "nv_llm_output_token_len": [5],
    }
    assert counted(metrics) == {
        "trireme_prompt_tokens_total": 7,
        "trireme_generation_tokens_total": 5,
        "trireme_requests_totallength": 1,
    }


def test_nothing_is_sent_to_the_server_for_a_single_response(clock: ManualClock, metrics: RequestMetrics) -> None:
    begin(metrics, clock).note_chunk(TokenChunk(1, [5]))
    assert not any(metric.observed for metric in metrics._histograms.values())


def test_one_token_has_no_time_per_token(clock: ManualClock, metrics: RequestMetrics) -> None:
    begin(metrics, clock).note_chunk(TokenChunk(1, [5], FinishReason.STOP))
    assert "trireme_time_per_output_token_seconds" not in observed(metrics)


def test_what_the_engine_tells_of_a_request_is_counted(clock: ManualClock, metrics: RequestMetrics) -> None:
    sequence = begin(metrics, clock)
    perf = PerfMetrics(
        arrival_time_ns=0,
        first_scheduled_time_ns=clock.time_ns() + 2_000_000_000,
        first_token_time_ns=0,
        last_token_time_ns=0,
        kv_cache_reused_blocks=3,
        total_accepted_draft_tokens=4,
        total_draft_tokens=6,
    )
    sequence.note_chunk(TokenChunk(1, [5], FinishReason.LENGTH, perf=perf))
    assert observed(metrics)["trireme_request_queue_time_seconds"] == [pytest.approx(2.0)]
    assert counted(metrics)["trireme_cached_prompt_tokens_total"] == 48
    assert counted(metrics)["trireme_prefix_cache_queries_total"] == 7
    assert counted(metrics)["trireme_draft_tokens_total"] == 6
    assert counted(metrics)["trireme_accepted_draft_tokens_total"] == 4


def perf_with(**known: int) -> PerfMetrics:
    return PerfMetrics(
        arrival_time_ns=0, first_scheduled_time_ns=1, first_token_time_ns=2, last_token_time_ns=3, **known
    )


def test_lookups_in_the_kv_cache_are_not_there_before_an_engine_tells_them(
    clock: ManualClock, metrics: RequestMetrics
) -> None:
    def names() -> set[str]:
        metrics.flush()
        return {family.name for family in metrics._families}

    lookups = {"trireme_prefix_cache_queries_total", "trireme_cached_prompt_tokens_total"}
    begin(metrics, clock).note_chunk(TokenChunk(1, [5], FinishReason.STOP, perf=perf_with()))
    assert not lookups & names()
    begin(metrics, clock).note_chunk(TokenChunk(2, [5], FinishReason.STOP, perf=perf_with(num_cached_tokens=0)))
    assert lookups < names()
    begin(metrics, clock).note_chunk(TokenChunk(3, [5], FinishReason.STOP, perf=perf_with(num_cached_tokens=5)))
    begin(metrics, clock).note_chunk(TokenChunk(4, [5], FinishReason.STOP, perf=perf_with()))
    found = counted(metrics)
    assert [found[name] for name in sorted(lookups)] == [5, 14], "of the two requests that told"


def test_prompts_that_are_asked_of_other_servers_are_counted_by_what_came_of_them(metrics: RequestMetrics) -> None:
    before = {family.name for family in metrics._families}
    for outcome in ("computed", "failed", "computed"):
        metrics.note_remote_prefill(outcome)
    metrics.flush()
    [family] = [one for one in metrics._families if one.name not in before]
    assert family.name == "trireme_remote_prefills_total"
    found = {metric.labels["outcome"]: metric.value() for metric in family.metrics}
    assert found == {"computed": 2, "busy": 0, "refused": 0, "failed": 1, "ended": 0, "cancelled": 0}


def test_tokens_that_an_engine_tells_count_before_its_blocks() -> None:
    assert perf_with(num_cached_tokens=21, kv_cache_reused_blocks=2).cached_tokens(16) == 21
    assert perf_with(kv_cache_reused_blocks=2).cached_tokens(16) == 32
    assert perf_with().cached_tokens(16) is None


def test_what_a_later_piece_of_a_request_finds_of_the_earlier_ones_is_no_hit() -> None:
    perf = perf_with(kv_cache_reused_blocks=2)
    for _ in range(2):
        perf = joined_perf(perf, perf_with(kv_cache_reused_blocks=9))
    assert perf.kv_cache_reused_blocks == 20, "as upstream counts them"
    assert perf.cached_tokens(16) == 32
    told = joined_perf(perf_with(num_cached_tokens=5), perf_with(num_cached_tokens=70))
    assert told.cached_tokens(16) == 5


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (TokenChunk(1, [], error="[INTERNAL] no"), "error"),
        (TokenChunk(1, [], FinishReason.CANCELLED), "cancelled"),
        (TokenChunk(1, [5], FinishReason.STOP_STRING), "stop_string"),
    ],
)
def test_every_request_is_counted_by_how_it_ended(
    clock: ManualClock, metrics: RequestMetrics, chunk: TokenChunk, reason: str
) -> None:
    begin(metrics, clock).note_chunk(chunk)
    assert counted(metrics)["trireme_requests_total" + reason] == 1


def test_a_client_that_leaves_without_a_token_has_waited_so_long_at_least(
    clock: ManualClock, metrics: RequestMetrics
) -> None:
    sequence = begin(metrics, clock)
    clock.now_s += 30
    sequence.note_chunk(TokenChunk(1, [], FinishReason.CANCELLED))
    assert observed(metrics)["trireme_time_to_first_token_seconds"] == [30]
    sequence = begin(metrics, clock)
    clock.now_s += 1
    sequence.note_chunk(TokenChunk(1, [5]))
    clock.now_s += 8
    sequence.note_chunk(TokenChunk(1, [], FinishReason.CANCELLED))
    assert observed(metrics)["trireme_time_to_first_token_seconds"] == [30, 1], "one that left later has its own"


def test_what_the_engine_never_had_is_an_error_and_no_tokens(clock: ManualClock, metrics: RequestMetrics) -> None:
    begin(metrics, clock).note_refusal()
    assert counted(metrics) == {"trireme_requests_totalerror": 1}
    assert observed(metrics) == {}
