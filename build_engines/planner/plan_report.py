# SPDX-License-Identifier: Apache-2.0
"""A plan as tables for people and as data for programs."""

from collections.abc import Iterator
from dataclasses import asdict

from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import FORMAT_PLANS, KV_FORMATS
from build_engines.checkpoint.weight_table import num_active_parameters, num_parameters
from build_engines.planner.estimators.estimator_choice import stated_errors
from build_engines.planner.option import Option, Plan
from build_engines.planner.pareto import Front, fronts_as_data
from build_engines.planner.plan_table import grouped, plan_table
from build_engines.planner.plan_words import load_in_words
from build_engines.planner.question import Question
from build_engines.planner.roofline.efficiencies import fitted
from build_engines.planner.roofline.footprint import kv_bytes_per_token, state_bytes_per_sequence
from build_engines.planner.roofline.legality import why_blocks_are_not_reused
from build_engines.planner.roofline.steady_state import Estimate
from trireme.base.text_tables import print_tables


def plan_as_data(plan: Plan, *, name: str, fronts: tuple[Front, ...] = ()) -> dict[str, object]:
    """Return the plan as data, with units in the names; `why_not_first` is empty for the first option."""
    question = plan.question
    model, machines = question.model, question.machines
    return {
        "model": {
            "name": name,
            "architecture": model.architecture,
            "quantized": None if question.quantized is None else question.quantized._asdict(),
            "num_parameters": num_parameters(model),
            "num_active_parameters": num_active_parameters(model),
            "is_vision_tower_left_out": model.has_vision,
            "weight_bytes": {form: _weight_bytes(question, form) for form in _formats_of(model)},
            "kv_bytes_per_token": {form: kv_bytes_per_token(model, form) for form in KV_FORMATS},
            "state_bytes_per_sequence": state_bytes_per_sequence(model),
            "why_blocks_are_not_reused": why_blocks_are_not_reused(model),
        },
        "machines": {"gpu": machines.gpu.title, "num_gpus": machines.num_gpus, "num_nodes": machines.num_nodes},
        "workload": question.workload._asdict(),
        "load": question.load._asdict(),
        "targets": asdict(question.targets),
        "price_per_gpu_hour": question.price_per_gpu_hour,
        "estimator": {"why": plan.why_estimator, "errors": stated_errors()},
        "options": [_option_as_data(option, plan) for option in plan.options],
        "pareto": fronts_as_data(fronts),
        "rejected": [asdict(one) for one in plan.rejected],
        "efficiencies": dict(fitted()),
    }


def print_plan(plan: Plan, *, name: str, num_shown: int) -> None:
    """Print the plan to standard output, as wide as the terminal."""
    print_tables([plan_table(plan, num_shown)], title="\n".join(_heading(plan, name)))


def _heading(plan: Plan, name: str) -> Iterator[str]:
    question = plan.question
    model, machines = question.model, question.machines
    total, active = num_parameters(model), num_active_parameters(model)
    mixture = f", {active / 1e9:.2f}B of them for each token" if active != total else ""
    yield f"{name}: {model.architecture}, {total:,} parameters{mixture}"
    yield from ["text part alone: the vision tower and its memory are not counted"] if model.has_vision else []
    sixteen = "fp16" if model.dtype == "float16" else "bf16"
    own = question.quantized.weight_format if question.quantized is not None else None
    forms = dict.fromkeys((sixteen, own or "fp8") if own == "mxfp4" else (sixteen, "fp8", "int4_awq"))
    sizes = ", ".join(f"{form} {_weight_bytes(question, form) / 1e9:.3g}" for form in forms)
    kv = ", ".join(f"{form} {kv_bytes_per_token(model, form):,.0f}" for form in (sixteen, "fp8"))
    yield f"weights in GB: {sizes}; KV bytes a token: {kv}"
    yield from _states(model)
    nodes = f" in {machines.num_nodes} nodes" if machines.num_nodes > 1 else ""
    cached = f" ({question.workload.cached} of them cached)" if question.workload.cached else ""
    yield f"{machines.num_gpus} x {machines.gpu.title}{nodes}; {question.workload.isl} tokens in{cached}, " + (
        f"{question.workload.osl} out; {load_in_words(question)}"
    )
    if question.quantized is not None:
        yield str(question.quantized)
    yield from _estimators(plan)


