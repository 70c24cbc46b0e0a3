# SPDX-License-Identifier: Apache-2.0
"""The share of a replica's time that a prompt token and an answer token take: planned, or measured.

A replica that prefills P tokens a second, or decodes D tokens a second, spends isl / P + osl / D seconds on a request.
The price of a token follows from that share, so input and output are told apart by GPU time, not by a tariff.
"""

from dataclasses import dataclass
from functools import lru_cache

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import config_of
from build_engines.checkpoint.weight_formats import FORMAT_PLANS, KV_FORMATS
from build_engines.cost.cost_spec import MeasuredEngine, PlannedEngine, RatedEngine, Traffic
from build_engines.planner.estimators.estimator import Roofline
from build_engines.planner.option import Option
from build_engines.planner.option_order import order_key_as_served
from build_engines.planner.question import Question, Targets
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted
from build_engines.planner.roofline.efficiencies import fitted
from build_engines.planner.roofline.steady_state import Limits, Workload, prompt_share
from trireme.base.errors import SpecError


@dataclass(frozen=True)
class Rates:
    """The rates of one replica at saturation."""

    num_gpus: int
    prefill_s: float  # of the replica, for each token of a prompt that is not cached
    decode_s: float  # for each token of an answer
    source: str
    uncertainty: float | None = None  # 9 of 10 within this factor either way, where it was planned

    def seconds(self, prefilled: float, output: float) -> float:
        """Return the seconds that a replica needs for these tokens."""
        return prefilled * self.prefill_s + output * self.decode_s


def rates_of(engine: PlannedEngine | RatedEngine | MeasuredEngine, traffic: Traffic) -> Rates:
    """Return the rates of one replica under this traffic's mix of tokens.

    Raises:
        SpecError: the planner knows no such model, GPU or format, nothing fits, or nothing meets the targets; only
            output was measured, and the traffic has prompts.
    """
    if isinstance(engine, RatedEngine):
        return Rates(engine.gpus, 1 / engine.prefill_tokens_per_s, 1 / engine.decode_tokens_per_s, engine.source)
    if isinstance(engine, MeasuredEngine):
        if engine.output_weight is None and traffic.prefilled:
            raise SpecError(
                f"engine: {engine.model} was measured without input tokens, and traffic.isl is {traffic.isl:g}; give "
                "input_tokens_per_s and output_weight (GPU time of an output token over that of an input token), or "
                "isl: 0 where output_tokens_per_s has the prompts' time in it",
                field="engine.output_weight",
            )
        weight = engine.output_weight or 1.0  # without input tokens any will do
        prefill_s = 1 / (engine.input_tokens_per_s + weight * engine.output_tokens_per_s)
        return Rates(engine.gpus, prefill_s, weight * prefill_s, engine.source)
    isl, osl = max(1, round(traffic.isl)), max(1, round(traffic.osl))
    cached = min(isl - 1, round(traffic.isl * traffic.cached_fraction))
    return _planned(engine, Workload(isl, osl, cached))


@lru_cache(maxsize=256)
def _planned(engine: PlannedEngine, workload: Workload) -> Rates:
    option = best_option(engine, workload)
    layout, footprint = option.candidate.layout, option.candidate.footprint
    is_chunked = option.candidate.why_not_chunked is None
    limits = Limits(
        footprint.kv_tokens, engine.max_batch_size, is_chunked=is_chunked, state_tokens=footprint.state_tokens
    )
    computed = workload if option.candidate.is_block_reused else workload._replace(cached=0)
    share = prompt_share(option.candidate.engine, fitted(), computed, limits, option.estimate.batch_size)
    replicas = option.num_gpus // layout.world_size
    request_s = replicas * workload.osl / option.served_output_tokens_per_s
    prefill_s = request_s * share / workload.prefilled
    decode_s = request_s * (1 - share) / workload.osl * engine.longest_over_mean_output
    static = f", static batches of {engine.max_batch_size}" if engine.longest_over_mean_output > 1 else ""
    where = f"{layout.world_size} x {option.candidate.engine.gpu.title}"
    capped = ", bound by the serving host" if option.serving.is_over else ""
    source = f"planned: {option.candidate.name} on {where}, batch {option.estimate.batch_size:.0f}{static}{capped}"
    return Rates(layout.world_size, prefill_s, decode_s, source, option.uncertainty)


def best_option(engine: PlannedEngine, workload: Workload) -> Option:
    """Return the plan's best option on the serving hosts that were measured.

    It takes the least GPU time for a token that leaves them within the targets, with as large a batch as these allow.

    Raises:
        SpecError: the planner knows no such model, GPU or format, nothing fits, or nothing meets the targets.
    """
    for name, known, value in (
        ("weight_format", FORMAT_PLANS, engine.weight_format),
        ("kv_format", KV_FORMATS, engine.kv_format),
    ):
        if value not in known:
            raise SpecError(f"engine.{name} {value!r} is not known; there are {', '.join(known)}", field=name)
    config = config_of(engine.model)
    question = Question(
        model=read_model_shape(config, source=engine.model),
        machines=Machines(gpu_named(engine.gpu), engine.max_gpus),
        workload=workload,
        targets=Targets(engine.slo_ttft_ms, engine.slo_tpot_ms),
        wanted=Wanted((engine.weight_format,), (engine.kv_format,), max_batch_size=engine.max_batch_size),
    )
    option = min(make_plan(question, [Roofline()], num_curves=0).options, key=order_key_as_served)
    if option.missed is not None:
        raise SpecError(
            f"engine: no layout of {engine.model} in {engine.weight_format} on up to {engine.max_gpus} x {engine.gpu} "
            f"meets the targets, not even for one client: {option.missed}; relax slo_ttft_ms or slo_tpot_ms, or give "
            "more max_gpus or another gpu",
            field="engine",
        )
    return option
