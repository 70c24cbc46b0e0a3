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

# Formats of published checkpoints, which no recipe makes.
_AS_PUBLISHED = frozenset({"mxfp4"})
# TensorRT-LLM's table of models against formats: what these architectures have, and who has these formats.
_FORMATS_OF = {"GptOssForCausalLM": ("fp16", "bf16", "mxfp4")}
_ARCHITECTURES_OF = {"mxfp4": ("GptOssForCausalLM",)}
# Building an engine for A100 ends with "Networks with FP8 precision require hardware with FP8 support" (issue 1428 of
# NVIDIA/TensorRT-LLM); its table of hardware against formats has no FP8 weights on Ampere for the PyTorch backend
# either. Others unpack FP8 weights there (Marlin kernels); TensorRT-LLM does not.
_FIRST_FP8_SM = 89
_NO_FP8_CORES = (
    "it has no FP8 tensor cores, and TensorRT-LLM does not unpack FP8 weights; in 8 bits it runs int8_weight_only and "
    "smoothquant"
)


def why_layout_is_illegal(model: ModelShape, layout: ParallelSizes, gpu: Gpu, *, gpus_per_node: int) -> str | None:
    """Return the reason why a layout of the model is illegal, or None.

    Args:
        gpus_per_node: GPUs of each machine; a tensor-parallel group stays within one, and within what NVLink joins
            unless that is a bridge between cards, beyond which PCIe goes on.
    """
    if layout.is_attention_dp and not model.is_moe:
        return "attention DP is for models with experts: a dense one would be whole on every rank, as replicas are"
    if layout.is_attention_dp and model.linear_layers:
        return (
            "attention DP is not for models with linear attention: TensorRT-LLM 1.2 divides their states over all "
            "tp_size ranks"
        )
    try:
        check_sizes(model, layout)
    except SpecError as exc:
        return exc.message
    return _links(layout, gpu, gpus_per_node)


def _links(layout: ParallelSizes, gpu: Gpu, gpus_per_node: int) -> str | None:
    is_bounded = gpu.nvlink_gbs > 0 and not gpu.is_bridged
    domain = min(gpus_per_node, gpu.nvlink_domain) if is_bounded else gpus_per_node
    if layout.stage_size <= max(domain, 1):
        return None
    kind = "NVLink domain" if is_bounded and gpu.nvlink_domain <= gpus_per_node else "node"
    return (
        f"tp_size x cp_size {layout.stage_size} reaches over the {kind} of {domain} {gpu.title}: two all-reduces a "
        "layer would cross it"
    )


def why_format_is_illegal(
    model: ModelShape, formats: FormatPlan, kv_format: str, layout: ParallelSizes, gpu: Gpu
) -> str | None:
    """Return the reason why a format does not run on this GPU or this layout, or None."""
    for weights in (formats.linear, formats.of_experts):
        if gpu.sm not in weights.sms:
            why = f": {_NO_FP8_CORES}" if weights.compute == "fp8" and gpu.sm < _FIRST_FP8_SM else ""
            return f"{weights.name} does not run on SM {gpu.sm} ({gpu.title}){why}; it does on {_sms(weights.sms)}"
    if gpu.sm not in KV_FORMAT_SMS[kv_format]:
        return f"a KV cache in {kv_format} does not run on SM {gpu.sm}; it does on {_sms(KV_FORMAT_SMS[kv_format])}"
    if (reason := _why_not_of_model(model, formats.name, kv_format)) is not None:
        return reason
    if not _backends(formats.name, kv_format):
        return (
            f"none of TensorRT-LLM's back ends serves {formats.name} weights with a KV cache in {kv_format}; engines "
            f"have {_names(ENGINE_KV_FORMATS)}, the PyTorch backend has {_names(PYTORCH_KV_FORMATS)}"
        )
    try:
        ShardPlan(model, layout).bytes_per_rank(formats)
    except SpecError as exc:  # groups of scales that a rank's border would cut
        return exc.message
    return None


def _why_not_of_model(model: ModelShape, weight_format: str, kv_format: str) -> str | None:
    architectures = _ARCHITECTURES_OF.get(weight_format, (model.architecture,))
    if model.architecture not in architectures:
        return f"back ends of TensorRT-LLM serve {weight_format} of {', '.join(architectures)} alone"
    formats = _FORMATS_OF.get(model.architecture, (weight_format,))
    if weight_format not in formats:
        return f"back ends of TensorRT-LLM serve {model.architecture} in {', '.join(formats)} alone"
    if model.linear_layers and _backends(weight_format, kv_format) == {"tensorrt"}:
        return f"of TensorRT-LLM's back ends compiled engines alone serve this, and it compiles no {model.architecture}"
    return None


def is_compiled_alone(weight_format: str, kv_format: str) -> bool:
    """Return True if only compiled engines serve these weights with this KV cache, and the PyTorch backend does not."""
    return "pytorch" not in _backends(weight_format, kv_format)


def why_prompts_are_not_chunked(weight_format: str, kv_format: str, gpu: Gpu) -> str | None:
    """Return the reason why no back end prefills prompts in chunks, or reuses cached blocks, or None.

    The PyTorch backend always can; of engines the KV type decides (`ensemble_configs.releases.context_attention`).
    """
    if not is_compiled_alone(weight_format, kv_format):
        return None
    reason = why_not_paged(weight_format, kv_format, gpu.sm)
    return None if reason is None else f"only a compiled engine has this, and {reason}"


def why_blocks_are_not_reused(model: ModelShape) -> str | None:
    """Return the reason why no prompt of a model can go on from cached blocks, or None.

    Source: `MambaHybridCacheManager` of TensorRT-LLM 1.2, which asserts that block reuse is off.
    """
    if not model.linear_layers:
        return None
    return (
        "engine.is_block_reuse must be false: TensorRT-LLM 1.2 keeps the states of linear attention of running "
        "sequences alone, so no prompt can go on from cached blocks"
    )


def _backends(weight_format: str, kv_format: str) -> set[str]:
    """Return the back ends that serve these weights with this KV cache."""
    kv_format = "auto" if kv_format in ("fp16", "bf16") else kv_format
    found = set()
    if weight_format in ENGINE_FORMATS and kv_format in ENGINE_KV_FORMATS:
        found.add("tensorrt")
    if weight_format in PYTORCH_FORMATS | _AS_PUBLISHED and kv_format in PYTORCH_KV_FORMATS:
        found.add("pytorch")
    return found if why_not_on_pytorch(weight_format, kv_format) is None else found - {"pytorch"}


def _names(kv_formats: frozenset[str]) -> str:
    return ", ".join(["16 bits", *sorted(kv_formats - {"auto", "fp16"})])


def _sms(sms: frozenset[int]) -> str:
    return "SM " + ", ".join(str(sm) for sm in sorted(sms))