def _states(model: ModelShape) -> Iterator[str]:
    """Yield what linear attention keeps of a sequence, and what follows for a deployment."""
    if model.linear_layers:
        mib = state_bytes_per_sequence(model) / 2**20
        yield (
            f"linear attention in {len(model.linear_layers)} of {model.num_layers} layers: a state of {mib:.1f} MiB a "
            "sequence, beside the KV cache of the others"
        )
        yield f"{why_blocks_are_not_reused(model)}"


def _estimators(plan: Plan) -> Iterator[str]:
    """Yield how many options each estimator estimated, and why the first estimator did not."""
    of_name = grouped(plan.options, lambda option: option.estimator)
    counts = ", ".join(f"{len(options)} options by {name}" for name, options in of_name.items())
    yield f"estimated: {counts}" + (f"; {plan.why_estimator}" if plan.why_estimator else "")
    for reason, options in grouped(plan.options, lambda option: option.why_estimator).items():
        yield f"  {options[0].estimator} for {len(options)} options, {options[0].candidate.name} among them; {reason}"


def _option_as_data(option: Option, plan: Plan) -> dict[str, object]:
    engine, estimate, footprint = option.candidate.engine, option.estimate, option.candidate.footprint
    return {
        "weight_format": option.weight_format,
        "kv_format": engine.kv_format,
        **asdict(option.candidate.layout),
        "num_gpus": option.num_gpus,
        "num_replicas": option.num_replicas,
        "needs_16_bit_checkpoint": option.needs_16_bit_checkpoint,
        **_estimate_as_data(estimate),
        "engine_output_tokens_per_s": option.engine_output_tokens_per_s,
        "engine_output_tokens_per_s_per_gpu": option.engine_tokens_per_s_per_gpu,
        "served_output_tokens_per_s": option.served_output_tokens_per_s,
        "served_output_tokens_per_s_per_gpu": option.served_tokens_per_s_per_gpu,
        "usd_per_million_tokens": option.usd_per_million_tokens,
        "usd_per_million_tokens_as_served": option.usd_per_million_tokens_as_served,
        "serving_of_a_replica": asdict(option.serving) | {"is_over": option.serving.is_over},
        "estimator": option.estimator,
        "why_estimator": option.why_estimator or plan.why_estimator,
        "uncertainty_factor": option.uncertainty,
        "unmeasured": list(option.unmeasured),
        "prompt_limit_tokens": None
        if option.candidate.why_not_chunked is None
        else plan.question.wanted.max_num_tokens,
        "why_not_chunked": option.candidate.why_not_chunked,
        "bound_by": estimate.bound_by,
        "has_margin": option.has_margin,
        "missed": option.missed,
        "why_not_first": option.why_not_first,
        "weight_bytes_per_gpu": footprint.weight_bytes,
        "workspace_bytes_per_gpu": footprint.workspace_bytes,
        "kv_bytes_per_gpu": footprint.kv_bytes,
        "kv_bytes_per_token_per_gpu": footprint.kv_bytes_per_token,
        "kv_tokens": footprint.kv_tokens,
        "state_bytes_per_sequence_per_gpu": footprint.state_bytes_per_sequence,
        "num_whole_sequences": footprint.num_sequences(plan.question.workload.num_tokens),
        "curve": [_point_as_data(one, plan) for one in option.curve],
    }


def _point_as_data(estimate: Estimate, plan: Plan) -> dict[str, object]:
    most = plan.question.serving.tokens_per_s(estimate.tpot_ms)
    served = min(estimate.output_tokens_per_s, most)
    return {**_estimate_as_data(estimate), "replica_served_output_tokens_per_s": served}


def _estimate_as_data(estimate: Estimate) -> dict[str, object]:
    return {
        "ttft_ms": estimate.ttft_ms,
        "tpot_ms": estimate.tpot_ms,
        "replica_output_tokens_per_s": estimate.output_tokens_per_s,
        "batch_size": estimate.batch_size,
        "step_ms": None
        if estimate.step is None
        else {name.removesuffix("_s"): 1000 * seconds for name, seconds in vars(estimate.step).items()},
    }


def _formats_of(model: ModelShape) -> list[str]:
    return [name for name, plan in FORMAT_PLANS.items() if plan.experts is None or model.is_moe]


def _weight_bytes(question: Question, weight_format: str) -> int:
    costs = ModelCosts.of(question.model)
    return sum(costs.bytes_in(FORMAT_PLANS[weight_format]))
