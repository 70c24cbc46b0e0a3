# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint by the names they have there, with shape and purpose.

From them follow the exact number of parameters, the bytes of each format (`build_engines.checkpoint.weight_formats`),
what goes to which rank (`build_engines.sharding.shard_plan`) and what a checkpoint must hold. Shapes are as in the
safetensors files: a linear layer is ``[out_features, in_features]``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from build_engines.checkpoint.model_shape import (
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    LinearAttention,
    ModelShape,
)
from build_engines.checkpoint.tensor_names import tensor_names


class Role(StrEnum):
    """The purpose of a tensor: it decides how the tensor is split over ranks, and whether it is quantized."""

    EMBEDDING = "embedding"
    HEAD = "head"
    NORM = "norm"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    QKV = "qkv"  # all three in one
    OUTPUT = "output"  # of attention
    LATENT_DOWN = "latent_down"  # hidden to low rank, of latent attention
    LATENT_QUERY = "latent_query"  # low rank (or hidden) to the heads' queries
    LATENT_KV = "latent_kv"  # low rank to the heads' keys and values
    SINK = "sink"
    LINEAR_IN = "linear_in"  # of linear attention: queries, keys, values and output gates in one, key head by key head
    LINEAR_GATES = "linear_gates"  # of linear attention: write strength and decay of each value head
    CONV = "conv"  # of linear attention, over queries, keys and values: one behind the other
    DECAY = "decay"  # of linear attention: a number for each value head
    GATE = "gate"
    UP = "up"
    GATE_UP = "gate_up"  # both in one
    DOWN = "down"
    ROUTER = "router"


# Matrices that a quantized format holds in few bits; the rest stays in 16 bits unless a format says otherwise.
LINEAR_ROLES = frozenset(
    {
        Role.QUERY, Role.KEY, Role.VALUE, Role.QKV, Role.OUTPUT, Role.LATENT_DOWN, Role.LATENT_QUERY, Role.LATENT_KV,
        Role.LINEAR_IN, Role.GATE, Role.UP, Role.GATE_UP, Role.DOWN,
    }
)  # fmt: skip

# Architectures whose fused QKV has the rows of each KV head together: its queries, its key, its value. In the others
# all queries come first, then all keys, then all values.
FUSED_BY_KV_HEAD = frozenset({"FalconForCausalLM"})

# Architectures whose joined experts have all gates before all ups along the last axis. In the others they alternate.
GATES_BEFORE_UPS = frozenset(
    {"Llama4ForCausalLM", "Llama4ForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"}
)


@dataclass(frozen=True)
class Weight:
    """A tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int | None = None  # None: outside the layers
    expert: int | None = None  # of a mixture; None: none, or all of them in one tensor
    is_bias: bool = False
    num_experts: int = 1  # in this tensor, along its first axis

    @property
    def is_of_experts(self) -> bool:
        """Return True for a tensor of one expert of a mixture, or of all of them."""
        return self.expert is not None or self.num_experts > 1

    @property
    def size(self) -> int:
        """Return how many numbers the tensor holds."""
        return math.prod(self.shape)


def weights_of(model: ModelShape) -> list[Weight]:
    """Return every tensor of the model's checkpoint, in the order of the layers."""
    embedding, *last = outer_weights(model)
    layers = [weight for index in range(model.num_layers) for weight in layer_weights(model, index)]
    return [embedding, *layers, *last]


def outer_weights(model: ModelShape) -> list[Weight]:
    """Return the tensors outside the layers: embedding, final norm, and the head where it is not the embedding."""
    names = tensor_names(model.architecture)
    h, v = model.hidden_size, model.vocab_size
    weights = [Weight(names["embedding"], (v, h), Role.EMBEDDING)]
    weights += _norm(names["final_norm"], h, None, has_bias=model.has_norm_bias)
    if not model.is_tied:
        weights.append(Weight(names["head"], (v, h), Role.HEAD))
    if model.has_head_bias:
        weights.append(Weight(_bias(names["head"]), (v,), Role.HEAD, is_bias=True))
    return weights


def layer_weights(model: ModelShape, index: int) -> list[Weight]:
    """Return the tensors of one layer."""
    return list(_layer(model, tensor_names(model.architecture), index, model.layers[index]))


