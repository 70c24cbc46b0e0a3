# SPDX-License-Identifier: Apache-2.0
"""Published measurements of TensorRT-LLM (`published_measurements.json`), and what the roofline says of each.

Scored are figures that name GPU and load. Not scored, with the reason: another engine's (vLLM, whose host code is
another), figures of an unnamed GPU, mean times under a load that cannot be kept up with (they measure how long the run
was), first tokens of InferenceX's short prompts (on one server of two they hold some 0.3 s that no load explains).
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
from build_engines.checkpoint.weight_formats import FORMAT_PLANS
from build_engines.planner.roofline.candidates import Candidate
from build_engines.planner.roofline.efficiencies import Efficiencies
from build_engines.planner.roofline.footprint import Footprint, footprint_of
from build_engines.planner.roofline.steady_state import (
    Estimate,
    Limits,
    Run,
    Workload,
    at_concurrency,
    at_rate,
    saturated,
)
from build_engines.planner.roofline.step_time import Engine, StepLoad, step_time
from build_engines.sharding.parallel_sizes import ParallelSizes
from trireme.base.known_types import known

TABLE = Path(__file__).with_name("published_measurements.json")
_SHORT = 1024
_MEAN_OF_VARIED = 0.9  # InferenceX draws lengths between 0.8 and 1 of what it names


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure.

    `load` is ``{"saturated": true}``, ``{"concurrency": 16}``, ``{"rate": "8"}``, ``{"batch": 64}`` or ``at_once``.
    """

    id: str
    group: str
    model: str
    gpu: str | None
    tp_size: int
    pp_size: int
    ep_size: int
    is_attention_dp: bool
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
        return "|".join([self.group, self.model, str(self.gpu), str(self.layout), self.weight_format])

    @property
    def is_first_token(self) -> bool:
        """Return True for a time to the first token; the others are of steps and of whole answers."""
        return self.metric.startswith("ttft")

    @property
    def set_up(self) -> str:
        """Return the name of the set-up whatever the version; figures of several versions weigh as one in a fit."""
        return self.cell.partition("|")[2]

    @property
    def layout(self) -> ParallelSizes:
        """Return the layout of the set-up."""
        return ParallelSizes(self.tp_size, self.pp_size, ep_size=self.ep_size, is_attention_dp=self.is_attention_dp)


