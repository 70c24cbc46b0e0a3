# SPDX-License-Identifier: Apache-2.0
"""The planner's arithmetic, its errors on published figures, and the plans that follow."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import WEIGHT_FORMATS, FormatPlan
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.estimators.published import Measurement, errors_of, log_errors, measurements, scored
from build_engines.planner.estimators.uncertainty import factor_of
from build_engines.planner.plan_plot import alike, label_of, line_of
from build_engines.planner.plan_report import plan_as_data
from build_engines.planner.ranking import Option, Plan, Question, Targets, make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted, candidates
from build_engines.planner.roofline.efficiencies import TABLE, fitted
from build_engines.planner.roofline.footprint import Footprint, footprint_of, kv_bytes_per_token
from build_engines.planner.roofline.legality import (
    why_format_is_illegal,
    why_layout_is_illegal,
    why_prompts_are_not_chunked,
)
from build_engines.planner.roofline.serving_limit import ServingLimit
from build_engines.planner.roofline.steady_state import (
    Estimate,
    Limits,
    Workload,
    at_concurrency,
    at_rate,
    at_users,
    prompt_share,
    saturated,
)
from build_engines.planner.roofline.step_time import Engine, StepLoad, StepTime, step_time
from build_engines.sharding.parallel_sizes import ParallelSizes
from trireme.base.errors import SpecError

pytestmark = pytest.mark.slow

GIB = 2**30
H100 = gpu_named("h100")


def model(name: str) -> ModelShape:
    return read_model_shape(known_models()[name].config)


def engine(name: str = "llama-3.1-8b", form: str = "bf16", kv: str = "bf16", gpu: str = "h100", tp: int = 1) -> Engine:
    return Engine(ModelCosts.of(model(name)), FormatPlan(WEIGHT_FORMATS[form]), kv, ParallelSizes(tp), gpu_named(gpu))


# What a model needs.


@pytest.mark.parametrize(
    ("name", "kv_format", "layout", "num_bytes"),
    [
        ("llama-2-7b", "fp16", ParallelSizes(), 2 * 32 * 32 * 128 * 2),  # 0.5 MiB
        ("llama-3.1-70b", "fp16", ParallelSizes(), 327_680),
        ("llama-3.1-70b", "fp8", ParallelSizes(), 163_840),
        ("llama-3.1-70b", "fp16", ParallelSizes(4), 327_680 / 4),
        ("llama-3.1-70b", "fp16", ParallelSizes(16), 327_680 / 8),  # 8 KV heads on 16 ranks: one each, twice
        ("llama-3.1-70b", "fp16", ParallelSizes(2, pp_size=4), 327_680 / 8),
        (
            "llama-3.1-405b",
            "fp16",
            ParallelSizes(pp_size=4),
            2 * 32 * 8 * 128 * 2,
        ),  # 126 layers: 32
        ("deepseek-v3", "fp16", ParallelSizes(8), 61 * 576 * 2),  # latent attention is not split
        ("deepseek-v3", "fp8", ParallelSizes(1, pp_size=61), 576),
    ],
)
def test_kv_bytes_of_a_token_on_a_rank(name: str, kv_format: str, layout: ParallelSizes, num_bytes: float) -> None:
    assert kv_bytes_per_token(model(name), kv_format, layout) == pytest.approx(num_bytes)


def _published_memory(metric: str) -> list[Measurement]:
    return [one for one in measurements() if one.metric == metric and "memory" in one.group]


def _footprint(one: Measurement) -> Footprint:
    layout = ParallelSizes(one.tp_size)
    return footprint_of(
        model(one.model),
        FormatPlan(WEIGHT_FORMATS[one.weight_format]),
        one.kv_format,
        layout,
        gpu_named(one.gpu or "h100"),
    )


@pytest.mark.parametrize("one", _published_memory("weights_memory_per_gpu"), ids=lambda one: one.id)
def test_weights_are_as_large_as_published(one: Measurement) -> None:
    unit = {"GiB": GIB, "MiB": 2**20, "GB": GIB}[one.unit]
    assert _footprint(one).weight_bytes == pytest.approx(one.value * unit, rel=0.005)


@pytest.mark.parametrize("one", _published_memory("kv_cache_memory_per_gpu"), ids=lambda one: one.id)
def test_the_kv_cache_is_as_large_as_published(one: Measurement) -> None:
    print_ = _footprint(one)
    left = 0.9 * print_.memory_bytes - print_.weight_bytes - print_.workspace_bytes  # vLLM's rule, and the log's
    assert left == pytest.approx(one.value * GIB, rel=0.08)


def test_a_70b_in_fp8_leaves_no_room_on_one_gpu_of_80_gb_for_a_long_sequence() -> None:
    found = footprint_of(model("llama-3.1-70b"), FormatPlan(WEIGHT_FORMATS["fp8"]), "fp8", ParallelSizes(), H100)
    assert found.weight_bytes / GIB == pytest.approx(67.7, abs=0.1)
    assert found.num_sequences(131_072) == 0
    assert found.num_sequences(2_048) > 0


# What is legal.


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("llama-3.1-70b", ParallelSizes(8), None),
        (
            "llama-3.1-70b",
            ParallelSizes(3),
            "num_attention_heads (64) is not divisible by tp_size (3); tp_size may be 1, 2, 4, 8",
        ),
        (
            "qwen2.5-7b",
            ParallelSizes(8),
            "num_attention_heads (28) is not divisible by tp_size (8); tp_size may be 1, 2, 4",
        ),
        ("llama-3.1-8b", ParallelSizes(16), "reaches over the NVLink domain of 8 H100-SXM-80GB"),
        ("llama-3.1-8b", ParallelSizes(4, cp_size=4), "reaches over the NVLink domain of 8"),
        ("llama-3.1-8b", ParallelSizes(pp_size=64), "pp_size (64) is more than the model's 32 layers"),
        ("llama-3.1-8b", ParallelSizes(2, ep_size=2), "ep_size is 2, but LlamaForCausalLM has no experts"),
        ("mixtral-8x7b", ParallelSizes(8, ep_size=8), None),
        ("mixtral-8x7b", ParallelSizes(4, ep_size=8), "ep_size (8) does not divide tp_size (4)"),
        ("llama-3.1-8b", ParallelSizes(2, is_attention_dp=True), "attention DP is for models with experts"),
        ("deepseek-v3", ParallelSizes(8, ep_size=8, is_attention_dp=True), None),
    ],
)
def test_layouts_are_legal_or_refused_with_the_reason(name: str, layout: ParallelSizes, words: str | None) -> None:
    reason = why_layout_is_illegal(model(name), layout, H100, gpus_per_node=8)
    assert reason is None if words is None else words in str(reason)


@pytest.mark.parametrize(
    ("form", "kv", "gpu", "words"),
    [
        ("fp8", "fp8", "h100", None),
        ("fp8", "fp8", "a100-80", "fp8 does not run on SM 80"),
        ("int4_awq", "fp8", "b200", "int4_awq does not run on SM 100"),
        ("nvfp4", "nvfp4", "b200", None),
        ("bf16", "nvfp4", "h100", "a KV cache in nvfp4 does not run on SM 90"),
        ("fp8_rowwise", "fp8", "l40s", "fp8_rowwise does not run on SM 89 (L40S); it does on SM 90"),
        (
            "fp8_block",
            "int8",
            "h100",
            "none of TensorRT-LLM's back ends serves fp8_block weights with a KV cache in int8",
        ),
        ("int4_awq", "fp8", "h100", None),  # as an engine
    ],
)
def test_formats_are_legal_or_refused_with_the_reason(form: str, kv: str, gpu: str, words: str | None) -> None:
    formats = FormatPlan(WEIGHT_FORMATS[form])
    reason = why_format_is_illegal(model("llama-3.1-8b"), formats, kv, ParallelSizes(), gpu_named(gpu))
    assert reason is None if words is None else words in str(reason)


@pytest.mark.parametrize(
    ("form", "kv", "gpu", "words"),
    [
        ("bf16", "bf16", "h100", None),
        ("bf16", "fp8", "h100", None),  # on the PyTorch backend
        ("fp8", "fp8", "l40s", None),
        (
            "bf16",
            "int8",
            "h100",
            "only a compiled engine has this, and paged context attention does not work with an INT8",
        ),
        ("int4_awq", "fp8", "h100", "needs weights in fp8, nvfp4, w4a8_awq"),
        ("smoothquant", "fp8", "a100-80", "needs weights in fp8, nvfp4, w4a8_awq"),
    ],
)
def test_prompts_are_chunked_where_a_back_end_can(form: str, kv: str, gpu: str, words: str | None) -> None:
    reason = why_prompts_are_not_chunked(form, kv, gpu_named(gpu))
    assert reason is None if words is None else words in str(reason)


def test_groups_of_scales_must_divide_what_a_rank_has() -> None:
    formats, layout = FormatPlan(WEIGHT_FORMATS["int4_awq"]), ParallelSizes(8)
    reason = why_format_is_illegal(model("llama-2-7b"), formats, "fp16", layout, H100)  # 11008 / 8 = 1376
    assert "int4_awq has one scale for 128 weights, but a rank's part of down [4096, 11008] is [4096, 1376]" in str(
        reason
    )


# How long a step takes.


def test_one_stream_waits_for_bandwidth_a_long_prompt_for_compute_many_gpus_on_pcie_for_the_link() -> None:
    assert step_time(engine(), fitted(), StepLoad(1, 1000)).bound_by == "bandwidth"
    assert step_time(engine(), fitted(), StepLoad(0, 0, 8192, 8192)).bound_by == "compute"
    linked = engine("llama-3.1-70b", "fp8", "fp8", "l40s", tp=8)
    assert step_time(linked, fitted(), StepLoad(0, 0, 8192, 2048)).bound_by == "interconnect"


def test_a_step_of_one_stream_takes_at_least_what_reading_the_weights_takes() -> None:
    weights_s = 2 * 8.03e9 / 3.35e12
    seconds = step_time(engine(), fitted(), StepLoad(1, 100)).total_s
    assert weights_s < seconds < 2 * weights_s


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 8000))
def test_more_work_never_takes_less_time(batch: int, more: int, context: int) -> None:
    for one in (engine(), engine("mixtral-8x7b", "fp8", "fp8", tp=2), engine("deepseek-v3", "fp8", "fp8", tp=8)):
        less, all_of_it = StepLoad(batch, context), StepLoad(batch + more, context)
        assert step_time(one, fitted(), less).total_s <= step_time(one, fitted(), all_of_it).total_s
        assert (
            step_time(one, fitted(), less).total_s
            <= step_time(one, fitted(), less._replace(prompt_tokens=more, prompt_length=more)).total_s
        )


def test_stages_of_a_pipeline_work_at_the_same_time_and_a_token_passes_them_all() -> None:
    one = engine("llama-3.1-70b", "fp8", "fp8")
    two = replace(one, layout=ParallelSizes(pp_size=2))
    alone, staged = (step_time(each, fitted(), StepLoad(64, 1000)).total_s for each in (one, two))
    # Half of the batch at a time reads all weights all the same.
    assert alone / 2 < staged < alone


# The steady state.

CHAT = Workload(1000, 500)
ROOMY = Limits(kv_tokens=400_000)


def test_throughput_is_batch_over_turnover() -> None:
    found = at_concurrency(engine(), fitted(), CHAT, ROOMY, 32)
    assert found is not None
    turnover_s = (found.ttft_ms + found.tpot_ms * 500) / 1000
    assert found.output_tokens_per_s == pytest.approx(32 * 500 / turnover_s, rel=0.03)


def test_clients_beyond_the_batch_wait_and_add_no_throughput() -> None:
    full = at_concurrency(engine(), fitted(), CHAT, ROOMY, 400_000 // 1500)
    twice = at_concurrency(engine(), fitted(), CHAT, ROOMY, 2 * (400_000 // 1500))
    assert full is not None
    assert twice is not None
    assert twice.output_tokens_per_s == full.output_tokens_per_s
    assert twice.ttft_ms > full.ttft_ms + 500 * full.tpot_ms / 2


def test_a_rate_is_served_by_littles_law_or_not_at_all() -> None:
    most = saturated(engine(), fitted(), CHAT, ROOMY)
    assert most is not None
    per_s = most.output_tokens_per_s / 500
    calm = at_rate(engine(), fitted(), CHAT, ROOMY, 0.3 * per_s)
    assert calm is not None
    in_engine = 0.3 * per_s * (calm.ttft_ms + 500 * calm.tpot_ms) / 1000
    assert calm.batch_size == pytest.approx(in_engine, rel=0.02)
    busy = at_rate(engine(), fitted(), CHAT, ROOMY, 0.8 * per_s)
    assert busy is not None
    assert busy.tpot_ms > calm.tpot_ms
    assert at_rate(engine(), fitted(), CHAT, ROOMY, 1.05 * per_s) is None


def test_users_are_those_in_the_engine_and_those_who_think() -> None:
    found = at_users(engine(), fitted(), CHAT, ROOMY, 500, 30)
    assert found is not None
    requests_per_s = found.output_tokens_per_s / 500
    in_engine = requests_per_s * (found.ttft_ms + 500 * found.tpot_ms) / 1000
    assert in_engine + 30 * requests_per_s == pytest.approx(500, rel=0.03)


def test_a_cached_prefix_is_not_computed_again_but_looked_back_at() -> None:
    def found(workload: Workload) -> Estimate:
        estimate = at_concurrency(engine(), fitted(), workload, ROOMY, 16)
        assert estimate is not None
        return estimate

    whole, cached, short = found(Workload(8000, 100)), found(Workload(8000, 100, 7000)), found(Workload(1000, 100))
    assert short.ttft_ms < cached.ttft_ms < whole.ttft_ms / 3
    assert short.tpot_ms < cached.tpot_ms < whole.tpot_ms


def test_the_attention_of_a_prompt_is_that_of_its_cached_part_and_of_its_rest() -> None:
    def prefill_s(tokens: int, cached: int) -> float:
        load = StepLoad(prompt_tokens=tokens - cached, prompt_length=tokens, cached_length=cached)
        return step_time(engine(), fitted(), load).compute_s

    # A row of logits comes with each prompt, so the two parts have one more than the whole.
    parts = prefill_s(20_000, 0) + prefill_s(30_000, 20_000)
    assert parts == pytest.approx(prefill_s(30_000, 0), rel=1e-4)


def test_prompts_share_the_time_of_an_engine_with_answers() -> None:
    def share(isl: int, osl: int, cached: int = 0) -> float:
        return prompt_share(engine(), fitted(), Workload(isl, osl, cached), ROOMY, 32)

    assert 0 < share(1000, 1000) < share(1000, 100) < share(2000, 100) < 1
    assert share(2000, 100, 1900) < share(2000, 100) / 5
    alone = at_concurrency(engine(), fitted(), Workload(1000, 500), ROOMY, 32)
    assert alone is not None
    # By hand: of the cycle in which 32 requests turn over, 500 steps of decoding are the answers'.
    decode_s = 500 * step_time(engine(), fitted(), StepLoad(32, 1250)).total_s
    cycle_s = 32 * 500 / alone.output_tokens_per_s
    assert share(1000, 500) == pytest.approx(1 - decode_s / cycle_s)


def test_a_prompt_in_chunks_waits_for_each_of_them() -> None:
    def ttft_s(max_num_tokens: int) -> float:
        limits = ROOMY._replace(max_num_tokens=max_num_tokens)
        found = at_concurrency(engine(), fitted(), Workload(1000, 100), limits, 1)
        assert found is not None
        return found.ttft_ms / 1000

    def step_s(chunk: int) -> float:
        return step_time(engine(), fitted(), StepLoad(0, 1050, chunk, 1000)).total_s

    half_a_step = ttft_s(1000) - step_s(1000)
    assert ttft_s(300) == pytest.approx(3 * step_s(300) + step_s(100) + half_a_step)
    assert ttft_s(1) == pytest.approx(1000 * step_s(1) + half_a_step)


def test_where_not_one_request_fits_there_is_no_estimate() -> None:
    assert saturated(engine(), fitted(), CHAT, Limits(kv_tokens=1000)) is None
    assert at_users(engine(), fitted(), CHAT, Limits(kv_tokens=1000), 5, 1) is None


# Errors on published figures.


def test_errors_are_as_stated_and_within_the_goals() -> None:
    stated = yaml.safe_load(TABLE.read_text())["errors"]
    found = errors_of(log_errors(scored(), fitted()))
    assert len(scored()) == 507
    assert {name: round(value, 3) for name, value in found._asdict().items()} == stated["fitted"]
    assert stated["model_left_out"]["median"] <= 1.20
    assert stated["gpu_left_out"]["median"] <= 1.30
    assert stated["model_left_out"]["p90"] <= 1.6
    assert stated["gpu_left_out"]["p90"] <= 1.6


def test_errors_are_medians_of_cells() -> None:
    cells = {"a": [math.log(2), math.log(1.1), math.log(0.5)], "b": [math.log(1.2)]}  # medians of |.|: log 2, log 1.2
    found = errors_of(cells)
    assert found.median == pytest.approx(math.sqrt(2 * 1.2))
    assert found.num_cells == 2


# Plans.


def plan_of(name: str = "llama-3.1-70b", gpu: str = "h100", num_gpus: int = 4, **changes: object) -> Plan:
    question = Question(model(name), Machines(gpu_named(gpu), num_gpus), Workload(1000, 1000))
    return make_plan(replace(question, **changes), [Roofline()])  # type: ignore[arg-type]


def test_the_first_option_costs_the_least_gpu_time_and_the_others_say_why_not() -> None:
    made = plan_of(price_per_gpu_hour=2.0)
    costs = [option.usd_per_million_tokens or 0 for option in made.options]
    assert costs == sorted(costs)
    assert made.options[0].why_not_first == ""
    assert all("x the GPU time a token: " in option.why_not_first for option in made.options[1:])


def test_the_price_of_a_million_tokens() -> None:
    first = plan_of(price_per_gpu_hour=2.0).options[0]
    hours = 1e6 / first.output_tokens_per_s / 3600
    assert first.usd_per_million_tokens == pytest.approx(hours * first.num_gpus * 2.0)


def test_who_misses_a_target_comes_behind_all_who_meet_it() -> None:
    made = plan_of(targets=Targets(tpot_ms=14.0))
    met = [option.missed is None for option in made.options]
    assert met == sorted(met, reverse=True)
    assert any(met)
    assert not all(met)
    assert all(option.estimate.tpot_ms <= 14.0 for option in made.options if option.missed is None)
    assert "TPOT " in str(made.options[-1].missed)


def test_a_rate_takes_as_few_gpus_as_keep_up() -> None:
    few, many = (plan_of(load=Load(requests_per_s=rate), num_gpus=8) for rate in (0.5, 8.0))
    assert few.options[0].num_gpus < many.options[0].num_gpus
    assert few.options[0].output_tokens_per_s == pytest.approx(500)


def test_a_rate_that_one_serving_host_cannot_stream_takes_more_of_them() -> None:
    option = plan_of("llama-3.1-8b", num_gpus=100, load=Load(requests_per_s=200), wanted=Wanted(tp_sizes=(1,))).options[
        0
    ]
    assert not option.is_capped_by_serving
    assert option.output_tokens_per_s == pytest.approx(200 * 1000)


@pytest.mark.parametrize("targets", [Targets(), Targets(ttft_ms=300), Targets(tpot_ms=12), Targets(tpot_ms=0.01)])
def test_the_fewest_replicas_are_what_trying_each_number_finds(targets: Targets) -> None:
    load = Load(requests_per_s=40)
    made = plan_of("llama-3.1-8b", num_gpus=16, load=load, targets=targets, wanted=Wanted(tp_sizes=(1,)))
    for option in made.options[:20]:
        one, limits = option.candidate, Limits(option.candidate.footprint.kv_tokens)
        tried = [
            Roofline().estimate(one, Workload(1000, 1000), load.shared(number), limits)
            for number in range(1, one.num_replicas + 1)
        ]
        most = ServingLimit()
        within = [
            each is not None
            and targets.missed_by(each) is None
            and each.output_tokens_per_s <= most.tokens_per_s(each.tpot_ms)
            for each in tried
        ]
        fewest = within.index(True) + 1 if any(within) else one.num_replicas
        assert option.num_gpus == fewest * one.layout.world_size


def test_sizes_that_take_too_many_gpus_are_listed_beside_those_that_do_not() -> None:
    made = plan_of(num_gpus=8, wanted=Wanted(tp_sizes=(4, 16)))
    assert {"tp16": "needs 16 GPUs, --gpus is 8"}.items() <= {one.name: one.reason for one in made.rejected}.items()


@pytest.mark.parametrize("num_nodes", [3, 16])
def test_nodes_have_as_many_gpus_each(num_nodes: int) -> None:
    with pytest.raises(SpecError, match=f"--gpus 8 over --nodes {num_nodes}: .* give a multiple of {num_nodes}"):
        Machines(H100, 8, num_nodes)


def test_few_clients_take_no_more_replicas_than_they_are() -> None:
    option = plan_of("llama-3.1-8b", num_gpus=8, load=Load(concurrency=3), wanted=Wanted(tp_sizes=(1,))).options[0]
    assert (option.num_gpus, option.estimate.batch_size) == (3, 1)


def test_prompts_that_are_not_chunked_are_bound_by_a_step_and_reuse_nothing() -> None:
    wanted = Wanted(weight_formats=("int4_awq",), kv_formats=("bf16", "int8"), tp_sizes=(4,), pp_sizes=(1,))
    made = plan_of(num_gpus=4, workload=Workload(9000, 300), wanted=wanted)
    assert {option.candidate.engine.kv_format for option in made.options} == {"bf16"}
    [why] = [one.reason for one in made.rejected if one.name == "int4_awq kv-int8 tp4"]
    assert why.startswith("prompts of 9000 tokens are more than a step's 8192, and are not chunked: only a compiled")
    # Of prompts that fit, a step has whole ones, and what is cached elsewhere is computed again.
    cached = plan_of(num_gpus=4, workload=Workload(5000, 300, 4000), wanted=wanted)
    whole = plan_of(num_gpus=4, workload=Workload(5000, 300), wanted=wanted)

    def of(plan: Plan, kv_format: str) -> Option:
        return next(option for option in plan.options if option.candidate.name == f"int4_awq kv-{kv_format} tp4")

    assert of(cached, "int8").estimate == of(whole, "int8").estimate
    assert of(cached, "bf16").estimate.ttft_ms < of(whole, "bf16").estimate.ttft_ms
    assert cached.options.index(of(cached, "bf16")) < cached.options.index(of(cached, "int8")), "ranked by what it can"
    assert whole.options.index(of(whole, "int8")) < whole.options.index(of(whole, "bf16")), (
        "its cache holds twice as many"
    )
    data = plan_as_data(whole, name="x")["options"]
    assert isinstance(data, list)
    limits = {each["kv_format"]: each["prompt_limit_tokens"] for each in data}
    assert limits == {"bf16": None, "int8": 8192}


def test_a_step_has_whole_prompts_where_they_are_not_chunked() -> None:
    unchunked = Limits(kv_tokens=400_000, is_chunked=False)
    assert unchunked.step_tokens(Workload(3000, 100)) == 6000
    assert unchunked.step_tokens(Workload(8192, 100)) == 8192
    assert ROOMY.step_tokens(Workload(3000, 100)) == 8192
    assert unchunked.why_too_long(Workload(8192, 100)) is None
    assert unchunked.why_too_long(Workload(8193, 100)) is not None
    assert ROOMY.why_too_long(Workload(8193, 100)) is None


def test_every_layout_that_cannot_be_is_listed_with_the_reason() -> None:
    made = plan_of(num_gpus=16, wanted=Wanted(weight_formats=("bf16", "nvfp4")))
    reasons = {one.name: one.reason for one in made.rejected}
    assert "does not fit: weights 131.4 GiB" in reasons["bf16 kv-bf16 tp1"]
    assert "NVLink domain of 8" in reasons["tp16"]
    assert "does not run on SM 90" in reasons["nvfp4 kv-bf16"]


def test_candidates_and_rejected_are_all_there_is() -> None:
    wanted = Wanted(weight_formats=("bf16",), kv_formats=("bf16", "fp8"), tp_sizes=(1, 2), pp_sizes=(1,))
    legal, rejected = candidates(model("llama-3.1-8b"), Machines(H100, 2), wanted)
    names = {one.name for one in legal} | {one.name for one in rejected}
    assert names == {f"bf16 kv-{kv} {layout}" for kv in ("bf16", "fp8") for layout in ("tp1", "tp2", "tp1 cp2")}


def test_the_serving_host_caps_what_many_slow_streams_make() -> None:
    weak = plan_of("llama-3.1-8b", serving=ServingLimit(responses_per_s=2000)).options[0]
    assert weak.is_capped_by_serving
    replicas = weak.num_gpus // weak.candidate.layout.world_size
    streams_share = max(1.0, 10 / weak.estimate.tpot_ms)
    assert weak.output_tokens_per_s == pytest.approx(replicas * 2000 * streams_share)
    assert not plan_of("llama-3.1-8b", serving=ServingLimit(responses_per_s=1e9)).options[0].is_capped_by_serving


def test_the_picture_shows_what_leaves_the_serving_host_as_the_table_does() -> None:
    made = plan_of("llama-3.1-8b", num_gpus=1)
    first = made.options[0]
    assert first.is_capped_by_serving
    user, engine, served = line_of(first, made.question.serving)
    at_full_batch = np.argmin(abs(user - 1000 / first.estimate.tpot_ms))
    assert served[at_full_batch] == pytest.approx(first.tokens_per_s_per_gpu)
    assert engine[at_full_batch] == pytest.approx(first.engine_output_tokens_per_s)
    assert all(served[user <= 100] <= made.question.serving.responses_per_s)
    last = plan_as_data(made, name="llama-3.1-8b")["options"][0]["curve"][-1]  # type: ignore[index]
    assert last["replica_served_output_tokens_per_s"] == pytest.approx(first.output_tokens_per_s)


def test_curves_that_lie_on_each_other_have_one_label() -> None:
    drawn = [option for option in plan_of("llama-3.1-8b", num_gpus=1).options if option.curve]
    labels = [label_of(group) for group in alike(drawn)]
    assert labels[:2] == ["fp8, fp8_block, fp8_rowwise, smoothquant kv-fp8 tp1", "w4a8_awq kv-fp8 tp1"]


def test_what_nobody_measured_is_said_and_makes_the_range_wider() -> None:
    legal, _ = candidates(model("llama-3.1-70b"), Machines(H100, 8), Wanted())
    known = next(one for one in legal if one.name == "fp8 kv-fp8 tp4")
    stages = next(one for one in legal if one.name == "fp8 kv-fp8 tp4 pp2")
    packed = next(one for one in legal if one.name == "int4_awq kv-fp8 tp4")
    elsewhere, _ = candidates(model("llama-3.1-70b"), Machines(gpu_named("b200"), 8), Wanted())
    new_gpu = next(one for one in elsewhere if one.name == "nvfp4 kv-fp8 tp4")
    assert factor_of(known)[1] == []
    assert factor_of(stages)[1] == ["pipeline parallelism"]
    assert factor_of(packed)[1] == ["weights that are unpacked first"]
    assert factor_of(new_gpu)[1] == ["FP4", "B200-SXM-180GB"]
    factors = [factor_of(one)[0] for one in (known, stages, packed, new_gpu)]
    assert factors == sorted(factors)
    assert factors[0] > 1.1


def test_a_plan_as_data_is_json_with_everything() -> None:
    data = plan_as_data(plan_of(num_gpus=2), name="llama-3.1-70b")
    again = json.loads(json.dumps(data))
    assert again["model"]["num_parameters"] == 70_553_706_496
    assert again["model"]["kv_bytes_per_token"]["fp16"] == 327_680
    first = again["options"][0]
    assert first["weight_bytes_per_gpu"] + first["workspace_bytes_per_gpu"] < 80e9
    assert first["curve"][0]["batch_size"] == 1
    assert set(first["step_ms"]) == {"compute", "bandwidth", "interconnect", "host", "total"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"num_gpus": 1, "gpu": "l4"},
            "on 1 x L4; the smallest that is legal, int4_weight_only kv-bf16 tp1: does not fit: weights 35.8 GiB .* "
            "on a GPU of .* GiB; give more GPUs",
        ),
        (
            {"num_gpus": 8, "wanted": Wanted(tp_sizes=(16,))},
            "the nearest, tp16: needs 16 GPUs, --gpus is 8; give more --gpus, or a smaller --tp-size",
        ),
        ({"num_gpus": 8, "wanted": Wanted(pp_sizes=(16,))}, "the nearest, tp1 pp16: needs 16 GPUs, --gpus is 8"),
        (
            {"num_gpus": 8, "wanted": Wanted(tp_sizes=(4,), pp_sizes=(4,))},
            "the nearest, tp4 pp4: needs 16 GPUs, --gpus is 8",
        ),
        (
            {"wanted": Wanted(tp_sizes=(3,))},
            r"\(64\) is not divisible by tp_size \(3\); tp_size may be .*; ask for another --tp-size or --pp-size$",
        ),
        ({"wanted": Wanted(weight_formats=("nvfp4",))}, "nvfp4 does not run on SM 90 .*; ask for another --format"),
        ({"workload": Workload(1000, 10, 1000)}, "--cached-tokens 1000 of a prompt of 1000: .* at most 999"),
        ({"workload": Workload(131_000, 1000)}, "isl \\+ osl is 132000 tokens, and the model reaches to 131072"),
        ({"load": Load(requests_per_s=1e6)}, "cannot keep up with 1e\\+06 requests/s"),
    ],
)
def test_a_question_without_an_answer_is_refused_with_the_way_out(changes: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        plan_of(**changes)  # type: ignore[arg-type]


def test_what_binds_is_the_largest_part() -> None:
    step = StepTime(compute_s=1, bandwidth_s=2, interconnect_s=0.5, host_s=0.1, total_s=3)
    assert Estimate(1, 1, 1, 1, step).bound_by == "bandwidth"
