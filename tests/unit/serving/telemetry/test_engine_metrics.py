# SPDX-License-Identifier: Apache-2.0
"""Gauges under TensorRT-LLM's names show what the engine holds, not more often than is worth its cost."""

import time

import msgspec
import pytest
import triton_python_backend_utils as pb_utils
from manual_clock import ManualClock

from serving.engines.seam.base import AdmissionStats, CancelStats, EngineInfo, EngineStats
from serving.telemetry import engine_metrics
from serving.telemetry.engine_metrics import EngineMetrics

BUSY = EngineStats(num_running=3, num_waiting=2, num_used_kv_blocks=7, num_kv_blocks=10, num_steps=1)
BUSIER = EngineStats(num_running=4, num_waiting=0, num_used_kv_blocks=8, num_kv_blocks=10, num_steps=2)
IDLE = EngineStats(num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=10, num_steps=3)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(engine_metrics, "time", clock)
    return clock


@pytest.fixture
def metrics() -> EngineMetrics:
    return EngineMetrics(pb_utils.MetricFamily, model="tensorrt_llm", version="3")


def shown(metrics: EngineMetrics) -> dict[str, float]:
    """Return the values by the label that tells the gauges of a family apart."""
    families: dict[str, pb_utils.MetricFamily] = metrics._metrics._families
    found = {}
    for family in families.values():
        for metric in family.metrics:
            labels = dict(metric.labels)
            assert labels.pop("version") == "3"
            assert labels.pop("model") == "tensorrt_llm"
            found["/".join([family.name, *(part for item in labels.items() for part in item)])] = metric.value()
    return found


def test_names_and_labels_are_those_of_tensorrt_llms_backend(clock: ManualClock, metrics: EngineMetrics) -> None:
    assert clock.now_s
    metrics.update(BUSY)
    found = shown(metrics)
    assert found.pop("nv_trt_llm_general_metrics/general_type/timestamp") == pytest.approx(time.time() * 1e6, rel=1e-6)
    assert found == {
        "nv_trt_llm_request_metrics/request_type/active": 5,
        "nv_trt_llm_request_metrics/request_type/scheduled": 3,
        "nv_trt_llm_request_metrics/request_type/waiting": 2,
        "nv_trt_llm_kv_cache_block_metrics/kv_cache_block_type/max": 10,
        "nv_trt_llm_kv_cache_block_metrics/kv_cache_block_type/used": 7,
        "nv_trt_llm_kv_cache_block_metrics/kv_cache_block_type/free": 3,
        "nv_trt_llm_kv_cache_block_metrics/kv_cache_block_type/fraction": 0.7,
        "nv_trt_llm_general_metrics/general_type/iteration_counter": 1,
        "trireme_requests_running": 3,
        "trireme_requests_waiting": 2,
        "trireme_kv_cache_usage_fraction": 0.7,
        "trireme_engine_up": 1,
    }


def used(metrics: EngineMetrics) -> float:
    return shown(metrics)["nv_trt_llm_kv_cache_block_metrics/kv_cache_block_type/used"]


def test_they_change_ten_times_a_second_at_most(clock: ManualClock, metrics: EngineMetrics) -> None:
    metrics.update(BUSY)
    clock.now_s += 0.09
    metrics.update(BUSIER)
    assert used(metrics) == 7
    clock.now_s += 0.02
    metrics.update(BUSIER)
    assert used(metrics) == 8


def test_an_engine_that_has_become_idle_is_shown_at_once(clock: ManualClock, metrics: EngineMetrics) -> None:
    assert clock.now_s
    metrics.update(BUSY)
    metrics.update(IDLE)
    assert used(metrics) == 0


def test_an_engine_of_short_requests_is_seen_at_work(clock: ManualClock, metrics: EngineMetrics) -> None:
    seen = []
    for _ in range(20):
        for stats in (BUSY, IDLE):
            metrics.update(stats)
            seen.append(used(metrics))
            clock.now_s += 0.04
    assert seen[::4] == [7] * 10, "a request of 40 ms and a pause of 40 ms: every other one"


