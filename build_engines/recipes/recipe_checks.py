# SPDX-License-Identifier: Apache-2.0
"""Checks of a recipe against the model, the GPU and the versions, before any work, every finding named.

What can be known from the recipe alone is refused when it is read (`build_engines.recipes.recipe`). The tables behind
the rules are `build_engines.checkpoint.weight_formats` and `build_engines.recipes.trtllm_versions`.
"""

from collections.abc import Mapping

from build_engines.checkpoint.gpus import Gpu
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import KV_FORMAT_SMS, WEIGHT_FORMATS, FormatPlan
from build_engines.recipes.engine_checks import check_engine_recipe
from build_engines.recipes.recipe import GpuRecipe, OpenVinoRecipe, PyTorchRecipe, Recipe, TensorRtRecipe, VllmRecipe
from build_engines.recipes.recipe_findings import Findings, ability, finding, fixed, one_of
from build_engines.recipes.trtllm_versions import (
    FIRST_WITHOUT_ENGINES,
    HF_PTQ_FORMATS,
    LAST_WITH_ENGINES,
    PYTORCH_FORMATS,
    PYTORCH_KV_FORMATS,
    PYTORCH_SPECULATION,
    VERSIONS,
    numbers,
)
from build_engines.sharding.shard_plan import ShardPlan, plan_shards
from ensemble_configs.releases.context_attention import why_not_on_pytorch
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import SpecError

_GIB = 1 << 30
_GROUPED_FORMATS = ("int4_awq", "w4a8_awq", "int4_gptq")


def check_recipe(
    recipe: Recipe, model: ModelShape, gpu: Gpu | None, versions: Mapping[str, str] | None = None
) -> list[Finding]:
    """Return every finding, field by field.

    Args:
        recipe: the recipe as it was read.
        model: shape of the checkpoint.
        gpu: GPU that the recipe names; None for OpenVINO and vLLM.
        versions: versions of installed packages; a missing one is not compared, as in a dry run elsewhere.
    """
    if isinstance(recipe, OpenVinoRecipe | VllmRecipe):
        return list(_length(recipe, model))
    assert gpu is not None
    findings = [*_version(recipe, versions or {}), *_hardware(recipe, gpu), *_sizes(recipe, model, gpu)]
    match recipe:
        case TensorRtRecipe():
            findings += check_engine_recipe(recipe, model, gpu)
        case PyTorchRecipe():
            findings += _pytorch(recipe)
    return findings


def format_plan(recipe: GpuRecipe) -> FormatPlan:
    """Return the formats of a model's matrices."""
    linear = WEIGHT_FORMATS[recipe.format]
    return FormatPlan(linear, head=linear) if recipe.is_head_quantized else FormatPlan(linear)


def shard_plan(recipe: GpuRecipe, model: ModelShape) -> ShardPlan:
    """Return the division of the model over the ranks.

    Raises:
        SpecError: something does not divide.
    """
    return plan_shards(
        model,
        tp_size=recipe.tp_size,
        pp_size=recipe.pp_size,
        ep_size=recipe.ep_size,
        cp_size=recipe.cp_size,
        is_attention_dp=isinstance(recipe, PyTorchRecipe) and recipe.is_attention_dp,
        embedding=recipe.embedding if isinstance(recipe, TensorRtRecipe) else "vocab",
    )


def _version(recipe: GpuRecipe, versions: Mapping[str, str]) -> Findings:
    installed = versions.get("tensorrt_llm")
    if recipe.tensorrt_llm not in VERSIONS and numbers(recipe.tensorrt_llm) < FIRST_WITHOUT_ENGINES:
        yield finding(
            "tensorrt_llm",
            recipe.tensorrt_llm,
            one_of(VERSIONS),
            "take a version with command lines that are known here",
        )
    if installed is not None and numbers(installed) != numbers(recipe.tensorrt_llm):
        yield finding(
            "tensorrt_llm",
            f"{installed} installed",
            recipe.tensorrt_llm,
            f"build in a container {_containers(recipe)}, or set tensorrt_llm in the recipe",
        )


