# SPDX-License-Identifier: Apache-2.0
"""The account of an engine's steps matches the steps, and costs next to nothing."""

import itertools
import time
from typing import Any

import msgspec
import pytest
import triton_python_backend_utils as pb_utils
from manual_clock import ManualClock

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import (
    Engine,
    EngineCosts,
    EngineInfo,
    GenerationRequest,
    SamplingParams,
    StepStats,
    TokenChunk,
)
from serving.engines.seam.clock import VirtualClock, WallClock
from serving.engines.simulated.simulated_engine import SimulatedEngine
from serving.telemetry import step_metrics
from serving.telemetry.shown_metrics import ShownMetrics
from serving.telemetry.step_account import AccountedEngine
from serving.telemetry.step_metrics import StepMetrics

STEP_S = 0.01


def accounted(**spec: Any) -> AccountedEngine:
    """Return an accounted engine with steps of 10 ms for any batch."""
    defaults = {"step_ms": 10.0, "prefill_us_per_token": 0.0, "decode_us_per_seq": 0.0}
    clock = VirtualClock()
    return AccountedEngine(SimulatedEngine(SimulatedEngineSpec(provider="simulated", **defaults | spec), clock), clock)


def request(key: int, num_prompt_tokens: int, max_tokens: int, **sampling: Any) -> GenerationRequest:
    input_ids = list(range(100, 100 + num_prompt_tokens))
    return GenerationRequest(key=key, input_ids=input_ids, sampling=SamplingParams(max_tokens=max_tokens, **sampling))


def account(engine: Engine) -> dict[str, float]:
    steps = engine.stats().steps
    assert steps is not None
    return {name: getattr(steps, name) for name in StepStats.__struct_fields__}


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def test_every_step_is_accounted_for_by_what_it_did() -> None:
    engine = accounted()
    engine.add(request(1, 20, 3))
    engine.step()  # prefill of the first: 20 tokens, and its first token
    engine.add(request(2, 10, 2))
    engine.step()  # the first reads its 21, beside the prefill of the second: 10
    engine.step()  # both decode: 22 and 11 are read, and both end
    assert not engine.has_work
    assert account(engine) == pytest.approx(
        {
            "num_steps": 3,
            "steps_s": 3 * STEP_S,
            "num_prefill_steps": 2,
            "prefill_steps_s": 2 * STEP_S,
            "num_prompt_tokens": 30,
            "num_output_tokens": 5,
            "num_kv_read_tokens": 21 + 22 + 11,
            "num_batch_seqs": 1 + 2 + 2,
        }
    )


def test_each_chunk_of_a_request_that_wants_it_says_what_is_known_up_to_it() -> None:
    engine = accounted()
    engine.add(msgspec.structs.replace(request(1, 20, 3), tells_perf=True))
    engine.add(request(2, 20, 3))
    chunks = [chunk for _ in range(3) for chunk in engine.step()]
    told = [chunk.perf for chunk in chunks if chunk.key == 1]
    assert [perf is not None and perf.kv_cache_alloc_total_blocks for perf in told] == [2, 2, 2]
    assert [chunk.perf is not None for chunk in chunks if chunk.key == 2] == [False, False, True]


def test_a_prompt_in_pieces_is_several_steps_of_prefill_and_counts_with_its_first_token() -> None:
    engine = accounted(max_num_batched_tokens=8)
    engine.add(request(1, 20, 2))
    engine.step()
    engine.step()
    assert account(engine)["num_prompt_tokens"] == 0
    engine.step()  # 8, 8 and 4
    found = account(engine)
    assert (found["num_steps"], found["num_prefill_steps"], found["num_prompt_tokens"]) == (3, 3, 20)
    assert found["num_kv_read_tokens"] == 0, "nobody decodes yet"
    engine.step()
    assert account(engine)["num_prefill_steps"] == 3


def test_an_engine_without_work_counts_no_step() -> None:
    engine = accounted()
    for _ in range(3):
        assert engine.step() == []
    assert account(engine)["num_steps"] == account(engine)["steps_s"] == 0


def test_who_is_cancelled_is_read_no_more() -> None:
    engine = accounted()
    engine.add(request(1, 20, 100))
    engine.add(request(2, 10, 3))
    engine.step()
    engine.cancel(1)
    engine.cancel(1)
    engine.cancel(77)
    run(engine)
    assert account(engine)["num_kv_read_tokens"] == 11 + 12
    assert account(engine)["num_batch_seqs"] == 2 + 1 + 1


def test_prompt_tokens_whose_blocks_were_reused_do_not_count() -> None:
    engine = accounted(kv_block_tokens=4)
    keep = {
        "retention_token_range_starts": (0,),
        "retention_token_range_ends": (-1,),
        "retention_token_range_priorities": (50,),
    }
    engine.add(request(1, 20, 2, **keep))
    run(engine)
    assert account(engine)["num_prompt_tokens"] == 20
    engine.add(request(2, 20, 2, **keep))
    run(engine)
    assert account(engine)["num_prompt_tokens"] == 20 + 4, "4 of 5 blocks: the last token's is computed again"


class ReusingParts(SimulatedEngine):
    """An engine like OpenVINO's, which reports cached tokens of the prompt, in parts of blocks, too."""

    def step(self) -> list[TokenChunk]:
        chunks = super().step()
        for chunk in chunks:
            if chunk.perf is not None:
                chunk.perf = msgspec.structs.replace(chunk.perf, num_cached_tokens=7)
        return chunks


