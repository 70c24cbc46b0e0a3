# SPDX-License-Identifier: Apache-2.0
"""The time of one engine step: a roofline of matrices, attention and communication, each part by itself.

A step holds decoding sequences (one token each) and prompt tokens. Its matrices take the time of their operations and
of reading their weights, blended (a kernel overlaps them, never wholly); attention reads the KV cache; each layer costs
two all-reduces across a tensor-parallel group. What share of a datasheet's peak each reaches is measured, not assumed:
`build_engines.planner.roofline.efficiencies`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from build_engines.checkpoint.gpus import Gpu
from build_engines.checkpoint.model_costs import FormatBytes, ModelCosts
from build_engines.checkpoint.weight_formats import KV_FORMATS, FormatPlan
from build_engines.planner.roofline.efficiencies import Efficiencies
from build_engines.sharding.parallel_sizes import ParallelSizes


@dataclass(frozen=True, eq=False)
class Engine:
    """An engine: a model with its formats, layout and GPU."""

    costs: ModelCosts
    formats: FormatPlan
    kv_format: str
    layout: ParallelSizes
    gpu: Gpu
    inter_node_gbs: float = 50.0  # InfiniBand, a GPU's share of it, one direction; 400 Gb/s

    @cached_property
    def weight_bytes(self) -> FormatBytes:
        """Return the bytes of the whole model's weights."""
        return self.costs.bytes_in(self.formats)