def _containers(recipe: GpuRecipe) -> str:
    version = VERSIONS.get(recipe.tensorrt_llm)
    return f"tritonserver:{version.containers}-trtllm-python-py3" if version else "that has it"


def _hardware(recipe: GpuRecipe, gpu: Gpu) -> Findings:
    weights = WEIGHT_FORMATS[recipe.format]
    if gpu.sm not in weights.sms:
        fitting = {name for name, each in WEIGHT_FORMATS.items() if gpu.sm in each.sms}
        yield finding(
            "format", recipe.format, f"{one_of(fitting)} on {gpu.name} (SM {gpu.sm})", "take one, or another gpu"
        )
    kv_format = "fp16" if recipe.kv_format == "auto" else recipe.kv_format
    if gpu.sm not in KV_FORMAT_SMS[kv_format]:
        fitting = {name for name, sms in KV_FORMAT_SMS.items() if gpu.sm in sms and name != "bf16"}
        yield finding(
            "kv_format", recipe.kv_format, f"{one_of(fitting)} on {gpu.name} (SM {gpu.sm})", "take one, or another gpu"
        )


def _sizes(recipe: GpuRecipe, model: ModelShape, gpu: Gpu) -> Findings:
    if recipe.max_seq_len > model.max_position_embeddings:
        yield finding(
            "max_seq_len",
            recipe.max_seq_len,
            f"at most {model.max_position_embeddings}, for which the model was made",
            "lower it",
        )
    if recipe.group_size != 128 and recipe.format not in _GROUPED_FORMATS:
        yield finding("group_size", recipe.group_size, "nothing", f"leave it out: {recipe.format} has no groups")
    try:
        shards = shard_plan(recipe, model)
        num_bytes = max(shards.bytes_per_rank(format_plan(recipe)))
    except SpecError as exc:
        field = str(exc.facts.get("field", "tp_size"))
        yield finding(field, getattr(recipe, field, recipe.tp_size), "what divides the model", exc.message)
        return
    if num_bytes > gpu.memory_bytes:
        yield finding(
            "tp_size",
            f"{num_bytes / _GIB:.1f} GiB of weights on a rank",
            f"less than the {gpu.memory_gib} GiB of {gpu.name}",
            "take more ranks, a smaller format, or a larger gpu",
        )


def _pytorch(recipe: PyTorchRecipe) -> Findings:
    on = "on the PyTorch backend"
    engine = f"take backend tensorrt, which has it until {LAST_WITH_ENGINES}"
    yield from ability("format", recipe.format, PYTORCH_FORMATS, on, engine)
    yield from ability("kv_format", recipe.kv_format, PYTORCH_KV_FORMATS, on, engine)
    if recipe.speculation is not None:
        yield from ability("speculation.method", recipe.speculation.method, PYTORCH_SPECULATION, on, engine)
    if reason := why_not_on_pytorch(recipe.format, recipe.kv_format):
        yield finding("kv_format", recipe.kv_format, f"auto: {reason}", f"take auto, or another format; {engine}")
    if recipe.is_head_quantized:
        yield finding("is_head_quantized", True, False, "hf_ptq.py leaves the head as it is; leave it out")
    calibration = recipe.calibration
    if calibration is None:
        return
    if recipe.format not in HF_PTQ_FORMATS:
        yield finding("calibration", "set", "nothing", f"leave it out: {recipe.format} is not calibrated here")
    if calibration.file is not None:
        yield finding(
            "calibration.file",
            calibration.file.name,
            "a dataset",
            "hf_ptq.py knows names only: set calibration.dataset",
        )
    yield from fixed(calibration, "hf_ptq.py", "max_tokens", "seed")


def _length(recipe: OpenVinoRecipe | VllmRecipe, model: ModelShape) -> Findings:
    if recipe.max_seq_len > model.max_position_embeddings:
        yield finding("max_seq_len", recipe.max_seq_len, f"at most {model.max_position_embeddings}", "lower it")