def test_prompt_tokens_that_were_cached_in_a_part_of_a_block_do_not_count() -> None:
    clock = VirtualClock()
    spec = SimulatedEngineSpec(provider="simulated", kv_block_tokens=4)
    engine = AccountedEngine(ReusingParts(spec, clock), clock)
    engine.add(request(1, 20, 1))
    run(engine)
    assert account(engine)["num_prompt_tokens"] == 20 - 7
    batch = engine.stats().batch
    assert batch is not None
    assert batch.num_reused_kv_blocks == 1, "whole ones"


class IteratingBeside(SimulatedEngine):
    """An engine like TensorRT-LLM, with iterations beside the calls of `step`: three for each call."""

    def stats(self) -> Any:
        stats = super().stats()
        return msgspec.structs.replace(stats, num_steps=3 * stats.num_steps)


def test_iterations_that_go_on_beside_the_calls_count_as_the_engine_counts_them() -> None:
    clock = VirtualClock()
    engine = AccountedEngine(IteratingBeside(SimulatedEngineSpec(provider="simulated", step_ms=10.0), clock), clock)
    engine.add(request(1, 4, 3))
    run(engine)
    found = account(engine)
    assert (found["num_steps"], found["num_batch_seqs"]) == (9, 9)
    assert found["num_kv_read_tokens"] == 3 * (5 + 6)
    assert found["steps_s"] == pytest.approx(3 * STEP_S, abs=1e-3), "the time is that which passed"


def test_the_account_costs_less_than_a_hundredth_of_a_step_of_ten_milliseconds() -> None:
    """64 sequences that all make a token in each step: the CPU time of the engine's loop with and without."""

    def seconds(engine: Engine) -> float:
        for key in range(64):
            engine.add(request(key, 8, 400))
        engine.step()
        began_s = time.thread_time()  # whoever else runs on the machine
        for _ in range(300):
            engine.step()
            engine.stats()
        took_s = time.thread_time() - began_s
        for key in range(64):
            engine.cancel(key)
        return took_s

    spec = SimulatedEngineSpec(
        provider="simulated", step_ms=0.0, prefill_us_per_token=0.0, decode_us_per_seq=0.0, max_num_batched_tokens=2048
    )
    plain = SimulatedEngine(spec, WallClock())
    counted = AccountedEngine(SimulatedEngine(spec, WallClock()), WallClock())
    pairs = [(seconds(plain), seconds(counted)) for _ in range(5)]
    cost_s = min(with_account for _, with_account in pairs) - min(without for without, _ in pairs)
    assert cost_s / 300 < 100e-6, "64 sequences of a real engine take 10 ms a step and more"


# What Prometheus sees


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(step_metrics, "time", clock)
    return clock


@pytest.fixture
def metrics() -> StepMetrics:
    labels = {"model": "tensorrt_llm", "version": "2"}
    gauges, counters = step_metrics.GAUGES, step_metrics.COUNTERS
    return StepMetrics(ShownMetrics(pb_utils.MetricFamily, labels, gauges=gauges, counters=counters))


def shown(metrics: StepMetrics) -> dict[str, float]:
    families: list[pb_utils.MetricFamily] = [*metrics._metrics._families.values()]
    assert all(dict(m.labels) == {"model": "tensorrt_llm", "version": "2"} for f in families for m in f.metrics)
    return {family.name.removeprefix("trireme_engine_"): m.value() for family in families for m in family.metrics}


def stats(number: int) -> StepStats:
    return StepStats(*itertools.islice(itertools.count(number), 8))


INFO = EngineInfo(
    provider="simulated", vocab_size=9, max_seq_len=9, end_ids=(), kv_block_tokens=16, num_kv_blocks=9, max_num_seqs=64,
    max_num_batched_tokens=9, supported=frozenset(), costs=EngineCosts(weight_bytes=1e9, kv_bytes_per_token=2048.0),
)  # fmt: skip


def test_only_what_is_known_of_the_engine_is_shown(clock: ManualClock, metrics: StepMetrics) -> None:
    assert clock.now_s
    metrics.describe(INFO)
    assert shown(metrics) == {"max_num_seqs": 64, "weight_bytes": 1e9, "kv_bytes_per_token": 2048, "up": 1}
    metrics.show(None, is_up=True)
    assert "steps_total" not in shown(metrics), "an engine that does not tell has no counters"


def test_counters_begin_at_zero_and_go_on_twice_a_second(clock: ManualClock, metrics: StepMetrics) -> None:
    metrics.show(StepStats(), is_up=True)
    assert shown(metrics) == dict.fromkeys(
        (
            *("steps_total", "step_seconds_total", "prefill_steps_total", "prefill_step_seconds_total"),
            *("prompt_tokens_total", "output_tokens_total", "kv_read_tokens_total", "batch_sequences_total"),
        ),
        0,
    ) | {"up": 1}
    clock.now_s += 0.4
    metrics.show(stats(5), is_up=True)
    assert shown(metrics)["steps_total"] == 0
    clock.now_s += 0.2
    metrics.show(stats(7), is_up=True)
    assert (shown(metrics)["steps_total"], shown(metrics)["batch_sequences_total"]) == (7, 14)


def test_an_engine_that_is_started_again_counts_on_and_nothing_of_the_last_one_is_lost(
    clock: ManualClock, metrics: StepMetrics
) -> None:
    metrics.show(stats(10), is_up=True)
    clock.now_s += 0.1
    metrics.show(stats(15), is_up=True)  # too early to be shown
    metrics.show(None, is_up=False)
    assert (shown(metrics)["steps_total"], shown(metrics)["up"]) == (15, 0)
    clock.now_s += 3
    metrics.show(stats(2), is_up=True)
    assert (shown(metrics)["steps_total"], shown(metrics)["up"]) == (17, 1)
    clock.now_s += 3
    metrics.show(stats(1), is_up=True)  # another one again, of whose end nobody was told
    assert shown(metrics)["steps_total"] == 18
