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
from build_engines.checkpoint.weight_formats import KV_FORMATS, FormatPlan, WeightFormat
from build_engines.planner.roofline.efficiencies import Efficiencies
from build_engines.sharding.parallel_sizes import ParallelSizes

# Tokens of a prompt that the kernel of linear attention takes at once (`chunk_gated_delta_rule`), and the bytes of a
# number in its states, which have the checkpoint's type.
_LINEAR_CHUNK_TOKENS = 64
_STATE_BYTES = 2
# Data centre Blackwell: TRTLLM-Gen, which runs on no others, routes tokens and multiplies in few launches.
_FUSED_EXPERTS = frozenset({100, 103})


@dataclass(frozen=True, eq=False)
class Engine:
    """An engine: a model with its formats, layout and GPU."""

    costs: ModelCosts
    formats: FormatPlan
    kv_format: str
    layout: ParallelSizes
    gpu: Gpu
    is_compiled: bool = False  # a TensorRT engine; else the PyTorch backend, whose decoding is in CUDA graphs
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
    is_one_prompt: bool = False  # with attention DP on one rank; else the prompts are spread over all

    @property
    def num_prompts(self) -> float:
        """Return the number of whole prompts that the chunks make together."""
        return self.prompt_tokens / (self.prompt_length - self.cached_length) if self.prompt_length else 0.0

    def fullest_share(self, layout: ParallelSizes) -> float:
        """Return the share of the prompts' attention and dense products that the fullest rank has.

        Tensor parallel ranks share each token. With attention DP a prompt is on one rank, for which all others wait.
        """
        return 1.0 if layout.is_attention_dp and self.is_one_prompt else 1 / layout.tp_size


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
    # Tokens of whose dense layers the fullest rank does all; tensor parallel ranks do a part of each token's.
    own_tokens = num_tokens
    if layout.is_attention_dp:
        own_tokens = load.num_decoding / layout.tp_size + load.prompt_tokens * load.fullest_share(layout)
    matrices = _matrices(engine, eff, num_tokens, own_tokens)
    # One row of logits for each sequence that gets a token; a prompt's last chunk gives one, too.
    num_rows = load.num_decoding + load.num_prompts
    head_ops = 2 * costs.head_size * num_rows / layout.tp_size / (gpu.tflops["fp16"] * 1e12 * eff.gemm_fp16)
    head_read = 2 * costs.head_size / layout.dense_tp_size / memory
    head_ops, head_read = head_ops / stages, head_read / stages  # the last stage's alone
    attention_ranks = layout.tp_size
    kv = (_kv_read_s(engine, eff, load) + _state_s(engine, eff, load)) / stages
    decode_ops = (
        load.num_decoding * (costs.decode_attention_flops(load.context_tokens) + costs.linear_attention_flops)
        / attention_ranks / stages / (gpu.tflops["fp16"] * 1e12 * eff.attention)
    )  # fmt: skip
    prefill_ops = 0.0
    if load.prompt_length:
        # Of n tokens, those before the c cached ones are not computed again: n^2 / 2 - c^2 / 2 pairs.
        flops = load.num_prompts * (
            costs.prefill_attention_flops(load.prompt_length) - costs.prefill_attention_flops(load.cached_length)
        )
        flops += load.prompt_tokens * costs.linear_attention_flops
        flops *= load.fullest_share(layout) / layout.cp_size / stages
        prefill_ops = flops / (gpu.tflops["fp16"] * 1e12 * eff.attention)
    widths = 6 * costs.active_intermediate_size / layout.tp_size
    if not engine.is_compiled:  # the plugin of compiled engines moves rows within its products
        widths += eff.routing_passes * costs.routed_width / layout.ep_size
    moved = own_tokens * eff.activation_passes * costs.model.hidden_size + num_tokens * widths
    activations = costs.model.num_layers / stages * moved / memory
    decode_attention = max(kv, decode_ops)
    interconnect = _interconnect_s(engine, eff, num_tokens)
    layer_s = eff.compiled_layer_s if engine.is_compiled else eff.layer_s
    host = eff.step_s + eff.sequence_s * load.num_decoding + layer_s * costs.model.num_layers / stages
    expert_layer_s = eff.fused_expert_layer_s if gpu.sm in _FUSED_EXPERTS else eff.expert_layer_s
    host += expert_layer_s * len(costs.model.expert_layers) / stages
    host += eff.latent_layer_s * costs.num_latent_layers / stages
    head = _blend(head_ops, head_read, eff.blend)
    gemm = _blend(matrices.compute_s, matrices.bandwidth_s, eff.blend)
    compute = matrices.compute_s + head_ops + prefill_ops + (decode_ops if decode_ops > kv else 0)
    bandwidth = matrices.bandwidth_s + head_read + activations + (kv if kv >= decode_ops else 0)
    total = gemm + head + decode_attention + prefill_ops + activations + interconnect + host
    if load.prompt_tokens and not engine.is_compiled:  # no CUDA graph has prompts: the GPU may wait for the host
        waited_s = max(0.0, eff.eager_layer_s * costs.model.num_layers / stages - total)
        host, total = host + waited_s, total + waited_s
    return StepTime(compute, bandwidth, interconnect, host, total)


