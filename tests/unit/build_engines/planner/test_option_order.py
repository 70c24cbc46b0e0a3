# SPDX-License-Identifier: Apache-2.0
"""The first option is the one to deploy: its checkpoint, its bill, its margin, its loss."""

from dataclasses import replace

import pytest

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.quantized_checkpoint import Quantized
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.option import Option, Plan
from build_engines.planner.option_order import loss_of, ordered, why_not_first
from build_engines.planner.question import Question, Targets
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted
from build_engines.planner.roofline.steady_state import Workload

pytestmark = pytest.mark.slow

FP8 = Quantized("fp8", None, "fp8")


def plan_of(name: str = "llama-3.1-70b", num_gpus: int = 4, **changes: object) -> Plan:
    shape = read_model_shape(known_models()[name].config)
    question = Question(shape, Machines(gpu_named("h100"), num_gpus), Workload(1000, 300))
    return make_plan(replace(question, **changes), [Roofline()], num_curves=0)  # type: ignore[arg-type]


def names(plan: Plan) -> list[str]:
    return [option.candidate.name for option in plan.options]


def first_of(plan: Plan, weight_format: str) -> Option:
    return next(option for option in plan.options if option.weight_format == weight_format)


def test_what_the_checkpoint_is_comes_before_what_another_would_have_to_be_made_for() -> None:
    made = plan_of(num_gpus=1, quantized=FP8)
    needs = [option.needs_16_bit_checkpoint for option in made.options]
    assert needs == sorted(needs)
    assert [option.weight_format != "fp8" for option in made.options] == needs
    awq = first_of(made, "w4a8_awq")
    assert awq.engine_tokens_per_s_per_gpu > 1.5 * made.options[0].engine_tokens_per_s_per_gpu
    assert awq.why_not_first.startswith("needs the checkpoint in 16 bits; 0.")
    assert awq.why_not_first.endswith("x the GPU time a token: 4 bits for FP8")


def test_where_only_another_checkpoint_meets_the_targets_it_comes_first_and_says_so() -> None:
    targets = Targets(tpot_ms=20)
    wanted = Wanted(kv_formats=("fp8",), tp_sizes=(1,), pp_sizes=(1,))
    made = plan_of(num_gpus=1, quantized=FP8, targets=targets, wanted=wanted)
    best, own = made.options[0], first_of(made, "fp8")
    assert own.missed is not None
    assert best.missed is None
    assert best.needs_16_bit_checkpoint


def test_of_a_checkpoint_in_16_bits_every_format_can_be_made() -> None:
    assert not any(option.needs_16_bit_checkpoint for option in plan_of().options)


def test_a_checkpoint_in_none_of_the_formats_is_made_anew_for_every_row() -> None:
    made = plan_of(quantized=Quantized("gptq", 3, None))
    assert all(option.needs_16_bit_checkpoint for option in made.options)
    assert names(made) == names(plan_of())


def test_at_a_rate_the_fewest_gpus_come_first_then_the_least_loss_then_the_quickest() -> None:
    made = plan_of("llama-3.1-8b", load=Load(requests_per_s=10))
    assert names(made)[:2] == ["bf16 kv-bf16 tp1", "bf16 kv-fp8 tp1"]
    keys = [
        (option.num_gpus, not option.has_margin, *loss_of(option), option.estimate.tpot_ms) for option in made.options
    ]
    assert keys == sorted(keys)
    assert first_of(made, "w4a8_awq").why_not_first.startswith("as many GPUs; 4 bits for 16 bits, 0.")


def test_who_keeps_up_only_if_the_prediction_holds_comes_behind() -> None:
    wanted = Wanted(weight_formats=("bf16", "fp8"), kv_formats=("bf16",), tp_sizes=(1,), pp_sizes=(1,))
    bf16 = first_of(plan_of("llama-3.1-8b", num_gpus=1, wanted=wanted), "bf16")
    most = bf16.engine_output_tokens_per_s / 300

    def at(rate: float) -> Plan:
        return plan_of("llama-3.1-8b", num_gpus=1, load=Load(requests_per_s=rate), wanted=wanted)

    assert [option.weight_format for option in at(0.95 * most / bf16.uncertainty).options] == ["bf16", "fp8"]
    tight = at(0.98 * most)
    assert [(option.weight_format, option.has_margin) for option in tight.options] == [("fp8", True), ("bf16", False)]
    assert tight.options[1].why_not_first == f"as many GPUs; may not keep up, if slower by {bf16.uncertainty:.2f}"


@pytest.mark.parametrize(
    ("tokens_per_s", "order"),
    [
        ({"bf16": 100, "fp8": 102, "w4a8_awq": 104}, ["bf16", "fp8", "w4a8_awq"]),  # all within 5 % of the best
        ({"bf16": 100, "fp8": 104, "w4a8_awq": 106}, ["fp8", "w4a8_awq", "bf16"]),
        ({"bf16": 100, "fp8": 101, "w4a8_awq": 120}, ["w4a8_awq", "fp8", "bf16"]),  # near each other is not near it
    ],
)
def test_without_a_load_what_costs_nearly_the_same_as_the_cheapest_is_ordered_by_loss(
    tokens_per_s: dict[str, float], order: list[str]
) -> None:
    wanted = Wanted(kv_formats=("fp8",), tp_sizes=(1,), pp_sizes=(1,))
    made = plan_of("llama-3.1-8b", num_gpus=1, wanted=wanted)
    options = [replace(first_of(made, name), engine_output_tokens_per_s=speed) for name, speed in tokens_per_s.items()]
    found = ordered(made.question, options)
    assert [option.weight_format for option in found] == order
    worse = [why_not_first(made.question, option, found[0]) for option in found[1:]]
    if order[0] == "fp8":
        assert worse[0] == "0.98x the GPU time a token: 4 bits for FP8"
        assert worse[1].startswith("1.04x the GPU time a token: ")


def test_loss_is_ordered_by_weights_then_by_the_kv_cache() -> None:
    found = {option.candidate.name: loss_of(option) for option in plan_of("llama-3.1-8b", num_gpus=1).options}
    by_loss = ["bf16 kv-bf16", "bf16 kv-fp8", "fp8 kv-bf16", "fp8 kv-fp8", "int8_weight_only kv-bf16"]
    by_loss += ["int4_awq kv-bf16", "int4_weight_only kv-bf16"]
    losses = [found[f"{name} tp1"] for name in by_loss]
    assert losses == sorted(losses)
    assert len(set(losses)) == len(losses)
    assert found["smoothquant kv-bf16 tp1"] == found["int8_weight_only kv-bf16 tp1"]


def test_options_that_miss_are_ordered_by_speed_not_by_loss() -> None:
    made = plan_of("llama-3.1-8b", num_gpus=1, load=Load(requests_per_s=10), targets=Targets(tpot_ms=0.1))
    speeds = [option.estimate.tpot_ms for option in made.options]
    assert all(option.missed for option in made.options)
    assert speeds == sorted(speeds)
    assert made.options[0].weight_format == "w4a8_awq"


def test_the_order_does_not_hang_on_the_order_before() -> None:
    made = plan_of(num_gpus=2)
    assert ordered(made.question, list(reversed(made.options))) == list(made.options)
