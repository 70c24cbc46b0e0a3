# SPDX-License-Identifier: Apache-2.0
"""Published measurements of TensorRT-LLM (`published_measurements.json`), and what the roofline says of each.

Scored are the figures of TensorRT-LLM's own documents that name GPU and load. Not scored, with the reason: another
engine's (vLLM, whose host code is another), figures of an unnamed GPU, mean times under a load that cannot be kept up
with (they measure how long the run was).
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import WEIGHT_FORMATS, FormatPlan
from build_engines.planner.roofline.candidates import Candidate
from build_engines.planner.roofline.efficiencies import Efficiencies
from build_engines.planner.roofline.footprint import Footprint, footprint_of
from build_engines.planner.roofline.steady_state import Limits, Workload, at_rate, saturated
from build_engines.planner.roofline.step_time import Engine, StepLoad, step_time
from build_engines.sharding.parallel_sizes import ParallelSizes

_TABLE = Path(__file__).with_name("published_measurements.json")


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure; `load` is ``{"saturated": true}``, ``{"rate": "8"}``, ``{"batch": 64}`` or ``at_once``."""

    id: str
    group: str
    model: str
    gpu: str | None
    tp_size: int
    pp_size: int
    weight_format: str
    kv_format: str
    isl: float | None
    osl: float | None
    load: dict[str, float | bool | str] | None
    metric: str
    value: float
    unit: str
    quality: str
    is_kv_starved: bool
    source: int

    @property
    def cell(self) -> str:
        """Return the name of the set-up; figures of one set-up are scored together."""
        return "|".join(
            [self.group, self.model, str(self.gpu), f"tp{self.tp_size}pp{self.pp_size}", self.weight_format]
        )


@cache
def measurements() -> tuple[Measurement, ...]:
    """Return every published measurement."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(msgspec.convert(dict(zip(table["columns"], row, strict=True)), Measurement) for row in table["rows"])


def scored() -> tuple[Measurement, ...]:
    """Return the measurements that the roofline is scored on."""
    return tuple(one for one in measurements() if _is_scored(one))


def candidate_of(one: Measurement) -> Candidate:
    """Return the measured set-up as a candidate of the planner."""
    engine = _engine(one)
    return Candidate(engine, _footprint(engine, _kv_fraction(one)), 1)


def predicted(one: Measurement, eff: Efficiencies) -> float | None:
    """Return what the roofline says, in the unit of the measurement.

    None: the roofline says that the load cannot be kept up with.
    """
    assert one.isl is not None
    assert one.gpu is not None
    engine, workload = _engine(one), Workload(int(one.isl), int(one.osl or 1))
    match one.metric, one.load:
        case "output_throughput_total" | "output_throughput_per_gpu", {"saturated": True}:
            estimate = saturated(engine, eff, workload, limits_of(one))
            if estimate is None:
                return None
            per = engine.layout.world_size if one.metric.endswith("per_gpu") else 1
            return estimate.output_tokens_per_s / per
        case "output_throughput_per_gpu", {"batch": batch}:
            return _static_batch(engine, eff, workload, int(batch))
        case "ttft_bs1", _:
            load = StepLoad(prompt_tokens=workload.isl, prompt_length=workload.isl)
            return 1000 * step_time(engine, eff, load).total_s
        case "ttft_mean" | "itl_mean", {"rate": rate}:
            estimate = at_rate(engine, eff, workload, limits_of(one), float(rate))
            if estimate is None:
                return None
            return estimate.ttft_ms if one.metric == "ttft_mean" else estimate.tpot_ms
    raise AssertionError(f"no prediction for {one}")


class Errors(NamedTuple):
    """Errors over cells: the median of |log error| within each cell, then over all, as factors.

    A factor of 1.1 is 10 %.
    """

    num_cells: int
    median: float
    p90: float
    bias: float  # median of predicted / measured

    def __str__(self) -> str:
        return f"{self.num_cells} cells: median {self.median:.2f}, 90 % {self.p90:.2f}, bias {self.bias:.2f}"


def log_errors(rows: Iterable[Measurement], eff: Efficiencies) -> dict[str, list[float]]:
    """Return log(predicted / measured) by cell."""
    return errors_by_cell((one, predicted(one, eff)) for one in rows)


def errors_by_cell(pairs: Iterable[tuple[Measurement, float | None]]) -> dict[str, list[float]]:
    """Return log(predicted / measured) by cell for any predictions; None: there is no prediction."""
    found = defaultdict(list)
    for one, value in pairs:
        if value is not None:
            found[one.cell].append(math.log(value / one.value))
    return dict(found)


def errors_of(cells: dict[str, list[float]]) -> Errors:
    """Return the errors of cells, scored as `Errors` says."""
    from trireme.base.sample_statistics import percentile  # noqa: PLC0415  numpy, which `trireme cost` does without

    medians = [median(map(abs, cell)) for cell in cells.values()]
    bias = median(median(cell) for cell in cells.values())
    return Errors(len(cells), math.exp(median(medians)), math.exp(percentile(medians, 90)), math.exp(bias))


def _is_scored(one: Measurement) -> bool:
    if not one.group.startswith("trtllm") or one.gpu is None or one.isl is None or one.metric == "fits":
        return False
    rate = (one.load or {}).get("rate")
    if rate is not None:  # throughput at a rate is the rate
        return rate != "INF" and one.metric in {"ttft_mean", "itl_mean"}
    return True


@cache
def _model(name: str) -> ModelShape:
    return read_model_shape(known_models()[name].config, source=name)


def _engine(one: Measurement) -> Engine:
    assert one.gpu is not None
    return _cached_engine(one.model, one.gpu, one.tp_size, one.pp_size, one.weight_format, one.kv_format)


@cache
def _cached_engine(model: str, gpu: str, tp_size: int, pp_size: int, weight_format: str, kv_format: str) -> Engine:
    formats = FormatPlan(WEIGHT_FORMATS[weight_format])
    return Engine(ModelCosts.of(_model(model)), formats, kv_format, ParallelSizes(tp_size, pp_size), gpu_named(gpu))


def limits_of(one: Measurement) -> Limits:
    """Return the limits that our footprint leaves room for."""
    kv_tokens = _footprint(_engine(one), _kv_fraction(one)).kv_tokens
    # A figure was published, so something fitted.
    return Limits(kv_tokens=max(kv_tokens, int((one.isl or 0) + (one.osl or 0))))


def _kv_fraction(one: Measurement) -> float:
    """Return the share of free memory for the KV cache.

    NVIDIA's tables were made with 0.95 of the free memory since 0.17, with 0.90 before.
    """
    return 0.90 if one.group in {"trtllm-v0.13-maxtput", "trtllm-v0.14-serving"} else 0.95


@cache
def _footprint(engine: Engine, kv_fraction: float) -> Footprint:
    return footprint_of(
        engine.costs.model, engine.formats, engine.kv_format, engine.layout, engine.gpu, kv_fraction=kv_fraction
    )


def _static_batch(engine: Engine, eff: Efficiencies, workload: Workload, batch: int) -> float:
    """Return the tokens/s/GPU of a batch that is prefilled together and decodes to its end."""
    prompts = StepLoad(prompt_tokens=batch * workload.isl, prompt_length=workload.isl)
    step = step_time(engine, eff, StepLoad(batch, workload.isl + workload.osl / 2)).total_s
    seconds = step_time(engine, eff, prompts).total_s + (workload.osl - 1) * step
    return batch * workload.osl / seconds / engine.layout.world_size
