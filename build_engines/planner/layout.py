# SPDX-License-Identifier: Apache-2.0
"""How one replica of a model lies on its GPUs, and which layouts are legal, with the reason where one is not."""

from dataclasses import dataclass

from build_engines.gpus import Gpu
from build_engines.model_shape import GroupedAttention, ModelShape
from build_engines.weight_formats import KV_FORMAT_SMS, FormatPlan, WeightFormat


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel groups of one replica."""

    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    ep_size: int = 1  # experts whole on ranks, within tp_size; 1: every expert is split by tp_size
    is_attention_dp: bool = False  # attention and KV cache of each sequence on one rank, feed-forward by tp_size

    @property
    def world_size(self) -> int:
        """GPUs of one replica."""
        return self.tp_size * self.pp_size * self.cp_size

    def __str__(self) -> str:
        parts = [f"tp{self.tp_size}"]
        parts += [f"pp{self.pp_size}"] if self.pp_size > 1 else []
        parts += [f"cp{self.cp_size}"] if self.cp_size > 1 else []
        parts += [f"ep{self.ep_size}"] if self.ep_size > 1 else []
        parts += ["attention-dp"] if self.is_attention_dp else []
        return " ".join(parts)


def why_layout_is_illegal(model: ModelShape, layout: Layout, gpu: Gpu, *, gpus_per_node: int) -> str | None:
    """The reason why a model cannot lie so, or None.

    Args:
        gpus_per_node: of the machines, at most the GPUs that NVLink joins.
    """
    checks = (_heads, _mlp, _layers, _experts, lambda *_: _links(layout, gpu, gpus_per_node))
    return next((reason for check in checks if (reason := check(model, layout))), None)


def _heads(model: ModelShape, layout: Layout) -> str | None:
    tp, heads = layout.tp_size, model.attention.num_heads
    if layout.is_attention_dp:
        return None if tp > 1 else "attention DP needs tp_size > 1: it spreads sequences over those ranks"
    if heads % tp:
        return f"{heads} attention heads are not divisible by tp_size {tp}"
    kv = model.num_kv_heads
    if isinstance(model.attention, GroupedAttention) and kv % tp and tp % kv:
        return f"{kv} KV heads neither divide nor are divided by tp_size {tp}"
    return None


def _mlp(model: ModelShape, layout: Layout) -> str | None:
    split = layout.tp_size // layout.ep_size if model.is_moe else layout.tp_size
    for mlp in dict.fromkeys(layer.mlp for layer in model.layers):
        parts = layout.tp_size if not hasattr(mlp, "num_experts") else split
        if mlp.intermediate_size % max(parts, 1):
            return f"intermediate_size {mlp.intermediate_size} is not divisible by {parts} ranks"
    return None


def _layers(model: ModelShape, layout: Layout) -> str | None:
    if layout.pp_size > model.num_layers:
        return f"pp_size {layout.pp_size} is more than the {model.num_layers} layers"
    return None


def _experts(model: ModelShape, layout: Layout) -> str | None:
    ep = layout.ep_size
    if not model.is_moe:
        if ep > 1:
            return f"ep_size {ep}: the model has no experts"
        if layout.is_attention_dp:
            return "attention DP is for models with experts (TensorRT-LLM runs dense ones as replicas instead)"
        return None
    num_experts = model.expert_layers[0].num_experts
    if layout.tp_size % ep:
        return f"ep_size {ep} does not divide tp_size {layout.tp_size}"
    if num_experts % ep:
        return f"{num_experts} experts are not divisible by ep_size {ep}"
    return None


def _links(layout: Layout, gpu: Gpu, gpus_per_node: int) -> str | None:
    domain = min(gpus_per_node, gpu.nvlink_domain) if gpu.nvlink_gbs else gpus_per_node
    if layout.tp_size * layout.cp_size > max(domain, 1):
        kind = "NVLink domain" if gpu.nvlink_gbs and gpu.nvlink_domain <= gpus_per_node else "node"
        return (
            f"tp_size x cp_size {layout.tp_size * layout.cp_size} reaches over the {kind} of {domain} "
            f"{gpu.title}: two all-reduces a layer would cross it"
        )
    return None


def why_format_is_illegal(
    model: ModelShape, formats: FormatPlan, kv_format: str, layout: Layout, gpu: Gpu
) -> str | None:
    """The reason why a format does not run on this GPU or this layout, or None."""
    linear = formats.linear
    if gpu.sm not in linear.sms:
        return f"{linear.name} does not run on SM {gpu.sm} ({gpu.title}); it does on {_sms(linear.sms)}"
    if gpu.sm not in KV_FORMAT_SMS[kv_format]:
        return f"a KV cache in {kv_format} does not run on SM {gpu.sm}; it does on {_sms(KV_FORMAT_SMS[kv_format])}"
    return _groups(model, linear, layout)


def _groups(model: ModelShape, linear: WeightFormat, layout: Layout) -> str | None:
    """A group of scales lies on one rank: what is split along its axis must divide."""
    group_in = linear.group[1]
    if not group_in or not linear.is_quantized:
        return None
    for mlp in dict.fromkeys(layer.mlp for layer in model.layers):
        parts = layout.tp_size // (layout.ep_size if hasattr(mlp, "num_experts") else 1)
        if (mlp.intermediate_size // parts) % group_in:
            return (
                f"{linear.name} has groups of {group_in}, which do not divide intermediate_size / ranks "
                f"({mlp.intermediate_size} / {parts})"
            )
    return None


def _sms(sms: frozenset[int]) -> str:
    return "SM " + ", ".join(str(sm) for sm in sorted(sms))
