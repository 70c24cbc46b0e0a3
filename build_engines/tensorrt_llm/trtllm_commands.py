# SPDX-License-Identifier: Apache-2.0
"""The command lines of upstream's tools, every flag of them from the typed recipe.

A recipe becomes an engine by one of two ways, `route` says which: `quantize.py` loads the whole model on the GPUs and
calibrates it; `convert_checkpoint.py` only rewrites weights (and calibrates for SmoothQuant and INT8 KV itself). Then
`trtllm-build` compiles. Names of files are relative to the work folder. A test compares every flag with the facts.
"""

from collections.abc import Iterator
from pathlib import Path

from build_engines.recipes.build_route import max_draft_len, needs_calibration
from build_engines.recipes.recipe import PyTorchRecipe, TensorRtRecipe
from build_engines.recipes.recipe_parts import (
    Calibration,
    EagleRecipe,
    ExplicitDraftRecipe,
    ExternalDraftRecipe,
    LookaheadRecipe,
    MedusaRecipe,
    Plugins,
    SmoothQuantSpec,
)
from build_engines.recipes.trtllm_versions import (
    HF_PTQ_FORMATS,
    LLAMA_SCRIPT,
    QUANTIZE_FORMATS,
    QUANTIZE_SCRIPT,
)
from build_engines.stages.build_job import SOURCE
from build_engines.stages.work_folder import partial_of

# Names in the work folder; the stages' outputs are named like the stages.
CALIBRATION, CHECKPOINT, ENGINE = "calibration", "checkpoint", "engine"
MEDUSA, GPTQ_FILE = "medusa", "gptq.safetensors"
TIMING_CACHE = "model.cache"

_CONVERTED = {"int8_weight_only": "int8", "int4_weight_only": "int4"}
_SHARDING_DIMS = {"vocab": 0, "hidden": 1}
SPECULATION_MODES = {
    MedusaRecipe: "medusa",
    LookaheadRecipe: "lookahead_decoding",
    ExternalDraftRecipe: "draft_tokens_external",
    EagleRecipe: "eagle",
    ExplicitDraftRecipe: "explicit_draft_tokens",
}
# They say how the machine is used or what is printed, and do not change what is made.
MACHINE_FLAGS = frozenset({"--workers", "--log_level", "--device_map", "--output_timing_cache"})


def quantize_argv(recipe: TensorRtRecipe, examples: Path) -> list[str]:
    """Return the command of `quantize.py`, which makes TensorRT-LLM's checkpoint and calibrates it where needed."""
    return [
        "python3",
        str(examples / QUANTIZE_SCRIPT),
        *_flags(
            model_dir=SOURCE,
            output_dir=partial_of(CHECKPOINT),
            device="cuda",
            device_map=recipe.builder.calibration_device_map,
            dtype=dtype_of(recipe),
            qformat=QUANTIZE_FORMATS[recipe.format],
            kv_cache_dtype=recipe.kv_format if recipe.kv_format in ("int8", "fp8") else None,
            awq_block_size=recipe.group_size if "awq" in recipe.format else None,
            tp_size=recipe.tp_size,
            pp_size=recipe.pp_size,
            cp_size=recipe.cp_size,
            quantize_lm_head=recipe.is_head_quantized,
        ),
        *_calibration_flags(recipe.calibration),
        *_batch_flags(recipe.calibration),
        *_medusa_flags(recipe),
    ]


def convert_argv(recipe: TensorRtRecipe, examples: Path, num_workers: int) -> list[str]:
    """Return the command of `convert_checkpoint.py` of the Llama family: TensorRT-LLM's checkpoint, rank by rank."""
    # A checkpoint that is GPTQ itself says so in its config.json, and the script looks there.
    is_gptq_file = recipe.format == "int4_gptq" and recipe.gptq_file is not None
    precision = "int4_gptq" if is_gptq_file else _CONVERTED.get(recipe.format)
    return [
        "python3",
        str(examples / LLAMA_SCRIPT),
        *_flags(
            model_dir=SOURCE,
            output_dir=partial_of(CHECKPOINT),
            dtype=dtype_of(recipe),
            tp_size=recipe.tp_size,
            pp_size=recipe.pp_size,
            cp_size=recipe.cp_size,
            moe_tp_size=recipe.tp_size // recipe.ep_size,
            moe_ep_size=recipe.ep_size,
            use_weight_only=precision is not None,
            weight_only_precision=precision,
            per_group=is_gptq_file,
            quant_ckpt_path=GPTQ_FILE if is_gptq_file else None,
            group_size=recipe.group_size if is_gptq_file else None,
            use_fp8_rowwise=recipe.format == "fp8_rowwise",
            int8_kv_cache=recipe.kv_format == "int8",
            fp8_kv_cache=recipe.kv_format == "fp8",
            use_parallel_embedding=recipe.embedding != "none",
            embedding_sharding_dim=_SHARDING_DIMS.get(recipe.embedding),
            workers=num_workers,
            log_level=recipe.builder.log_level,
        ),
        *_smoothquant_flags(recipe),
        *(_calibration_flags(recipe.calibration) if needs_calibration(recipe, "LlamaForCausalLM") else ()),
    ]


