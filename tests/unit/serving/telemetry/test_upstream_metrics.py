# SPDX-License-Identifier: Apache-2.0
"""Metrics under upstream's names: all that there were, from engines that can tell, as docs/observability.md says."""

import json
import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from equipped_engines import equipped_engine
from trtllm_generator import load_facts

from serving.engines.seam.base import EngineStats, FinishReason, GenerationRequest, SamplingParams, TokenChunk
from serving.engines.seam.clock import WallClock
from serving.engines.tensorrt_llm.trtllm_perf import read_perf_metrics
from serving.engines.tensorrt_llm.trtllm_stats import read_stats
from serving.telemetry.engine_metrics import EngineMetrics
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_observer import UNTRACED
from serving.telemetry.step_account import AccountedEngine
from serving.telemetry.upstream_metrics import CONSTANTS, GAUGES
from trireme.base.project_files import CODE_ROOT

TESTS = CODE_ROOT / "tests"
UPSTREAM: dict[str, Any] = json.loads((TESTS / "data" / "upstream_metrics.json").read_text())["families"]
FACTS = load_facts("1.2.1")["stats"]
DRAFT_ENGINES_OWN = {("nv_trt_llm_general_metrics", "timestamp"): "general_type"}

Shown = dict[tuple[str, str], float]


def labels_of(family: str) -> set[str]:
    return set(UPSTREAM[family]["since"])


def shown(metrics: EngineMetrics) -> Shown:
    found: Shown = {}
    for family in metrics._metrics._families.values():
        for metric in family.metrics if family.name in UPSTREAM else ():
            assert metric.labels["model"] == "tensorrt_llm"
            found[family.name, metric.labels[UPSTREAM[family.name]["label"]]] = metric.value()
    return found


def shown_of(provider: str) -> Shown:
    """Return the metrics on a page of an engine in the middle of a request."""
    inner = equipped_engine(provider)
    engine = AccountedEngine(inner, WallClock())
    metrics = EngineMetrics(pb_utils.MetricFamily, model="tensorrt_llm", version="1")
    try:
        metrics.describe(engine.info)
        engine.add(GenerationRequest(key=1, input_ids=list(range(20, 60)), sampling=SamplingParams(max_tokens=8)))
        for _ in range(3):
            engine.step()
        metrics.update(engine.stats())
    finally:
        engine.close()
    return shown(metrics)


def documented() -> dict[tuple[str, str], list[str]]:
    """Return the table's rows: version, and a cell for each of openvino, simulated, tensorrt and pytorch."""
    page = (TESTS.parent / "docs" / "observability.md").read_text()
    rows = re.findall(r"^\| `(nv_\w+)\{\w+=\"(\w+)\"\}` \| ([\d.]+) \| (.+) \|$", page, re.MULTILINE)
    return {(family, name): [since, *cells.split(" | ")] for family, name, since, cells in rows}


def test_the_gauges_are_upstream_s_with_their_labels_and_versions() -> None:
    for gauge in GAUGES:
        assert UPSTREAM[gauge.family]["label"] == gauge.label
        assert UPSTREAM[gauge.family]["since"][gauge.name] == gauge.since
    names = {gauge.key for gauge in GAUGES} | set(CONSTANTS) | set(DRAFT_ENGINES_OWN)
    gauges = {family for family, facts in UPSTREAM.items() if facts["kind"] == "gauge"}
    assert names == {(family, name) for family in gauges for name in labels_of(family)}


def test_requests_are_counted_under_upstream_s_names_too() -> None:
    families = {
        family.name: family for family in RequestMetrics(pb_utils.MetricFamily, model="m", version="1")._families
    }
    for name, facts in UPSTREAM.items():
        if facts["kind"] == "gauge":
            continue
        kinds = {"counter": pb_utils.MetricFamily.COUNTER, "histogram": pb_utils.MetricFamily.HISTOGRAM}
        assert families[name].kind == kinds[facts["kind"]]
        assert {metric.labels[facts["label"]] for metric in families[name].metrics} == labels_of(name)


