# SPDX-License-Identifier: Apache-2.0
"""A plan as tables for people and as data for programs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TypeVar

from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.weight_formats import KV_FORMATS, WEIGHT_FORMATS, FormatPlan
from build_engines.checkpoint.weight_table import num_active_parameters, num_parameters
from build_engines.planner.estimators.estimator import Load
from build_engines.planner.estimators.estimator_choice import stated_errors
from build_engines.planner.ranking import Option, Plan, Question
from build_engines.planner.roofline.efficiencies import fitted
from build_engines.planner.roofline.footprint import kv_bytes_per_token
from build_engines.planner.roofline.steady_state import Estimate
from trireme.base.text_tables import TextTable, print_tables

_GIB = 2**30
T = TypeVar("T")


def plan_as_data(plan: Plan, *, name: str) -> dict[str, object]:
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
            "weight_bytes": {form: _weight_bytes(question, form) for form in WEIGHT_FORMATS},
            "kv_bytes_per_token": {form: kv_bytes_per_token(model, form) for form in KV_FORMATS},
        },
        "machines": {"gpu": machines.gpu.title, "num_gpus": machines.num_gpus, "num_nodes": machines.num_nodes},
        "workload": question.workload._asdict(),
        "load": question.load._asdict(),
        "targets": asdict(question.targets),
        "price_per_gpu_hour": question.price_per_gpu_hour,
        "estimator": {"why": plan.why_estimator, "errors": stated_errors()},
        "options": [_option_as_data(option, plan) for option in plan.options],
        "rejected": [asdict(one) for one in plan.rejected],
        "efficiencies": dict(fitted()),
    }


def print_plan(plan: Plan, *, name: str, num_shown: int) -> None:
    """Print the plan to standard output, as wide as the terminal."""
    print_tables([_table(plan, num_shown)], title="\n".join(_heading(plan, name)))


def _heading(plan: Plan, name: str) -> Iterator[str]:
    question = plan.question
    model, machines = question.model, question.machines
    total, active = num_parameters(model), num_active_parameters(model)
    mixture = f", {active / 1e9:.2f}B of them for each token" if active != total else ""
    yield f"{name}: {model.architecture}, {total:,} parameters{mixture}"
    sixteen = "fp16" if model.dtype == "float16" else "bf16"
    sizes = ", ".join(f"{form} {_weight_bytes(question, form) / 1e9:.3g}" for form in (sixteen, "fp8", "int4_awq"))
    kv = ", ".join(f"{form} {kv_bytes_per_token(model, form):,.0f}" for form in (sixteen, "fp8"))
    yield f"weights in GB: {sizes}; KV bytes a token: {kv}"
    nodes = f" in {machines.num_nodes} nodes" if machines.num_nodes > 1 else ""
    cached = f" ({question.workload.cached} of them cached)" if question.workload.cached else ""
    yield f"{machines.num_gpus} x {machines.gpu.title}{nodes}; {question.workload.isl} tokens in{cached}, " + (
        f"{question.workload.osl} out; {_load_in_words(question)}"
    )
    if question.quantized is not None:
        yield str(question.quantized)
    yield from _estimators(plan)


def _estimators(plan: Plan) -> Iterator[str]:
    """Yield how many options each estimator estimated, and why the first estimator did not."""
    of_name = _grouped(plan.options, lambda option: option.estimator)
    counts = ", ".join(f"{len(options)} options by {name}" for name, options in of_name.items())
    yield f"estimated: {counts}" + (f"; {plan.why_estimator}" if plan.why_estimator else "")
    for reason, options in _grouped(plan.options, lambda option: option.why_estimator).items():
        yield f"  {options[0].estimator} for {len(options)} options, {options[0].candidate.name} among them; {reason}"


def _grouped(items: Iterable[T], reason_of: Callable[[T], str | None]) -> dict[str, list[T]]:
    """Return the items by their reason, without those that have none."""
    groups: dict[str, list[T]] = {}
    for item in items:
        if reason := reason_of(item):
            groups.setdefault(reason, []).append(item)
    return groups


def _load_in_words(question: Question) -> str:
    match question.load:
        case Load(concurrency=float() | int() as clients):
            words = f"{clients:g} clients"
        case Load(requests_per_s=float() | int() as rate):
            words = f"{rate:.3g} requests/s"
        case Load(users=float() | int() as users):
            words = f"{users:g} users who think for {question.load.think_time_s:g} s"
        case _:
            words = "as much as each option takes"
    targets = question.targets
    words += f", TTFT <= {targets.ttft_ms:g} ms" if targets.ttft_ms is not None else ""
    return words + (f", TPOT <= {targets.tpot_ms:g} ms" if targets.tpot_ms is not None else "")


def _table(plan: Plan, num_shown: int) -> TextTable:
    headers = ["format", "KV", "layout", "GPUs", "batch", "TTFT ms", "TPOT ms", "tokens/s", "/GPU"]
    headers += ["$/M tokens"] if plan.question.price_per_gpu_hour is not None else []
    headers += ["within", "bound by", "behind the first by"]
    rows = []
    for option in plan.options[:num_shown]:
        engine, estimate = option.candidate.engine, option.estimate
        cells = [
            engine.formats.linear.name, engine.kv_format, str(option.candidate.layout), str(option.num_gpus),
            f"{estimate.batch_size:,.0f}", f"{estimate.ttft_ms:,.0f}", f"{estimate.tpot_ms:.1f}",
            f"{option.output_tokens_per_s:,.0f}", f"{option.tokens_per_s_per_gpu:,.0f}",
        ]  # fmt: skip
        if option.usd_per_million_tokens is not None:
            cells.append(f"{option.usd_per_million_tokens:.3f}")
        bound = "serving host" if option.is_capped_by_serving else estimate.bound_by
        rows.append((*cells, f"x/÷ {option.uncertainty:.2f}", bound, option.why_not_first))
    left = ("format", "KV", "layout", "bound by", "behind the first by")
    return TextTable("", tuple(headers), tuple(rows), tuple(_notes(plan, num_shown)), left)


def _notes(plan: Plan, num_shown: int) -> Iterator[str]:
    hidden = len(plan.options) - num_shown
    if hidden > 0:
        yield f"{hidden} more options: --top {len(plan.options)}"
    best = plan.options[0]
    if best.missed is not None:
        yield f"No option meets the targets; the first misses them by {best.missed}."
    print_kv = best.candidate.footprint
    yield (
        f"first: on each GPU {print_kv.weight_bytes / _GIB:.1f} GiB of weights, {print_kv.workspace_bytes / _GIB:.1f} "
        f"of workspace, {print_kv.kv_bytes / _GIB:.1f} of KV cache: {print_kv.kv_tokens:,} tokens, "
        f"{print_kv.num_sequences(plan.question.workload.num_tokens):,} whole sequences a replica"
    )
    if best.candidate.engine.formats.linear.is_quantized:
        yield f"{best.candidate.engine.formats.linear.name} is not free of loss: `trireme evaluate` says what it costs."
    if best.is_capped_by_serving:
        limit = f"{plan.question.serving.responses_per_s:,.0f} responses/s a replica, measured on two cores"
        made = f"the engines make {best.engine_output_tokens_per_s:,.0f} tokens/s"
        yield f"The serving host binds before the GPUs ({limit}; {made}). Measure yours: --serving-responses-per-s."
    unchunked = _grouped([option.candidate for option in plan.options[:num_shown]], lambda one: one.why_not_chunked)
    for reason, found in unchunked.items():
        most = f"prompts of {plan.question.wanted.max_num_tokens:,} tokens at most"
        yield f"No chunked prefill and no block reuse, {most}: {'; '.join(one.name for one in found)}: {reason}."
    unmeasured = sorted({name for option in plan.options[:num_shown] for name in option.unmeasured})
    if unmeasured:
        yield f"Wider in `within`, for no published measurement was fitted for: {', '.join(unmeasured)}."
    if plan.rejected:
        yield "Not possible:"
    for reason, rejected in _grouped(plan.rejected, lambda one: one.reason).items():
        names = [one.name for one in rejected]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"  {'; '.join(names[:3])}{more}: {reason}"


def _option_as_data(option: Option, plan: Plan) -> dict[str, object]:
    engine, estimate, footprint = option.candidate.engine, option.estimate, option.candidate.footprint
    return {
        "weight_format": engine.formats.linear.name,
        "kv_format": engine.kv_format,
        **asdict(option.candidate.layout),
        "num_gpus": option.num_gpus,
        "num_replicas": option.num_gpus // option.candidate.layout.world_size,
        **_estimate_as_data(estimate),
        "engine_output_tokens_per_s": option.engine_output_tokens_per_s,
        "output_tokens_per_s": option.output_tokens_per_s,
        "output_tokens_per_s_per_gpu": option.tokens_per_s_per_gpu,
        "usd_per_million_tokens": option.usd_per_million_tokens,
        "estimator": option.estimator,
        "why_estimator": option.why_estimator or plan.why_estimator,
        "uncertainty_factor": option.uncertainty,
        "unmeasured": list(option.unmeasured),
        "prompt_limit_tokens": None
        if option.candidate.why_not_chunked is None
        else plan.question.wanted.max_num_tokens,
        "why_not_chunked": option.candidate.why_not_chunked,
        "bound_by": "serving host" if option.is_capped_by_serving else estimate.bound_by,
        "missed": option.missed,
        "why_not_first": option.why_not_first,
        "weight_bytes_per_gpu": footprint.weight_bytes,
        "workspace_bytes_per_gpu": footprint.workspace_bytes,
        "kv_bytes_per_gpu": footprint.kv_bytes,
        "kv_bytes_per_token_per_gpu": footprint.kv_bytes_per_token,
        "kv_tokens": footprint.kv_tokens,
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


def _weight_bytes(question: Question, weight_format: str) -> int:
    costs = ModelCosts.of(question.model)
    return sum(costs.bytes_in(FormatPlan(WEIGHT_FORMATS[weight_format])))