def test_a_gauge_that_has_not_changed_costs_no_message(
    clock: ManualClock, metrics: EngineMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics.update(BUSY)
    messages: list[float] = []
    monkeypatch.setattr(pb_utils.Metric, "set", lambda _, value: messages.append(value))
    clock.now_s += 1
    metrics.update(BUSY)
    assert messages == []
    clock.now_s += 1
    metrics.update(BUSIER)
    [told_at_us] = [value for value in messages if value > 1e6]
    upstream = [4, 4, 0, 8, 2, 0.8, 2, told_at_us]
    assert messages[:8] == upstream, "active, scheduled, waiting, used, free, fraction, iterations, timestamp"
    assert messages[8:] == [4, 0, 0.8], "running, waiting, usage"


def test_cancels_are_counted_by_outcome_over_the_lives_of_engines(clock: ManualClock, metrics: EngineMetrics) -> None:
    metrics.update(BUSY)
    assert not any("cancels" in name for name in shown(metrics)), "none yet"
    name = "trireme_engine_cancels_total/outcome/unconfirmed"
    for num_unconfirmed, total in ((1, 1), (1, 1), (4, 4), (None, 4), (2, 6)):
        clock.now_s += 1.0
        cancels = None if num_unconfirmed is None else CancelStats(num_unconfirmed=num_unconfirmed)
        metrics.update(msgspec.structs.replace(BUSY, cancels=cancels))
        assert shown(metrics)[name] == total
    assert "trireme_engine_cancels_total/outcome/confirmed" not in shown(metrics)


def test_preemptions_are_counted_over_the_lives_of_engines_that_tell(
    clock: ManualClock, metrics: EngineMetrics
) -> None:
    metrics.update(BUSY)
    assert "trireme_preemptions_total" not in shown(metrics)
    for num_preemptions, total in ((0, 0), (3, 3), (3, 3), (5, 5), (None, 5), (5, 10)):
        clock.now_s += 1
        metrics.update(msgspec.structs.replace(BUSY, num_preemptions=num_preemptions))
        assert shown(metrics)["trireme_preemptions_total"] == total


def test_who_waits_and_who_was_refused_is_shown_by_class(clock: ManualClock, metrics: EngineMetrics) -> None:
    def of_admission() -> dict[str, float]:
        return {name: value for name, value in shown(metrics).items() if "class" in name}

    waiting = {"premium": 0, "standard": 2, "batch": 5}
    refused = {"batch queue_full": 3}
    metrics.update(msgspec.structs.replace(BUSY, admission=AdmissionStats(num_waiting=waiting, num_refused=refused)))
    clock.now_s += 1
    refused = {"batch queue_full": 4, "standard overload": 1}
    metrics.update(msgspec.structs.replace(BUSY, admission=AdmissionStats(num_waiting=waiting, num_refused=refused)))
    assert of_admission() == {
        "trireme_queue_requests/class/premium": 0,
        "trireme_queue_requests/class/standard": 2,
        "trireme_queue_requests/class/batch": 5,
        "trireme_refused_requests_total/class/batch/reason/queue_full": 4,
        "trireme_refused_requests_total/class/standard/reason/overload": 1,
    }
    clock.now_s += 1  # another engine, which counts anew
    again = AdmissionStats(num_waiting=dict.fromkeys(waiting, 0), num_refused={"batch queue_full": 2})
    metrics.update(msgspec.structs.replace(BUSY, admission=again))
    assert of_admission()["trireme_refused_requests_total/class/batch/reason/queue_full"] == 6
    assert of_admission()["trireme_queue_requests/class/batch"] == 0


@pytest.mark.parametrize(("is_verified", "expected"), [(True, 1), (False, 0), (None, None)])
def test_whether_the_files_are_verified_is_shown_of_engines_that_have_some(
    metrics: EngineMetrics, is_verified: bool | None, expected: float | None
) -> None:
    info = EngineInfo(
        provider="openvino", vocab_size=8, max_seq_len=8, end_ids=(0,), kv_block_tokens=4, num_kv_blocks=2,
        max_num_seqs=1, max_num_batched_tokens=8, supported=frozenset(),
    )  # fmt: skip
    metrics.describe(info, is_verified=is_verified)
    assert shown(metrics).get("trireme_engine_verified") == expected


def test_the_step_of_the_ladder_is_shown_where_there_is_one(clock: ManualClock, metrics: EngineMetrics) -> None:
    for step, expected in ((None, None), (2, 2), (1, 1)):
        clock.now_s += 1
        of_admission = AdmissionStats(num_waiting={}, num_refused={}, degradation_step=step)
        metrics.update(msgspec.structs.replace(BUSY, admission=of_admission))
        assert shown(metrics).get("trireme_degradation_step") == expected
    metrics.update(IDLE)  # the engine has died
    assert shown(metrics)["trireme_degradation_step"] == 0