def test_a_row_of_upstream_s_statistics_is_read_into_the_gauge_that_upstream_shows() -> None:
    numbers = iter(range(100, 200))
    parts = ("kvCacheStats", "inflightBatchingStats")
    row: dict[str, Any] = {name: next(numbers) for name in FACTS["IterationStats"] if not name.endswith("Stats")}
    row["timestamp"] = "11-24-2026 03:00:00.000000"
    for part in parts:
        row[part] = {name: next(numbers) for name in FACTS[part]}
    for name in ("cacheHitRate", "avgNumDecodedTokensPerIter", "iterLatencyMS", "newActiveRequestsQueueLatencyMS"):
        (row if name in row else next(row[part] for part in parts if name in row[part]))[name] = 0.5
    stats = read_stats(row)
    metrics = EngineMetrics(pb_utils.MetricFamily, model="tensorrt_llm", version="1")
    metrics.update(
        EngineStats(num_running=1, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=1, num_steps=1, batch=stats.batch)
    )
    found = shown(metrics)
    batch, blocks = row["inflightBatchingStats"], row["kvCacheStats"]
    assert {name: value for (_, name), value in found.items() if value >= 100 and name != "timestamp"} == {
        "context": batch["numContextRequests"],
        "cpu": row["cpuMemUsage"],
        "gpu": row["gpuMemUsage"],
        "pinned": row["pinnedMemUsage"],
        "reused": blocks["reusedBlocks"],
        "total_context_tokens": batch["numCtxTokens"],
        "generation_requests": batch["numGenRequests"],
        "micro_batch_id": batch["microBatchId"],
        "paused_requests": batch["numPausedRequests"],
    }


@pytest.mark.parametrize(("provider", "column"), [("openvino", 1), ("simulated", 2)])
def test_what_an_engine_cannot_know_is_absent_as_the_table_says(provider: str, column: int) -> None:
    rows = documented()
    gauges = {key for key in rows if UPSTREAM[key[0]]["kind"] == "gauge"}
    assert set(shown_of(provider)) == {key for key in gauges if rows[key][column] == "yes"}


def test_the_table_has_every_name_with_its_version() -> None:
    rows = documented()
    assert {key: row[0] for key, row in rows.items()} == {
        (family, name): since for family, facts in UPSTREAM.items() for name, since in facts["since"].items()
    }
    assert {row[3] for row in rows.values()} == {"yes"}, "TensorRT-LLM tells all"


def test_values_of_the_batch_are_those_of_the_newest_step() -> None:
    found = shown_of("simulated")
    assert found["nv_trt_llm_request_metrics", "context"] == 0
    assert found["nv_trt_llm_inflight_batcher_metrics", "generation_requests"] == 1
    assert found["nv_trt_llm_inflight_batcher_metrics", "total_context_tokens"] == 0
    assert found["nv_trt_llm_general_metrics", "iteration_counter"] == 3
    assert found["nv_trt_llm_kv_cache_block_metrics", "tokens_per"] == 16


def test_what_a_dead_engine_told_last_does_not_stay() -> None:
    metrics = EngineMetrics(pb_utils.MetricFamily, model="tensorrt_llm", version="1")
    told = read_stats({"iter": 4, "inflightBatchingStats": {"numContextRequests": 3}, "gpuMemUsage": 7})
    alive = EngineStats(
        num_running=3, num_waiting=0, num_used_kv_blocks=1, num_kv_blocks=9, num_steps=4, batch=told.batch
    )
    metrics.update(alive)
    metrics.update(
        EngineStats(num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=9, num_steps=0, is_up=False)
    )
    found = shown(metrics)
    assert (found["nv_trt_llm_request_metrics", "context"], found["nv_trt_llm_runtime_memory_metrics", "gpu"]) == (0, 0)


def test_a_prefill_that_came_from_another_engine_is_counted_with_its_transfer() -> None:
    zero = timedelta(0)
    timing = SimpleNamespace(
        arrival_time=zero, first_scheduled_time=zero, first_token_time=zero, last_token_time=zero,
        kv_cache_transfer_start=timedelta(milliseconds=40), kv_cache_transfer_end=timedelta(milliseconds=52.5),
    )  # fmt: skip
    blocks = SimpleNamespace(num_total_allocated_blocks=1, num_new_allocated_blocks=1, num_reused_blocks=0)
    drafts = SimpleNamespace(total_accepted_draft_tokens=0, total_draft_tokens=0)
    metrics: Any = SimpleNamespace(timing_metrics=timing, kv_cache_metrics=blocks, speculative_decoding=drafts)
    told = read_perf_metrics(metrics, last_token_time_ns=0)
    timing.kv_cache_transfer_end = zero
    assert read_perf_metrics(metrics, last_token_time_ns=0).kv_cache_transfer_ms is None
    requests = RequestMetrics(pb_utils.MetricFamily, model="m", version="1")
    sequence = UNTRACED.begin_sequence(requests, num_prompt_tokens=4, kv_block_tokens=16)
    for _ in range(2):
        sequence.note_chunk(TokenChunk(1, [5], finish_reason=FinishReason.LENGTH, perf=told))
    requests.flush()
    family = next(one for one in requests._families if one.name == "nv_trt_llm_disaggregated_serving_metrics")
    counted = {metric.labels["disaggregated_serving_type"]: metric.value() for metric in family.metrics}
    assert counted == {"kv_cache_transfer_ms": 25.0, "request_count": 2}
