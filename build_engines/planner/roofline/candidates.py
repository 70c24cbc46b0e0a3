# SPDX-License-Identifier: Apache-2.0
"""The candidates: every layout of a model on some GPUs, and the reason for each that is impossible."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from build_engines.checkpoint.gpus import Gpu
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import FORMAT_PLANS, KV_FORMATS
from build_engines.planner.roofline.footprint import Footprint, footprint_of
from build_engines.planner.roofline.legality import (
    is_compiled_alone,
    why_blocks_are_not_reused,
    why_format_is_illegal,
    why_layout_is_illegal,
    why_prompts_are_not_chunked,
)
from build_engines.planner.roofline.step_time import Engine
from build_engines.sharding.parallel_sizes import ParallelSizes
from trireme.base.errors import SpecError

# In the order in which a candidate meets them.
STOPS = ("gpus", "layout", "format", "memory", "load")
Stop = Literal["gpus", "layout", "format", "memory", "load"]


@dataclass(frozen=True)
class Machines:
    """The machines that a plan may use."""

    gpu: Gpu
    num_gpus: int
    num_nodes: int = 1

    def __post_init__(self) -> None:
        """Refuse nodes with unequal numbers of GPUs, or with none."""
        if self.num_gpus % self.num_nodes:
            raise SpecError(
                f"--gpus {self.num_gpus} over --nodes {self.num_nodes}: each node has as many GPUs; give a multiple of "
                f"{self.num_nodes} as --gpus, or other --nodes",
                field="nodes",
                value=self.num_nodes,
            )

    @property
    def gpus_per_node(self) -> int:
        """Return the number of GPUs of each node."""
        return self.num_gpus // self.num_nodes


@dataclass(frozen=True)
class Wanted:
    """The candidates to look at; an empty field allows every value."""

    weight_formats: tuple[str, ...] = ()
    kv_formats: tuple[str, ...] = ()
    tp_sizes: tuple[int, ...] = ()
    pp_sizes: tuple[int, ...] = ()
    max_num_tokens: int = 8192
    max_batch_size: int = 2048
    kv_fraction: float = 0.9


@dataclass(frozen=True, eq=False)
class Candidate:
    """A legal candidate, with what it takes of a GPU's memory."""

    engine: Engine
    footprint: Footprint
    num_replicas: int
    why_not_chunked: str | None = None  # prompts are prefilled whole, and no cached block is reused

    @property
    def layout(self) -> ParallelSizes:
        """Return the layout of one replica."""
        return self.engine.layout

    @property
    def is_block_reused(self) -> bool:
        """Return True if prompts can go on from cached blocks."""
        return self.why_not_chunked is None and why_blocks_are_not_reused(self.engine.costs.model) is None

    @property
    def name(self) -> str:
        """Return a name of format, KV format and layout."""
        return f"{self.engine.formats.name} kv-{self.engine.kv_format} {self.layout}"


@dataclass(frozen=True)
class Rejected:
    """An impossible candidate, with the reason and the check that stopped it."""

    name: str
    reason: str
    stopped_by: Stop
    missing_bytes: int = 0  # of a GPU's memory


def candidates(model: ModelShape, machines: Machines, wanted: Wanted) -> tuple[list[Candidate], list[Rejected]]:
    """Return the legal candidates that fit, and the others with the reason.

    A layout that is illegal in any format is reported once.
    """
    found: list[Candidate] = []
    rejected: dict[Rejected, None] = dict.fromkeys(_too_large(machines, wanted))  # in order, each once
    costs = ModelCosts.of(model)
    for layout in _layouts(model, machines, wanted):
        reason = why_layout_is_illegal(model, layout, machines.gpu, gpus_per_node=machines.gpus_per_node)
        if reason is not None:
            rejected[Rejected(str(layout), reason, "layout")] = None
            continue
        for weight_format, kv_format in _formats(model, wanted):
            formats = FORMAT_PLANS[weight_format]
            reason = why_format_is_illegal(model, formats, kv_format, layout, machines.gpu)
            name = f"{weight_format} kv-{kv_format}"
            if reason is not None:
                is_of_any_layout = "does not run on" in reason or "back ends" in reason
                rejected[Rejected(name if is_of_any_layout else f"{name} {layout}", reason, "format")] = None
                continue
            is_compiled = is_compiled_alone(weight_format, kv_format)
            engine = Engine(costs, formats, kv_format, layout, machines.gpu, is_compiled)
            footprint = footprint_of(
                model, formats, kv_format, layout, machines.gpu,
                max_num_tokens=wanted.max_num_tokens, kv_fraction=wanted.kv_fraction, is_compiled=is_compiled,
            )  # fmt: skip
            why_not_chunked = why_prompts_are_not_chunked(weight_format, kv_format, machines.gpu)
            candidate = Candidate(engine, footprint, machines.num_gpus // layout.world_size, why_not_chunked)
            if footprint.fits:
                found.append(candidate)
            else:
                missing = -footprint.kv_bytes
                rejected[Rejected(candidate.name, _does_not_fit(footprint), "memory", missing)] = None
    return found, list(rejected)


def _does_not_fit(footprint: Footprint) -> str:
    gib = 2**30
    return (
        f"does not fit: weights {footprint.weight_bytes / gib:.1f} GiB + workspace "
        f"{footprint.workspace_bytes / gib:.1f} GiB on a GPU of {footprint.memory_bytes / gib:.1f} GiB"
    )


def _too_large(machines: Machines, wanted: Wanted) -> Iterator[Rejected]:
    """Yield the sizes that were asked for by name and take more GPUs than there are."""
    for tp, pp in product(wanted.tp_sizes or (1,), wanted.pp_sizes or (1,)):
        if tp * pp > machines.num_gpus:
            yield Rejected(
                str(ParallelSizes(tp, pp)), f"needs {tp * pp:,} GPUs, --gpus is {machines.num_gpus:,}", "gpus"
            )


def _layouts(model: ModelShape, machines: Machines, wanted: Wanted) -> Iterator[ParallelSizes]:
    powers = [2**n for n in range(machines.num_gpus.bit_length()) if 2**n <= machines.num_gpus]
    for tp in wanted.tp_sizes or powers:
        for pp in wanted.pp_sizes or powers:
            for cp in (1, 2, 4):
                if tp * pp * cp > machines.num_gpus:
                    continue
                yield ParallelSizes(tp, pp, cp_size=cp)
                if model.is_moe and tp > 1 and cp == 1:
                    yield ParallelSizes(tp, pp, ep_size=tp)
                    yield ParallelSizes(tp, pp, ep_size=tp, is_attention_dp=True)


def _formats(model: ModelShape, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Yield the formats to try, one of those that cost the same.

    Of 16 bits it is the checkpoint's own, of 8 bits in the KV cache fp8.
    """
    own = "fp16" if model.dtype == "float16" else "bf16"
    other = {"fp16", "bf16", "int8"} - {own}
    for weight_format in wanted.weight_formats or [name for name in FORMAT_PLANS if name not in other]:
        for kv_format in wanted.kv_formats or [name for name in KV_FORMATS if name not in other]:
            yield weight_format, kv_format