class StepLoad(NamedTuple):
    """The contents of a step, over the whole replica; means where sequences differ."""

    num_decoding: float = 0
    context_tokens: float = 0  # tokens that each decoding sequence looks back at
    prompt_tokens: float = 0
    prompt_length: float = 0  # of the prompts that these are chunks of
    cached_length: float = 0  # tokens at the start of each prompt that are in the KV cache already

    @property
    def num_prompts(self) -> float:
        """Return the number of whole prompts that the chunks make together."""
        return self.prompt_tokens / (self.prompt_length - self.cached_length) if self.prompt_length else 0.0


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by what is waited for."""

    compute_s: float = 0  # of matrices and attention
    bandwidth_s: float = 0  # reading weights, KV cache, activations
    interconnect_s: float = 0
    host_s: float = 0  # launching kernels, scheduling, sampling
    total_s: float = 0

    @property
    def bound_by(self) -> str:
        """Return the largest part."""
        parts = {
            "compute": self.compute_s,
            "bandwidth": self.bandwidth_s,
            "interconnect": self.interconnect_s,
            "host": self.host_s,
        }
        return max(parts, key=lambda name: parts[name])


def step_time(engine: Engine, efficiencies: Efficiencies, load: StepLoad) -> StepTime:
    """Return the time of one step: one pipeline stage with a micro-batch's share of the load, times the stages.

    With pp_size stages the sequences are in as many micro-batches, and a token needs every stage, so the step of all is
    pp_size times the step of one.
    """
    pp = engine.layout.pp_size
    if pp > 1:
        load = load._replace(num_decoding=load.num_decoding / pp, prompt_tokens=load.prompt_tokens / pp)
    stage = _stage_time(engine, efficiencies, load)
    return StepTime(*(pp * part for part in vars(stage).values())) if pp > 1 else stage


def _stage_time(engine: Engine, eff: Efficiencies, load: StepLoad) -> StepTime:
    layout, gpu, costs = engine.layout, engine.gpu, engine.costs
    stages = layout.pp_size
    num_tokens = load.num_decoding + load.prompt_tokens / layout.cp_size
    memory = gpu.bandwidth_gbs * 1e9 * eff.memory
    matrices = _matrices(engine, eff, num_tokens)
    # One row of logits for each sequence that gets a token; a prompt's last chunk gives one, too.
    num_rows = load.num_decoding + load.num_prompts
    head_ops = 2 * costs.head_size * num_rows / layout.tp_size / (gpu.tflops["fp16"] * 1e12 * eff.gemm_fp16)
    head_read = 2 * costs.head_size / layout.dense_tp_size / memory
    head_ops, head_read = head_ops / stages, head_read / stages  # the last stage's alone
    attention_ranks = layout.tp_size
    kv = _kv_read_s(engine, eff, load) / stages
    decode_ops = (
        load.num_decoding * costs.decode_attention_flops(load.context_tokens) / attention_ranks / stages
        / (gpu.tflops["fp16"] * 1e12 * eff.attention)
    )  # fmt: skip
    prefill_ops = 0.0
    if load.prompt_length:
        # Of n tokens, those before the c cached ones are not computed again: n^2 / 2 - c^2 / 2 pairs.
        flops = load.num_prompts * (
            costs.prefill_attention_flops(load.prompt_length) - costs.prefill_attention_flops(load.cached_length)
        )
        ranks = attention_ranks * layout.cp_size * stages
        prefill_ops = flops / ranks / (gpu.tflops["fp16"] * 1e12 * eff.attention)
    widths = eff.activation_passes * costs.model.hidden_size + 6 * costs.active_intermediate_size / layout.tp_size
    activations = num_tokens * costs.model.num_layers / stages * widths / memory
    decode_attention = max(kv, decode_ops)
    interconnect = _interconnect_s(engine, eff, num_tokens)
    host = eff.step_s + eff.sequence_s * load.num_decoding + eff.layer_s * costs.model.num_layers / stages
    head = _blend(head_ops, head_read, eff.blend)
    gemm = _blend(matrices.compute_s, matrices.bandwidth_s, eff.blend)
    compute = matrices.compute_s + head_ops + prefill_ops + (decode_ops if decode_ops > kv else 0)
    bandwidth = matrices.bandwidth_s + head_read + activations + (kv if kv >= decode_ops else 0)
    total = gemm + head + decode_attention + prefill_ops + activations + interconnect + host
    return StepTime(compute, bandwidth, interconnect, host, total)


def _matrices(engine: Engine, eff: Efficiencies, num_tokens: float) -> StepTime:
    """Return the matrices' time in one stage.

    It counts operations of what each token meets, and bytes of what the step's tokens meet together.
    """
    layout, gpu, costs, linear = engine.layout, engine.gpu, engine.costs, engine.formats.linear
    whole = engine.weight_bytes
    split = layout.tp_size * layout.pp_size
    dense_split = layout.dense_tp_size * layout.pp_size
    experts_read = whole.experts * costs.experts_met_share(num_tokens)
    num_bytes = (whole.attention + whole.dense_mlp) / dense_split + experts_read / split
    size = costs.attention_size + costs.dense_mlp_size + costs.active_expert_size
    peak = gpu.tflops[linear.compute] * 1e12 * eff.gemm(linear)
    return StepTime(
        compute_s=2 * size * num_tokens / split / peak,
        bandwidth_s=num_bytes / (gpu.bandwidth_gbs * 1e9 * eff.memory),
    )


def _kv_read_s(engine: Engine, eff: Efficiencies, load: StepLoad) -> float:
    layout, heads = engine.layout, engine.costs.model.num_kv_heads
    # A rank has some of the sequences, or some of the heads of all.
    share = 1 / layout.tp_size if layout.is_attention_dp else layout.kv_heads(heads) / heads
    values = load.num_decoding * engine.costs.kv_values_kept(load.context_tokens)
    if load.cached_length:  # read once for each prompt that goes on from it
        values += load.num_prompts * engine.costs.kv_values_kept(load.cached_length)
    num_bytes = values * share * KV_FORMATS[engine.kv_format]
    return num_bytes / (engine.gpu.bandwidth_gbs * 1e9 * eff.kv_cache)


def _interconnect_s(engine: Engine, eff: Efficiencies, num_tokens: float) -> float:
    """Return the seconds of communication: two all-reduces a layer, and a hand-over at the end of a stage.

    A ring all-reduce of b bytes over the tensor-parallel group sends 2 (n - 1) / n b over each link; small ones go in
    one shot, b to each of n - 1.
    """
    layout, gpu, model = engine.layout, engine.gpu, engine.costs.model
    num_bytes = num_tokens * model.hidden_size * 2
    seconds = 0.0
    if layout.tp_size > 1:
        ranks = layout.tp_size
        is_nvlink = gpu.nvlink_gbs > 0
        link = gpu.link_gbs * 1e9 * (eff.nvlink if is_nvlink else eff.pcie)
        latency = eff.all_reduce_s if is_nvlink else eff.all_reduce_pcie_s
        per_layer = 1 if model.is_parallel_block or layout.is_attention_dp else 2
        count = per_layer * model.num_layers / layout.pp_size
        ring_s = latency + 2 * (ranks - 1) / ranks * num_bytes / link
        one_shot_s = eff.one_shot_s + (ranks - 1) * num_bytes / link
        seconds += count * (min(ring_s, one_shot_s) if is_nvlink else ring_s)
    if layout.cp_size > 1:
        ring = gpu.link_gbs * 1e9 * (eff.nvlink if gpu.nvlink_gbs else eff.pcie)
        seconds += model.num_layers / layout.pp_size * (layout.cp_size - 1) * num_bytes / layout.cp_size / ring
    if layout.pp_size > 1:
        seconds += eff.all_reduce_s + num_bytes / (engine.inter_node_gbs * 1e9)
    return seconds


def _blend(compute_s: float, bandwidth_s: float, exponent: float) -> float:
    """Return a time between the sum of both (exponent 1) and the longer of both (infinity).

    It says how well a kernel overlaps them.
    """
    if compute_s == 0 or bandwidth_s == 0:
        return compute_s + bandwidth_s
    return float((compute_s**exponent + bandwidth_s**exponent) ** (1 / exponent))