def _matrices(engine: Engine, eff: Efficiencies, num_tokens: float, own_tokens: float) -> StepTime:
    """Return the matrices' time in one stage.

    It counts operations of what each token meets, and bytes of what the step's tokens meet together.

    Args:
        own_tokens: those that meet the dense layers of the fullest rank; of its experts, tokens of all ranks do.
    """
    layout, costs = engine.layout, engine.costs
    whole = engine.weight_bytes
    split = layout.tp_size * layout.pp_size
    dense_split = layout.dense_tp_size * layout.pp_size
    experts_read = whole.experts * costs.experts_met_share(num_tokens**eff.expert_variety)
    num_bytes = (whole.attention + whole.dense_mlp) / dense_split + experts_read / split
    dense_s = (
        (costs.attention_size + costs.dense_mlp_size) * own_tokens * _product_s(engine, eff, engine.formats.linear)
    )
    experts_s = _expert_rows(engine, eff, num_tokens) * _product_s(engine, eff, engine.formats.of_experts)
    return StepTime(
        compute_s=dense_s / dense_split + experts_s / split,
        bandwidth_s=num_bytes / (engine.gpu.bandwidth_gbs * 1e9 * eff.memory),
    )


def _product_s(engine: Engine, eff: Efficiencies, weights: WeightFormat) -> float:
    """Return the seconds in which one number of a matrix meets one row: two operations."""
    sm = engine.gpu.sm
    return 2 / (engine.gpu.tflops[weights.compute_on(sm)] * 1e12 * eff.gemm(weights, sm))


def _expert_rows(engine: Engine, eff: Efficiencies, num_tokens: float) -> float:
    """Return the numbers of experts' weights times the rows that meet them, as time in a dense product.

    A grouped product pads the rows of each expert, so that many small experts cost more than their tokens do, narrow
    ones fill its tiles badly, and with expert parallelism all ranks wait for the one with the most tokens.
    """
    costs = engine.costs
    if not costs.expert_size:
        return 0.0
    experts = costs.model.expert_layers[0]
    slowest = 1 + eff.expert_imbalance * (1 - 1 / engine.layout.ep_size)
    num_met = costs.experts_met_share(num_tokens**eff.expert_variety) * experts.num_experts
    rows = num_tokens * experts.experts_per_token * slowest + num_met * eff.expert_padding
    width = experts.intermediate_size / engine.layout.moe_tp_size
    narrow = 1 + eff.narrow_experts / width
    return costs.expert_size / experts.num_experts * rows * narrow


def _kv_read_s(engine: Engine, eff: Efficiencies, load: StepLoad) -> float:
    layout, heads = engine.layout, engine.costs.model.num_kv_heads
    # A rank has some of the sequences, or some of the heads of all.
    share = 1 / layout.tp_size if layout.is_attention_dp else layout.kv_heads(heads) / heads
    values = load.num_decoding * engine.costs.kv_values_kept(load.context_tokens)
    if load.cached_length:  # read once for each prompt that goes on from it
        values += load.num_prompts * engine.costs.kv_values_kept(load.cached_length)
    num_bytes = values * share * KV_FORMATS[engine.kv_format]
    return num_bytes / (engine.gpu.bandwidth_gbs * 1e9 * eff.kv_cache)


def _state_s(engine: Engine, eff: Efficiencies, load: StepLoad) -> float:
    """Return the seconds in which states of linear attention are read and written.

    A sequence that decodes does both once, a prompt for each chunk of tokens that its kernel takes at once. It is as
    quick as reading the KV cache by assumption: nobody measured it.
    """
    costs = engine.costs
    values = load.num_decoding * costs.state_values
    values += load.prompt_tokens / _LINEAR_CHUNK_TOKENS * costs.recurrent_state_values
    num_bytes = 2 * values * _STATE_BYTES / engine.layout.tp_size
    return num_bytes / (engine.gpu.bandwidth_gbs * 1e9 * eff.kv_cache)


def _interconnect_s(engine: Engine, eff: Efficiencies, num_tokens: float) -> float:
    """Return the seconds of communication: two all-reduces a layer, and a hand-over at the end of a stage.

    A ring all-reduce of b bytes over the tensor-parallel group sends 2 (n - 1) / n b over each link; small ones go in
    one shot, b to each of n - 1.
    """
    layout, gpu, model = engine.layout, engine.gpu, engine.costs.model
    num_bytes = num_tokens * model.hidden_size * 2
    is_nvlink = gpu.is_joined_by_nvlink(layout.stage_size)
    link = (gpu.nvlink_gbs * eff.nvlink if is_nvlink else gpu.pcie_gbs * eff.pcie) * 1e9
    seconds = 0.0
    if layout.tp_size > 1:
        ranks = layout.tp_size
        latency = eff.all_reduce_s if is_nvlink else eff.all_reduce_pcie_s
        per_layer = 1 if model.is_parallel_block or layout.is_attention_dp else 2
        count = per_layer * model.num_layers / layout.pp_size
        ring_s = latency + 2 * (ranks - 1) / ranks * num_bytes / link
        one_shot_s = eff.one_shot_s + (ranks - 1) * num_bytes / link
        seconds += count * (min(ring_s, one_shot_s) if is_nvlink else ring_s)
    if layout.cp_size > 1:
        seconds += model.num_layers / layout.pp_size * (layout.cp_size - 1) * num_bytes / layout.cp_size / link
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