@cache
def measurements() -> tuple[Measurement, ...]:
    """Return every published measurement."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(
        msgspec.convert(dict(zip(table["columns"], row, strict=True)), known(Measurement)) for row in table["rows"]
    )


def scored() -> tuple[Measurement, ...]:
    """Return the measurements that the roofline is scored on."""
    return tuple(one for one in measurements() if _is_scored(one))


def engine_of(one: Measurement) -> Engine:
    """Return the measured engine."""
    assert one.gpu is not None
    return _cached_engine(one.model, one.gpu, one.layout, one.weight_format, one.kv_format, _is_compiled(one))


def candidate_of(one: Measurement) -> Candidate:
    """Return the measured set-up as a candidate of the planner."""
    engine = engine_of(one)
    return Candidate(engine, _footprint(engine, _kv_fraction(one)), 1)


def predicted(one: Measurement, eff: Efficiencies) -> float | None:
    """Return what the roofline says, in the unit of the measurement.

    None: the roofline says that the load cannot be kept up with.
    """
    assert one.isl is not None
    assert one.gpu is not None
    engine, run = engine_of(one), _run(one)
    share = _MEAN_OF_VARIED if run is not None and run.is_varied else 1.0
    workload = Workload(round(one.isl * share), round((one.osl or 1) * share))
    match one.metric, one.load:
        case "output_throughput_per_gpu", {"batch": batch}:
            return _static_batch(engine, eff, workload, int(batch))
        case "ttft_bs1", _:
            load = StepLoad(prompt_tokens=workload.isl, prompt_length=workload.isl)
            return 1000 * step_time(engine, eff, load).total_s
        case _, {"saturated": True}:
            estimate = saturated(engine, eff, workload, limits_of(one))
        case _, {"rate": rate}:
            estimate = at_rate(engine, eff, workload, limits_of(one), float(rate))
        case _, {"concurrency": clients}:
            estimate = at_concurrency(engine, eff, workload, limits_of(one), float(clients), run)
        case _:
            raise AssertionError(f"no prediction for {one}")
    return None if estimate is None else in_units_of(one, estimate)


def in_units_of(one: Measurement, estimate: Estimate) -> float:
    """Return the figure of an estimate that a measurement is of."""
    return {
        "ttft_mean": estimate.ttft_ms,
        "itl_mean": estimate.tpot_ms,
        "tpot_mean": estimate.tpot_ms,
        "output_throughput_total": estimate.output_tokens_per_s,
        "output_throughput_per_gpu": estimate.output_tokens_per_s / one.layout.world_size,
    }[one.metric]


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
    return errors_of_medians([(median(map(abs, cell)), median(cell)) for cell in cells.values()])


def errors_of_medians(cells: list[tuple[float, float]]) -> Errors:
    """Return the errors of cells of which the median magnitude and the median are known."""
    from trireme.base.sample_statistics import percentile  # noqa: PLC0415  numpy, which `trireme cost` does without

    medians = [magnitude for magnitude, _ in cells]
    bias = median(middle for _, middle in cells)
    return Errors(len(cells), math.exp(median(medians)), math.exp(percentile(medians, 90)), math.exp(bias))


def _is_scored(one: Measurement) -> bool:
    if one.group.startswith(("accelmark", "vllm")) or one.gpu is None or one.isl is None or one.metric == "fits":
        return False
    if one.group.startswith("inferencex") and one.is_first_token and one.isl <= _SHORT:
        return False
    if "saturated" in (one.load or {}) and not one.metric.startswith("output_throughput"):
        return False  # a queue without an end: its times measure how long the run was
    rate = (one.load or {}).get("rate")
    if rate is not None:  # throughput at a rate is the rate
        return rate != "INF" and one.metric in {"ttft_mean", "itl_mean"}
    return True


@cache
def _model(name: str) -> ModelShape:
    return read_model_shape(known_models()[name].config, source=name)


@cache
def _cached_engine(
    model: str, gpu: str, layout: ParallelSizes, weight_format: str, kv_format: str, is_compiled: bool
) -> Engine:
    formats = FORMAT_PLANS[weight_format]
    return Engine(ModelCosts.of(_model(model)), formats, kv_format, layout, gpu_named(gpu), is_compiled)


def limits_of(one: Measurement) -> Limits:
    """Return the limits that our footprint leaves room for."""
    kv_tokens = _footprint(engine_of(one), _kv_fraction(one)).kv_tokens
    # A figure was published, so something fitted.
    return Limits(kv_tokens=max(kv_tokens, int((one.isl or 0) + (one.osl or 0))))


def _is_compiled(one: Measurement) -> bool:
    """Return whether a compiled engine was measured, as all were before 0.18; afterwards the PyTorch backend."""
    return one.group.startswith(("trtllm-v0.0", "trtllm-v0.5", "trtllm-v0.7", "trtllm-v0.9", "trtllm-v0.1", "nim"))


def _run(one: Measurement) -> Run | None:
    """Return how a benchmark at a fixed concurrency ran: InferenceX asks 10 times a client, lengths drawn evenly."""
    return Run(10, is_varied=True) if one.group.startswith(("inferencex", "zufayu")) else None


def _kv_fraction(one: Measurement) -> float:
    """Return the share of free memory for the KV cache.

    NVIDIA's tables were made with 0.95 of the free memory since 0.17, with 0.90 before.
    """
    return 0.90 if one.group in {"trtllm-v0.13-maxtput", "trtllm-v0.14-serving"} else 0.95


@cache
def _footprint(engine: Engine, kv_fraction: float) -> Footprint:
    return footprint_of(
        engine.costs.model, engine.formats, engine.kv_format, engine.layout, engine.gpu,
        kv_fraction=kv_fraction, is_compiled=engine.is_compiled,
    )  # fmt: skip


def _static_batch(engine: Engine, eff: Efficiencies, workload: Workload, batch: int) -> float:
    """Return the tokens/s/GPU of a batch that is prefilled together and decodes to its end."""
    prompts = StepLoad(prompt_tokens=batch * workload.isl, prompt_length=workload.isl)
    step = step_time(engine, eff, StepLoad(batch, workload.isl + workload.osl / 2)).total_s
    seconds = step_time(engine, eff, prompts).total_s + (workload.osl - 1) * step
    return batch * workload.osl / seconds / engine.layout.world_size
