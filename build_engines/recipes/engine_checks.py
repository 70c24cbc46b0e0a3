# SPDX-License-Identifier: Apache-2.0
"""Rules for a recipe of a compiled engine, besides those of `build_engines.recipes.recipe_checks` for every recipe."""

from build_engines.checkpoint.gpus import Gpu
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.recipes.build_route import max_draft_len, needs_calibration, route
from build_engines.recipes.recipe import TensorRtRecipe
from build_engines.recipes.recipe_findings import Findings, ability, finding, fixed, one_of, shown
from build_engines.recipes.recipe_parts import EagleRecipe, Plugins
from build_engines.recipes.trtllm_versions import (
    AWQ_NUM_SAMPLES,
    ENGINE_FORMATS,
    ENGINE_KV_FORMATS,
    ENGINE_SPECULATION,
    FIRST_WITHOUT_ENGINES,
    LAST_WITH_ENGINES,
    LLAMA_FAMILY,
    NOT_ON_SM_100,
    QUANTIZE_FAMILIES,
    QUANTIZE_FORMATS,
    REDUCE_FUSION_FAMILIES,
    numbers,
)
from ensemble_configs.releases.context_attention import why_not_paged
from ensemble_configs.spec.finding import Finding


def check_engine_recipe(recipe: TensorRtRecipe, model: ModelShape, gpu: Gpu) -> Findings:
    """Yield every finding about the recipe as an engine."""
    yield from _version(recipe)
    yield from _abilities(recipe, model)
    yield from _plugins(recipe, model, gpu)
    yield from _context_attention(recipe, gpu)
    yield from _limits(recipe)


def _version(recipe: TensorRtRecipe) -> Findings:
    if numbers(recipe.tensorrt_llm) >= FIRST_WITHOUT_ENGINES:
        yield finding(
            "tensorrt_llm",
            recipe.tensorrt_llm,
            f"at most {LAST_WITH_ENGINES}: 1.3 has no engines any more",
            "take backend pytorch, or that version",
        )


def _abilities(recipe: TensorRtRecipe, model: ModelShape) -> Findings:
    architecture = model.architecture
    if architecture not in LLAMA_FAMILY | QUANTIZE_FAMILIES and recipe.checkpoint_form == "hugging_face":
        yield finding(
            "backend",
            f"tensorrt for {architecture}",
            one_of(LLAMA_FAMILY | QUANTIZE_FAMILIES),
            "take backend pytorch, or checkpoint_form tensorrt_llm with a checkpoint that upstream's script made",
        )
    yield from ability("format", recipe.format, ENGINE_FORMATS, "as an engine", "take backend pytorch")
    yield from ability("kv_format", recipe.kv_format, ENGINE_KV_FORMATS, "as an engine", "take backend pytorch")
    if recipe.speculation is not None:
        method = recipe.speculation.method
        yield from ability(
            "speculation.method", method, ENGINE_SPECULATION, "as an engine", "take one, or backend pytorch"
        )
        if method in ("eagle", "explicit_draft_tokens") and recipe.checkpoint_form == "hugging_face":
            yield finding(
                "checkpoint_form",
                "hugging_face",
                f"tensorrt_llm, for {method}",
                f"join base and drafter with upstream's script for {method} first, and build from what it writes",
            )
    own = {"fp16": "float16", "bf16": "bfloat16"}.get(recipe.format)
    if own is not None and recipe.dtype not in ("auto", own):
        yield finding("dtype", recipe.dtype, f"{own} or auto with format {recipe.format}", "change one of the two")
    yield from _route(recipe, model)


