# SPDX-License-Identifier: Apache-2.0
"""Plans of a model whose linear attention keeps a state for each sequence: memory, limits, time and what is legal."""

import json
from dataclasses import replace

import pytest

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.weight_formats import FORMAT_PLANS
from build_engines.cost.cost_spec import PlannedEngine, Traffic
from build_engines.cost.engine_rates import rates_of
from build_engines.planner.estimators.aisimulate_estimator import AiSimulate
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.estimators.uncertainty import factor_of
from build_engines.planner.option import Plan
from build_engines.planner.plan_report import plan_as_data, print_plan
from build_engines.planner.plan_table import plan_table
from build_engines.planner.question import Question
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted, candidates
from build_engines.planner.roofline.efficiencies import fitted
from build_engines.planner.roofline.footprint import footprint_of, kv_bytes_per_token, state_bytes_per_sequence
from build_engines.planner.roofline.legality import (
    why_blocks_are_not_reused,
    why_format_is_illegal,
    why_layout_is_illegal,
)
from build_engines.planner.roofline.steady_state import Limits, Workload
from build_engines.planner.roofline.step_time import Engine, StepLoad, step_time
from build_engines.sharding.parallel_sizes import ParallelSizes

pytestmark = pytest.mark.slow

MIB, GIB = 2**20, 2**30
QWEN3_NEXT = read_model_shape(known_models()["qwen3-next-80b-a3b"].config)
H200, B200 = gpu_named("h200"), gpu_named("b200")
LAYER_STATE = 2 * (32 * 128 * 128 + 8192 * 3)  # 16 bits: matrices, and three inputs of the convolution
FP8 = Wanted(weight_formats=("fp8",), kv_formats=("fp8",), tp_sizes=(2,), pp_sizes=(1,))
CHAT, ALL_AT_ONCE = Workload(2000, 500), Load()


def plan_of(workload: Workload = CHAT, *, load: Load = ALL_AT_ONCE, wanted: Wanted = FP8) -> Plan:
    question = Question(QWEN3_NEXT, Machines(H200, 2), workload, load, wanted=wanted)
    return make_plan(question, [Roofline()], num_curves=0)


def engine(gpu: str = "h200", tp_size: int = 1) -> Engine:
    layout = ParallelSizes(tp_size)
    return Engine(ModelCosts.of(QWEN3_NEXT), FORMAT_PLANS["fp8"], "fp8", layout, gpu_named(gpu))


# Memory