def num_parameters(model: ModelShape) -> int:
    """Return the number of parameters; a tied head is counted once."""
    return sum(weight.size for weight in weights_of(model))


def num_active_parameters(model: ModelShape) -> int:
    """Return the number of parameters that one token meets: of a mixture only the chosen experts."""
    total = 0
    for weight in weights_of(model):
        mlp = model.layers[weight.layer].mlp if weight.layer is not None else None
        is_routed = isinstance(mlp, ExpertMlp) and (weight.expert is not None or weight.num_experts > 1)
        if is_routed:
            assert isinstance(mlp, ExpertMlp)
            total += weight.size * mlp.experts_per_token // mlp.num_experts
        else:
            total += weight.size
    return total


def _layer(model: ModelShape, names: dict[str, str], index: int, layer: LayerShape) -> Iterator[Weight]:
    at = {key: name.replace("{l}", str(index)) for key, name in names.items()}
    norms = ("input_norm", "post_norm", "pre_mlp_norm", "post_mlp_norm")[: model.norms_per_layer]
    if model.is_parallel_block and len(norms) > 1:
        norms = ("attention_norm", "mlp_norm")  # side by side, of what comes in
    for norm in norms:
        yield from _norm(at[norm], model.hidden_size, index, has_bias=model.has_norm_bias)
    match layer.attention:
        case GroupedAttention():
            yield from _grouped_attention(at, model.hidden_size, index, layer.attention)
        case LatentAttention():
            yield from _latent_attention(at, model.hidden_size, index, layer.attention)
        case LinearAttention():
            yield from _linear_attention(at, model.hidden_size, index, layer.attention)
    match layer.mlp:
        case DenseMlp(size, is_gated, has_bias):
            prefix = {part: at[part] for part in ("gate", "up", "down")}
            if "gate_up" in at:
                yield from _linear(at["gate_up"], 2 * size, model.hidden_size, Role.GATE_UP, index, has_bias=has_bias)
                prefix.pop("gate"), prefix.pop("up")
            yield from _mlp(prefix, model.hidden_size, size, index, is_gated=is_gated, has_bias=has_bias)
        case ExpertMlp():
            yield from _experts(at, model.hidden_size, index, layer.mlp)


def _grouped_attention(at: dict[str, str], h: int, layer: int, one: GroupedAttention) -> Iterator[Weight]:
    q, kv = one.num_heads * one.head_dim, one.num_kv_heads * one.head_dim
    if "qkv" in at:
        yield from _linear(at["qkv"], q + 2 * kv, h, Role.QKV, layer, has_bias=one.has_qkv_bias)
    else:
        queries = 2 * q if one.has_output_gate else q  # head by head: its query, its gate
        for name, role, size in (("query", Role.QUERY, queries), ("key", Role.KEY, kv), ("value", Role.VALUE, kv)):
            yield from _linear(at[name], size, h, role, layer, has_bias=one.has_qkv_bias)
    yield from _linear(at["output"], h, q, Role.OUTPUT, layer, has_bias=one.has_output_bias)
    if one.has_qk_norm:
        yield from _norm(at["query_norm"], one.head_dim, layer)
        yield from _norm(at["key_norm"], one.head_dim, layer)
    if one.has_sinks:
        yield Weight(at["sinks"], (one.num_heads,), Role.SINK, layer)


def _latent_attention(at: dict[str, str], h: int, layer: int, one: LatentAttention) -> Iterator[Weight]:
    head_dim = one.qk_nope_head_dim + one.qk_rope_head_dim
    if one.q_lora_rank is None:
        yield from _linear(at["query"], one.num_heads * head_dim, h, Role.LATENT_QUERY, layer)
    else:
        yield from _linear(at["query_down"], one.q_lora_rank, h, Role.LATENT_DOWN, layer)
        yield from _norm(at["query_down_norm"], one.q_lora_rank, layer)
        yield from _linear(at["query_up"], one.num_heads * head_dim, one.q_lora_rank, Role.LATENT_QUERY, layer)
    yield from _linear(at["kv_down"], one.kv_lora_rank + one.qk_rope_head_dim, h, Role.LATENT_DOWN, layer)
    yield from _norm(at["kv_down_norm"], one.kv_lora_rank, layer)
    kv_up = one.num_heads * (one.qk_nope_head_dim + one.v_head_dim)
    yield from _linear(at["kv_up"], kv_up, one.kv_lora_rank, Role.LATENT_KV, layer)
    yield from _linear(at["output"], h, one.num_heads * one.v_head_dim, Role.OUTPUT, layer)