def _route(recipe: TensorRtRecipe, model: ModelShape) -> Findings:
    way = route(recipe, model.architecture)
    if way == "quantize":
        if recipe.format in ENGINE_FORMATS and recipe.format not in QUANTIZE_FORMATS:
            family = one_of(LLAMA_FAMILY)
            yield finding(
                "format",
                f"{recipe.format} for {model.architecture}",
                f"without medusa, and for {family}: quantize.py has no GPTQ",
                "take int4_awq, or leave medusa out",
            )
        for field, value, default in (
            ("ep_size", recipe.ep_size, 1),
            ("embedding", recipe.embedding, "none"),
            ("smoothquant", recipe.smoothquant, None),
        ):
            if value != default:
                yield finding(field, shown(value), shown(default), "quantize.py cannot set it; leave it out")
    elif recipe.smoothquant is not None and recipe.format != "smoothquant":
        yield finding("smoothquant", "set", "nothing", f"leave it out with format {recipe.format}")
    if recipe.gptq_file is not None and recipe.format != "int4_gptq":
        yield finding("gptq_file", recipe.gptq_file.name, "nothing", f"leave it out with format {recipe.format}")
    if recipe.is_head_quantized and recipe.format != "fp8":
        yield finding("is_head_quantized", True, "false, but with format fp8", "leave it out, or take format fp8")
    yield from _calibration(recipe, model, way)


def _calibration(recipe: TensorRtRecipe, model: ModelShape, way: str) -> Findings:
    calibration = recipe.calibration
    if not needs_calibration(recipe, model.architecture):
        if calibration is not None:
            yield finding("calibration", "set", "nothing", f"leave it out: {recipe.format} is not calibrated")
        return
    if calibration is None:
        yield finding(
            "calibration", "nothing", f"a dataset or a file, for {_what_is_calibrated(recipe)}", "add calibration"
        )
        return
    if recipe.format in ("int4_awq", "w4a8_awq") and calibration.num_samples > AWQ_NUM_SAMPLES:
        yield finding(
            "calibration.num_samples",
            calibration.num_samples,
            f"at most {AWQ_NUM_SAMPLES} with {recipe.format}: quantize.py takes no more",
            f"set it to {AWQ_NUM_SAMPLES}",
        )
    if way == "convert":
        yield from fixed(calibration, "convert_checkpoint.py", "batch_size", "seed")


def _what_is_calibrated(recipe: TensorRtRecipe) -> str:
    return (
        f"format {recipe.format}"
        if recipe.format in QUANTIZE_FORMATS and recipe.kv_format in ("auto", "fp16")
        else (f"format {recipe.format} with kv_format {recipe.kv_format}")
    )


def _plugins(recipe: TensorRtRecipe, model: ModelShape, gpu: Gpu) -> Findings:
    plugins = recipe.plugins
    if gpu.sm >= 100:
        for name in NOT_ON_SM_100:
            if getattr(plugins, name) != "disable":
                yield _plugin(name, plugins, f"disable on {gpu.name} (SM {gpu.sm})")
    for name, value, formats in (
        ("gemm_plugin", "fp8", ("fp8",)),
        ("gemm_plugin", "nvfp4", ("nvfp4",)),
        ("gemm_swiglu_plugin", "fp8", ("fp8",)),
        ("low_latency_gemm_plugin", "fp8", ("fp8",)),
        ("low_latency_gemm_swiglu_plugin", "fp8", ("fp8",)),
    ):
        if getattr(plugins, name) == value and recipe.format not in formats:
            yield _plugin(name, plugins, f"disable or auto with format {recipe.format}")
    if plugins.fp8_rowwise_gemm_plugin != "disable" and recipe.format != "fp8_rowwise":
        yield _plugin("fp8_rowwise_gemm_plugin", plugins, f"disable with format {recipe.format}")
    if plugins.reduce_fusion and (recipe.tp_size == 1 or model.architecture not in REDUCE_FUSION_FAMILIES):
        wanted = f"false, but with tp_size above 1 and for {one_of(REDUCE_FUSION_FAMILIES)}: trtllm-build turns it off"
        yield _plugin("reduce_fusion", plugins, wanted)
    if plugins.norm_quant_fusion and (
        plugins.reduce_fusion or recipe.format != "nvfp4" or model.architecture != "LlamaForCausalLM"
    ):
        wanted = "false, but for NVFP4 Llama without reduce_fusion: trtllm-build turns it off"
        yield _plugin("norm_quant_fusion", plugins, wanted)
    if plugins.user_buffer and not (
        plugins.reduce_fusion and recipe.format == "fp8" and model.architecture == "LlamaForCausalLM"
    ):
        yield _plugin("user_buffer", plugins, "false, but for FP8 Llama with reduce_fusion")
    if plugins.pp_reduce_scatter and model.architecture != "MixtralForCausalLM":
        yield _plugin("pp_reduce_scatter", plugins, f"false for {model.architecture}")
    if plugins.multiple_profiles and recipe.opt_num_tokens is not None:
        yield finding(
            "opt_num_tokens",
            recipe.opt_num_tokens,
            "nothing with plugins.multiple_profiles",
            "leave it out: each profile has its own",
        )
    yield from _serving_needs(recipe)


