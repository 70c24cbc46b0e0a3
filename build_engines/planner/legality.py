# SPDX-License-Identifier: Apache-2.0
"""Which layouts and formats are legal on a GPU, with the reason where one is not."""

from build_engines.gpus import Gpu
from build_engines.model_shape import ModelShape
from build_engines.parallel_sizes import ParallelSizes, check_sizes
from build_engines.sharding import ShardPlan
from build_engines.weight_formats import KV_FORMAT_SMS, FormatPlan
from ensemble_configs.errors import SpecError


def why_layout_is_illegal(model: ModelShape, layout: ParallelSizes, gpu: Gpu, *, gpus_per_node: int) -> str | None:
    """The reason why a model cannot lie so, or None.

    Args:
        gpus_per_node: of the machines; a tensor-parallel group stays within them, and within what NVLink joins.
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
    """The reason why a format does not run on this GPU or this layout, or None."""
    linear = formats.linear
    if gpu.sm not in linear.sms:
        return f"{linear.name} does not run on SM {gpu.sm} ({gpu.title}); it does on {_sms(linear.sms)}"
    if gpu.sm not in KV_FORMAT_SMS[kv_format]:
        return f"a KV cache in {kv_format} does not run on SM {gpu.sm}; it does on {_sms(KV_FORMAT_SMS[kv_format])}"
    try:
        ShardPlan(model, layout).bytes_per_rank(formats)
    except SpecError as exc:  # groups of scales that a rank's border would cut
        return exc.message
    return None


def _sms(sms: frozenset[int]) -> str:
    return "SM " + ", ".join(str(sm) for sm in sorted(sms))