@pytest.mark.parametrize(
    ("layout", "num_bytes"),
    [
        (ParallelSizes(), 36 * LAYER_STATE),
        (ParallelSizes(2), 36 * LAYER_STATE // 2),  # 16 of 32 value heads, and their channels
        (ParallelSizes(8), 36 * LAYER_STATE // 8),
        (ParallelSizes(pp_size=2), 18 * LAYER_STATE),
        (ParallelSizes(pp_size=5), 8 * LAYER_STATE),  # of 48 layers 10, 10, 10, 9, 9: at most 8 of them linear
    ],
)
def test_the_states_of_a_sequence_on_the_fullest_rank(layout: ParallelSizes, num_bytes: int) -> None:
    assert state_bytes_per_sequence(QWEN3_NEXT, layout) == num_bytes


def test_a_sequence_of_qwen3_next_keeps_38_mib_beside_24_kib_a_token() -> None:
    assert state_bytes_per_sequence(QWEN3_NEXT) / MIB == pytest.approx(37.7, abs=0.05)
    assert kv_bytes_per_token(QWEN3_NEXT, "bf16") == 24 * 1024  # of 12 layers, not 48


def test_states_in_32_bits_are_twice_as_large() -> None:
    wide = replace(QWEN3_NEXT, dtype="float32")
    assert state_bytes_per_sequence(wide) == 2 * state_bytes_per_sequence(QWEN3_NEXT)


def test_models_without_linear_attention_keep_no_state() -> None:
    for name in ("llama-3.1-8b", "deepseek-v3", "gemma-3-27b"):
        shape = read_model_shape(known_models()[name].config)
        assert state_bytes_per_sequence(shape) == 0
        assert why_blocks_are_not_reused(shape) is None


@pytest.mark.parametrize("fraction", [0.5, 0.9])
@pytest.mark.parametrize("num_tokens", [100, 2_500, 200_000])
def test_as_many_sequences_fit_as_states_and_kv_cache_leave_room_for(fraction: float, num_tokens: int) -> None:
    """States of n sequences come first; n whole sequences fit into the cache's share of what they leave."""
    found = footprint_of(QWEN3_NEXT, FORMAT_PLANS["fp8"], "bf16", ParallelSizes(), B200, kv_fraction=fraction)
    free = found.memory_bytes - found.weight_bytes - found.workspace_bytes

    def fit(number: int) -> bool:
        cache = (free - number * 36 * LAYER_STATE) * fraction
        return cache >= number * num_tokens * 24 * 1024

    number = found.num_sequences(num_tokens)
    assert number > 1
    assert fit(number)
    assert not fit(number + 2)  # two, for tokens of the cache are rounded down


def test_the_batch_of_a_plan_is_bound_by_states_where_sequences_are_short() -> None:
    made = plan_of(Workload(100, 20), wanted=replace(FP8, max_batch_size=100_000))
    (option,) = (one for one in made.options if one.candidate.name == "fp8 kv-fp8 tp2")
    free = option.candidate.footprint.kv_bytes / 0.9
    states = option.estimate.batch_size * option.candidate.footprint.state_bytes_per_sequence
    assert 0.9 * free < states < free
    without = Limits(option.candidate.footprint.kv_tokens, 100_000).batch(Workload(100, 20))
    assert without > 10 * option.estimate.batch_size


def test_tokens_of_a_state_count_in_the_limits_of_a_batch() -> None:
    limits = Limits(kv_tokens=100_000, state_tokens=500.0)
    assert limits.batch(Workload(400, 100)) == 100
    assert limits._replace(state_tokens=0.0).batch(Workload(400, 100)) == 200


# Time


def cache_s(load: StepLoad) -> float:
    """Return the seconds of a step in which KV cache and states are read and written."""
    eff = fitted()
    twice = eff.model_copy(update={"kv_cache": 2 * eff.kv_cache})
    return 2 * (step_time(engine(), eff, load).bandwidth_s - step_time(engine(), twice, load).bandwidth_s)


@pytest.mark.parametrize(
    ("load", "num_bytes"),
    [
        (StepLoad(64, 0), 64 * 2 * 36 * LAYER_STATE),  # read once, written once
        (StepLoad(64, 1000), 64 * (2 * 36 * LAYER_STATE + 1000 * 12 * 1024)),  # and the KV cache of 12 layers in 8 bits
        (StepLoad(0, 0, 6400, 6400), 100 * 2 * 36 * 2 * 32 * 128 * 128),  # its matrices for each 64 tokens
        (StepLoad(64, 0, 6400, 6400), 64 * 2 * 36 * LAYER_STATE + 100 * 2 * 36 * 2 * 32 * 128 * 128),
    ],
    ids=["decode", "decode with a context", "prefill", "both"],
)
def test_states_are_read_and_written_by_each_sequence_that_decodes_and_each_chunk_of_a_prompt(
    load: StepLoad, num_bytes: int
) -> None:
    assert cache_s(load) == pytest.approx(num_bytes / (H200.bandwidth_gbs * 1e9 * fitted().kv_cache))


def test_a_prompt_works_on_the_states_of_linear_layers_and_looks_back_in_the_others() -> None:
    costs = ModelCosts.of(QWEN3_NEXT)
    assert costs.linear_attention_flops == 36 * 7 * 32 * 128 * 128
    assert costs.prefill_attention_flops(1000) == 12 * 4 * 16 * 256 * 1000**2 / 2
    assert costs.decode_attention_flops(1000) == 12 * 4 * 16 * 256 * 1000


def test_the_state_does_not_grow_with_the_context_nor_its_time() -> None:
    eff = fitted()
    states = step_time(engine(), eff, StepLoad(256, 0)).bandwidth_s
    halved = step_time(engine(tp_size=2), eff, StepLoad(256, 0)).bandwidth_s
    assert halved < 0.6 * states  # ranks divide it


# What is legal


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (ParallelSizes(8, ep_size=8), None),
        (ParallelSizes(2, pp_size=2), None),
        (ParallelSizes(3), "(16) is not divisible by tp_size (3)"),
        (ParallelSizes(cp_size=2), "keeps one state for all tokens of a sequence"),
        (ParallelSizes(2, ep_size=2, is_attention_dp=True), "attention DP is not for models with linear attention"),
    ],
)
def test_layouts_are_legal_or_refused_with_the_reason(layout: ParallelSizes, words: str | None) -> None:
    found = why_layout_is_illegal(QWEN3_NEXT, layout, H200, gpus_per_node=8)
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize(
    ("form", "kv", "is_legal"),
    [("bf16", "bf16", True), ("fp8_block", "fp8", True), ("int4_gptq", "bf16", False), ("fp8", "int8", False)],
)
def test_formats_that_only_compiled_engines_have_are_refused(form: str, kv: str, is_legal: bool) -> None:
    found = why_format_is_illegal(QWEN3_NEXT, FORMAT_PLANS[form], kv, ParallelSizes(), H200)
    assert (found is None) is is_legal
    assert is_legal or "compiles no Qwen3NextForCausalLM" in (found or "")


