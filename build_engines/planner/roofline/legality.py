# SPDX-License-Identifier: Apache-2.0
"""The rules for which layouts and formats are legal on a GPU, with the reason where one is not."""

from build_engines.checkpoint.gpus import Gpu
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import KV_FORMAT_SMS, FormatPlan
from build_engines.recipes.trtllm_versions import (
    ENGINE_FORMATS,
    ENGINE_KV_FORMATS,
    PYTORCH_FORMATS,
    PYTORCH_KV_FORMATS,
)
from build_engines.sharding.parallel_sizes import ParallelSizes, check_sizes
from build_engines.sharding.shard_plan import ShardPlan
from ensemble_configs.releases.context_attention import why_not_on_pytorch, why_not_paged
from trireme.base.errors import SpecError


def why_layout_is_illegal(model: ModelShape, layout: ParallelSizes, gpu: Gpu, *, gpus_per_node: int) -> str | None:
    """Return the reason why a layout of the model is illegal, or None.

    Args:
        gpus_per_node: GPUs of each machine; a tensor-parallel group stays within one, and within what NVLink joins.
    """
    if layout.is_attention_dp and not model.is_moe:
        return "attention DP is for models with experts: a dense one would be whole on every rank, as replicas are"
    try:
        check_sizes(model, layout)
    except SpecError as exc:
        return exc.message
    return _links(layout, gpu, gpus_per_node)


def _links(layout: ParallelSizes, gpu: Gpu, gpus_per_node: int) -> str | None:
    domain = min(gpus_per_node, gpu.nvlink_domain) if gpu.nvlink_gbs else gpus_per_node
    if layout.stage_size <= max(domain, 1):
        return None
    kind = "NVLink domain" if gpu.nvlink_gbs and gpu.nvlink_domain <= gpus_per_node else "node"
    return (
        f"tp_size x cp_size {layout.stage_size} reaches over the {kind} of {domain} {gpu.title}: two all-reduces a "
        "layer would cross it"
    )


def why_format_is_illegal(
    model: ModelShape, formats: FormatPlan, kv_format: str, layout: ParallelSizes, gpu: Gpu
) -> str | None:
    """Return the reason why a format does not run on this GPU or this layout, or None."""
    linear = formats.linear
    if gpu.sm not in linear.sms:
        return f"{linear.name} does not run on SM {gpu.sm} ({gpu.title}); it does on {_sms(linear.sms)}"
    if gpu.sm not in KV_FORMAT_SMS[kv_format]:
        return f"a KV cache in {kv_format} does not run on SM {gpu.sm}; it does on {_sms(KV_FORMAT_SMS[kv_format])}"
    if not _backends(linear.name, kv_format):
        return (
            f"none of TensorRT-LLM's back ends serves {linear.name} weights with a KV cache in {kv_format}; engines "
            f"have {_names(ENGINE_KV_FORMATS)}, the PyTorch backend has {_names(PYTORCH_KV_FORMATS)}"
        )
    try:
        ShardPlan(model, layout).bytes_per_rank(formats)
    except SpecError as exc:  # groups of scales that a rank's border would cut
        return exc.message
    return None


def why_prompts_are_not_chunked(weight_format: str, kv_format: str, gpu: Gpu) -> str | None:
    """Return the reason why no back end prefills prompts in chunks, or reuses cached blocks, or None.

    The PyTorch backend always can; of engines the KV type decides (`ensemble_configs.releases.context_attention`).
    """
    if "pytorch" in _backends(weight_format, kv_format):
        return None
    reason = why_not_paged(weight_format, kv_format, gpu.sm)
    return None if reason is None else f"only a compiled engine has this, and {reason}"


def _backends(weight_format: str, kv_format: str) -> set[str]:
    """Return the back ends that serve these weights with this KV cache."""
    kv_format = "auto" if kv_format in ("fp16", "bf16") else kv_format
    found = set()
    if weight_format in ENGINE_FORMATS and kv_format in ENGINE_KV_FORMATS:
        found.add("tensorrt")
    if weight_format in PYTORCH_FORMATS and kv_format in PYTORCH_KV_FORMATS:
        found.add("pytorch")
    return found if why_not_on_pytorch(weight_format, kv_format) is None else found - {"pytorch"}


def _names(kv_formats: frozenset[str]) -> str:
    return ", ".join(["16 bits", *sorted(kv_formats - {"auto", "fp16"})])


def _sms(sms: frozenset[int]) -> str:
    return "SM " + ", ".join(str(sm) for sm in sorted(sms))