def trtllm_build_argv(recipe: TensorRtRecipe, num_workers: int) -> list[str]:
    """Return the command of `trtllm-build`: rank0.engine, rank1.engine, ... and their config.json."""
    return [
        "trtllm-build",
        *_flags(
            checkpoint_dir=SOURCE if recipe.checkpoint_form == "tensorrt_llm" else CHECKPOINT,
            output_dir=partial_of(ENGINE),
            max_batch_size=recipe.max_batch_size,
            max_input_len=recipe.max_input_len,
            max_seq_len=recipe.max_seq_len,
            max_num_tokens=recipe.max_num_tokens,
            opt_num_tokens=recipe.opt_num_tokens,
            max_beam_width=recipe.max_beam_width,
            kv_cache_type=recipe.kv_cache_type,
            tokens_per_block=recipe.kv_block_tokens,
            logits_dtype=recipe.logits_dtype,
            gather_context_logits=recipe.is_gathering_context_logits,
            gather_generation_logits=recipe.is_gathering_generation_logits,
            weight_streaming=recipe.is_weight_streaming,
            output_timing_cache=TIMING_CACHE,
            workers=num_workers,
            log_level=recipe.builder.log_level,
        ),
        *_flags(**{name: _plugin(value) for name, value in _plugins(recipe.plugins)}),
        *_speculation_flags(recipe),
        *_lora_flags(recipe),
        *_flags(**recipe.extra_build_args),
    ]


def hf_ptq_argv(recipe: PyTorchRecipe, examples: Path) -> list[str]:
    """Return the command of ModelOpt's `hf_ptq.py`, for quantized Hugging Face weights and hf_quant_config.json."""
    calibration = recipe.calibration
    return [
        "python3",
        str(examples / "llm_ptq" / "hf_ptq.py"),
        *_flags(
            pyt_ckpt_path=SOURCE,
            export_path=partial_of(CHECKPOINT),
            qformat=HF_PTQ_FORMATS[recipe.format],
            kv_cache_qformat="none" if recipe.kv_format in ("auto", "fp16") else recipe.kv_format,
            awq_block_size=recipe.group_size if "awq" in recipe.format else None,
            dataset=calibration.dataset if calibration else None,
            calib_size=calibration.num_samples if calibration else None,
            batch_size=calibration.batch_size if calibration else None,
        ),
    ]


def dtype_of(recipe: TensorRtRecipe) -> str:
    """Return the type of what is not quantized; formats fp16 and bf16 say it themselves."""
    return {"fp16": "float16", "bf16": "bfloat16"}.get(recipe.format, recipe.dtype)


def without_machine_flags(argv: list[str]) -> list[str]:
    """Return the part of a command that decides what it makes.

    Workers and log level are left out, and the script's name is without its folder.
    """
    kept: list[str] = []
    pairs = iter(argv)
    for word in pairs:
        if word in MACHINE_FLAGS:
            next(pairs)
        else:
            kept.append(Path(word).name if word.endswith(".py") else word)
    return kept


def _plugins(plugins: Plugins) -> Iterator[tuple[str, object]]:
    for name in Plugins.model_fields:
        yield name, getattr(plugins, name)


def _plugin(value: object) -> object:
    """Return the value of a plugin flag; switches are words."""
    return {True: "enable", False: "disable"}[value] if isinstance(value, bool) else value


def _calibration_flags(calibration: Calibration | None) -> list[str]:
    if calibration is None:
        return []
    return _flags(
        calib_dataset=calibration.dataset or CALIBRATION,
        calib_size=calibration.num_samples,
        calib_max_seq_length=calibration.max_tokens,
    )


def _batch_flags(calibration: Calibration | None) -> list[str]:
    """Return the flags that only quantize.py takes; the tokenizer must not cut a sample shorter than asked for."""
    if calibration is None:
        return []
    return _flags(
        batch_size=calibration.batch_size,
        seed=calibration.seed,
        tokenizer_max_seq_length=max(2048, calibration.max_tokens),
    )


def _medusa_flags(recipe: TensorRtRecipe) -> list[str]:
    medusa = recipe.speculation
    if not isinstance(medusa, MedusaRecipe):
        return []
    return _flags(
        medusa_model_dir=MEDUSA,
        num_medusa_heads=medusa.num_heads,
        num_medusa_layers=medusa.num_layers,
        max_draft_len=medusa.max_draft_len,
        medusa_hidden_act=medusa.hidden_act,
        quant_medusa_head=medusa.is_head_quantized,
    )


def _smoothquant_flags(recipe: TensorRtRecipe) -> list[str]:
    if recipe.format != "smoothquant":
        return []
    smoothquant = recipe.smoothquant or SmoothQuantSpec()
    return _flags(
        smoothquant=smoothquant.alpha, per_channel=smoothquant.is_per_channel, per_token=smoothquant.is_per_token
    )


def _speculation_flags(recipe: TensorRtRecipe) -> list[str]:
    for kind, mode in SPECULATION_MODES.items():
        if isinstance(recipe.speculation, kind):
            return _flags(speculative_decoding_mode=mode, max_draft_len=max_draft_len(recipe))
    return []


def _lora_flags(recipe: TensorRtRecipe) -> list[str]:
    lora = recipe.lora
    if lora is None:
        return []
    return [
        *_flags(lora_plugin=lora.plugin, max_lora_rank=lora.max_rank),
        "--lora_target_modules",
        *lora.target_modules,
    ]


def _flags(**values: object) -> list[str]:
    """Return ``--name value`` for each option; True is the name alone, False and None are nothing."""
    argv: list[str] = []
    for name, value in values.items():
        if value is True:
            argv.append(f"--{name}")
        elif value is not None and value is not False:
            argv += [f"--{name}", str(value)]
    return argv