def test_linear_attention_is_said_to_be_measured_by_nobody() -> None:
    legal, _ = candidates(QWEN3_NEXT, Machines(H200, 2), FP8)
    factor, unmeasured = factor_of(legal[0])
    assert unmeasured == ["linear attention", "this model"]
    assert factor > 1.5
    limits = Limits(10**6)
    assert AiSimulate("unused").why_not(legal[0], Workload(100, 10), limits) == (
        "what it says of linear attention was compared with nothing"
    )


# What a plan says


def test_no_prompt_goes_on_from_cached_blocks() -> None:
    fresh, cached = plan_of(), plan_of(Workload(2000, 500, 1500))
    assert cached.options[0].estimate == fresh.options[0].estimate


def test_a_plan_says_what_a_deployment_has_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    made = plan_of(load=Load(concurrency=40))
    print_plan(made, name="qwen3-next-80b-a3b", num_shown=1)
    printed = " ".join(capsys.readouterr().out.split())
    assert "linear attention in 36 of 48 layers: a state of 37.7 MiB a sequence" in printed
    assert "engine.is_block_reuse must be false" in printed
    (note,) = (each for each in plan_table(made, 1).notes if each.startswith("States of"))
    assert "engine.max_num_seqs sequences, 18.8 MiB of a GPU each" in note
    assert "40 for the first" in note


def test_a_plan_as_data_has_the_states() -> None:
    data = json.loads(json.dumps(plan_as_data(plan_of(), name="qwen3-next-80b-a3b")))
    assert data["model"]["state_bytes_per_sequence"] == 36 * LAYER_STATE
    assert data["model"]["why_blocks_are_not_reused"].startswith("engine.is_block_reuse must be false")
    first = data["options"][0]
    assert first["state_bytes_per_sequence_per_gpu"] == 18 * LAYER_STATE
    assert first["num_whole_sequences"] >= first["batch_size"]


def test_the_cost_of_prompts_does_not_count_on_cached_blocks() -> None:
    planned = PlannedEngine(
        kind="planned", model="qwen3-next-80b-a3b", gpu="h200", max_gpus=2, weight_format="fp8", kv_format="fp8"
    )
    none, half = (
        rates_of(planned, Traffic(requests_per_s=1, isl=2000, osl=500, cached_fraction=fraction))
        for fraction in (0.0, 0.5)
    )
    assert half.seconds(1000, 500) == pytest.approx(none.seconds(2000, 500), rel=1e-6)