def _context_attention(recipe: TensorRtRecipe, gpu: Gpu) -> Findings:
    """Yield what trtllm-build would turn off without an error, with what the engine could not do then."""
    reason = why_not_paged(recipe.format, recipe.kv_format, gpu.sm)
    if reason is None:
        return
    if isinstance(recipe.speculation, EagleRecipe):
        yield finding("kv_format", recipe.kv_format, f"another with EAGLE, which needs it: {reason}", "take auto")
    elif recipe.plugins.use_paged_context_fmha:
        yield _plugin(
            "use_paged_context_fmha",
            recipe.plugins,
            f"false with kv_format {recipe.kv_format}: {reason}, and trtllm-build turns it off without an error",
            "set it to false, and is_chunked_prefill and is_block_reuse in the deployment, where no prompt may have "
            "more than max_num_tokens then; or take kv_format auto",
        )


def _serving_needs(recipe: TensorRtRecipe) -> Findings:
    """Yield a finding for each lack of what in-flight batching needs, which is how engines are served here."""
    if recipe.kv_cache_type != "paged":
        yield finding("kv_cache_type", recipe.kv_cache_type, "paged", "in-flight batching keeps the cache in blocks")
    for name in ("remove_input_padding", "context_fmha"):
        if not getattr(recipe.plugins, name):
            yield _plugin(name, recipe.plugins, "true, for in-flight batching")
    if recipe.plugins.gpt_attention_plugin == "disable":
        yield _plugin("gpt_attention_plugin", recipe.plugins, "a type, for in-flight batching")


def _limits(recipe: TensorRtRecipe) -> Findings:
    if recipe.is_gathering_context_logits and max_draft_len(recipe) > 0:
        yield finding(
            "is_gathering_context_logits",
            True,
            "false with speculation: trtllm-build refuses max_draft_len > 0 then",
            "leave out one of the two",
        )
    most = recipe.max_seq_len * recipe.max_batch_size
    if recipe.max_num_tokens > most:
        yield finding(
            "max_num_tokens",
            recipe.max_num_tokens,
            f"at most max_seq_len * max_batch_size ({most}), to which trtllm-build would lower it",
            "lower it",
        )
    if recipe.speculation is not None and recipe.max_num_tokens <= max_draft_len(recipe):
        yield finding(
            "max_num_tokens",
            recipe.max_num_tokens,
            f"more than the {max_draft_len(recipe)} drafts of one request",
            "raise it, or draft fewer",
        )
    if not recipe.plugins.use_paged_context_fmha and recipe.max_num_tokens < recipe.max_input_len:
        yield finding(
            "max_num_tokens",
            recipe.max_num_tokens,
            f"at least max_input_len ({recipe.max_input_len}) without plugins.use_paged_context_fmha",
            "raise it: without paged context attention a prompt is not chunked",
        )


def _plugin(name: str, plugins: Plugins, wanted: str, next_step: str = "change it") -> Finding:
    return finding(f"plugins.{name}", shown(getattr(plugins, name)), wanted, next_step)