def _linear_attention(at: dict[str, str], h: int, layer: int, one: LinearAttention) -> Iterator[Weight]:
    yield Weight(at["linear_in"], (2 * one.key_size + 2 * one.value_size, h), Role.LINEAR_IN, layer)
    yield Weight(at["linear_gates"], (2 * one.num_value_heads, h), Role.LINEAR_GATES, layer)
    yield Weight(at["conv"], (one.conv_size, 1, one.conv_kernel_size), Role.CONV, layer)
    yield Weight(at["decay"], (one.num_value_heads,), Role.DECAY, layer)
    yield Weight(at["time_step"], (one.num_value_heads,), Role.DECAY, layer)
    yield from _norm(at["linear_norm"], one.value_head_dim, layer)
    yield from _linear(at["linear_output"], h, one.value_size, Role.OUTPUT, layer)


def _experts(at: dict[str, str], h: int, layer: int, one: ExpertMlp) -> Iterator[Weight]:
    yield Weight(at["router"], (one.num_experts, h), Role.ROUTER, layer)
    if one.has_router_bias:
        yield Weight(at["router_bias"], (one.num_experts,), Role.ROUTER, layer, is_bias=True)
    if "all_gate_up" in at:
        yield from _fused_experts(at, h, layer, one)
    else:
        for expert in range(one.num_experts):
            parts = {part: at[f"expert_{part}"].replace("{e}", str(expert)) for part in ("gate", "up", "down")}
            yield from _mlp(parts, h, one.intermediate_size, layer, expert=expert)
    if one.shared_intermediate_size:
        shared = {part: at[f"shared_{part}"] for part in ("gate", "up", "down")}
        yield from _mlp(shared, h, one.shared_intermediate_size, layer)
    if one.has_shared_gate:
        yield Weight(at["shared_router"], (1, h), Role.ROUTER, layer)


def _fused_experts(at: dict[str, str], h: int, layer: int, one: ExpertMlp) -> Iterator[Weight]:
    """Yield the tensors of experts that are stored as one, ``[experts, in_features, out_features]``."""
    n, size = one.num_experts, one.intermediate_size
    for name, role, shape in (
        ("all_gate_up", Role.GATE_UP, (n, h, 2 * size)),
        ("all_down", Role.DOWN, (n, size, h)),
    ):
        yield Weight(at[name], shape, role, layer, num_experts=n)
        if one.has_bias:
            yield Weight(at[name] + "_bias", (n, shape[-1]), role, layer, is_bias=True, num_experts=n)


def _mlp(
    at: dict[str, str], h: int, size: int, layer: int, *, expert: int | None = None, is_gated: bool = True,
    has_bias: bool = False,
) -> Iterator[Weight]:  # fmt: skip
    if is_gated and "gate" in at:
        yield from _linear(at["gate"], size, h, Role.GATE, layer, expert=expert, has_bias=has_bias)
    if "up" in at:
        yield from _linear(at["up"], size, h, Role.UP, layer, expert=expert, has_bias=has_bias)
    yield from _linear(at["down"], h, size, Role.DOWN, layer, expert=expert, has_bias=has_bias)


def _linear(
    name: str, out: int, into: int, role: Role, layer: int, *, expert: int | None = None, has_bias: bool = False
) -> Iterator[Weight]:
    yield Weight(name, (out, into), role, layer, expert)
    if has_bias:
        yield Weight(_bias(name), (out,), role, layer, expert, is_bias=True)


def _norm(name: str, size: int, layer: int | None, *, has_bias: bool = False) -> Iterator[Weight]:
    yield Weight(name, (size,), Role.NORM, layer)
    if has_bias:
        yield Weight(_bias(name), (size,), Role.NORM, layer, is_bias=True)


def _bias(name: str) -> str:
    return name.removesuffix(".weight") + ".bias"
