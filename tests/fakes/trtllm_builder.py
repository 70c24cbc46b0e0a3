# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's builder, told by the config.json that it writes beside an engine.

Written from upstream's source, versions of 2025 up to 1.2 (NVIDIA/TensorRT-LLM: tensorrt_llm/builder.py, `_common.py`,
`plugin/plugin.py`, `commands/build.py`): it changes flags with a warning and ends with 0. Each behaviour has a name in
`BEHAVIOURS` with its source, and can be switched off by that name. Nothing of the project is imported.
"""

import argparse
import json
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

VERSION = "1.2.1"
_FACTS = json.loads(
    (Path(__file__).parent / "trtllm_facts" / "1.2.1" / "build_config_fields.json").read_text(encoding="utf-8")
)
_BUILD = "build() in tensorrt_llm/builder.py"
_SEQ_LEN = "_init_max_seq_len() in tensorrt_llm/builder.py"
_NUM_TOKENS = "check_max_num_tokens() in tensorrt_llm/_common.py"

BEHAVIOURS = {
    "paged_state_off": "BuildConfig.update_kv_cache_type() in tensorrt_llm/builder.py",
    "max_input_len_clipped": _SEQ_LEN,
    "max_num_tokens_lowered": _NUM_TOKENS,
    "max_num_tokens_holds_a_block": _NUM_TOKENS,
    "opt_num_tokens_chosen": _NUM_TOKENS,
    "opt_num_tokens_lowered": _NUM_TOKENS,
    "reduce_fusion_off": _BUILD,
    "user_buffer_off": _BUILD,
    "norm_quant_fusion_off": _BUILD,
    "drafts_of_checkpoint": _BUILD,
    "drafts_lengthen_max_seq_len": _BUILD,
    "drafts_raise_max_num_tokens": _BUILD,
    "no_context_fmha_no_paged": _BUILD,
    "fp8_context_off_beside_other_weights": _BUILD,
    "fp8_cache_not_paged_beside_other_weights": _BUILD,
    "fp8_context_off_before_sm_89": _BUILD,
    "fp8_cache_not_paged_before_sm_89": _BUILD,
    "fp8_context_off_without_fp8_cache": _BUILD,
    "fp8_context_on_with_fp8_cache": _BUILD,
    "int8_cache_not_paged": _BUILD,
    "eagle_turns_paged_on": _BUILD,
    "nccl_by_world_size": _BUILD,
    "plugins_of_quantization": _BUILD,
    "nvfp4_gemm_plugin": _BUILD,
}

# SpeculativeDecodingMode.from_arguments() in tensorrt_llm/models/modeling_utils.py: a flag, written as its number.
_MODES = {
    None: 1, "draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8, "explicit_draft_tokens": 16, "eagle": 32,
}  # fmt: skip
_FUSED_REDUCE = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")
_FP8_WORKFLOW = ("FP8", "W4A8_AWQ", "NVFP4")
_NOT_AN_ENGINES = ("dry_run", "visualize_network")  # EngineConfig.to_dict()


class BuildRefused(Exception):
    """An error that upstream raises; the message begins with its kind."""


def engine_config(
    args: argparse.Namespace, pretrained: dict[str, Any], *, sm: int, off: Container[str] = ()
) -> dict[str, Any]:
    """Return config.json of the engine that `trtllm-build` makes of a checkpoint.

    Args:
        args: the command line, as its parser reads it.
        pretrained: the checkpoint's config.json.
        sm: compute capability of the GPU that builds.
        off: behaviours that are left out.

    Raises:
        BuildRefused: upstream raises.
    """

    def is_on(name: str) -> bool:
        assert name in BEHAVIOURS, name
        return name not in off

    _refuse_arguments(args, pretrained, sm)
    plugins = _plugins(args, pretrained)
    build = {name: fact.get("default") for name, fact in _FACTS["BuildConfig"].items() if name not in _NOT_AN_ENGINES}
    build |= {name: getattr(args, name) for name in build if hasattr(args, name) and name != "kv_cache_type"}
    build["kv_cache_type"] = str(getattr(args, "kv_cache_type", "paged")).upper()
    build["speculative_decoding_mode"] = _MODES[args.speculative_decoding_mode]
    build["lora_config"] = _lora(args)
    plugins["paged_kv_cache"] = build["kv_cache_type"] == "PAGED"
    if is_on("paged_state_off"):
        plugins["paged_state"] = False
    _lengths(build, plugins, pretrained, is_on)
    _fusions(plugins, pretrained, is_on)
    _drafts(build, pretrained, is_on)
    _context_attention(plugins, pretrained["quantization"], sm, is_on)
    _refuse_on_blackwell(pretrained["quantization"], sm)
    _quantization_plugins(plugins, pretrained, is_on)
    if build["speculative_decoding_mode"] == _MODES["eagle"] and is_on("eagle_turns_paged_on"):
        plugins["use_paged_context_fmha"] = True
    engine = dict(pretrained)
    if args.logits_dtype is not None:
        engine["logits_dtype"] = args.logits_dtype
    return {"version": VERSION, "pretrained_config": engine, "build_config": build | {"plugin_config": plugins}}


def _refuse_arguments(args: argparse.Namespace, pretrained: dict[str, Any], sm: int) -> None:
    """Check arguments as main() and build_model() of commands/build.py, and PluginConfig.validate() do."""
    if args.gather_context_logits and args.max_draft_len > 0:
        raise BuildRefused("RuntimeError: Gather context logits is not support with draft len > 0.")
    if args.multiple_profiles == "enable" and args.opt_num_tokens is not None:
        raise BuildRefused("RuntimeError: multiple_profiles is enabled, while opt_num_tokens is set.")
    architecture = pretrained["architecture"]
    if args.streamingllm == "enable":
        raise BuildRefused("AssertionError: StreamingLLM is not supported")
    if args.pp_reduce_scatter == "enable" and architecture != "MixtralForCausalLM":
        raise BuildRefused("AssertionError: PP reduce scatter is only supported in the mixtral model.")
    if sm >= 100:
        for name in _FACTS["sm100_unsupported"]:
            if getattr(args, name, None) not in (None, "disable"):
                raise BuildRefused(f"NotImplementedError: {name} is not supported on SM {sm}")


def _plugins(args: argparse.Namespace, pretrained: dict[str, Any]) -> dict[str, Any]:
    """Return the plugins as PluginConfig.from_arguments() makes them.

    Words become switches, "disable" of a plugin none; its dtype is the model's.
    """
    plugins = {name: fact.get("default") for name, fact in _FACTS["PluginConfig"].items()}
    for name, default in list(plugins.items()):
        value = getattr(args, name, None)
        if value in ("enable", "disable") and isinstance(default, bool):
            plugins[name] = value == "enable"
        elif value is not None:
            plugins[name] = None if value == "disable" else value
    return plugins | {"dtype": pretrained["dtype"]}


def _lora(args: argparse.Namespace) -> dict[str, Any]:
    """Return the LoRA settings as build_model() of commands/build.py makes them: only with the plugin."""
    config: dict[str, Any] = {
        "lora_dir": [], "lora_ckpt_source": "hf", "max_lora_rank": 64, "lora_target_modules": [],
        "trtllm_modules_to_hf_modules": {},
    }  # fmt: skip
    if args.lora_plugin in (None, "disable"):
        return config
    return config | {"max_lora_rank": args.max_lora_rank, "lora_target_modules": args.lora_target_modules or []}


def _lengths(
    build: dict[str, Any], plugins: dict[str, Any], pretrained: dict[str, Any], is_on: Callable[[str], bool]
) -> None:
    if build["max_seq_len"] is None:
        build["max_seq_len"] = pretrained["max_position_embeddings"]
    if build["max_input_len"] > build["max_seq_len"] and is_on("max_input_len_clipped"):
        build["max_input_len"] = build["max_seq_len"]
    most = build["max_seq_len"] * build["max_batch_size"]
    if build["opt_num_tokens"] is None and not plugins["multiple_profiles"] and is_on("opt_num_tokens_chosen"):
        build["opt_num_tokens"] = min(build["max_batch_size"] * build["max_beam_width"], build["max_num_tokens"])
    if build["max_num_tokens"] > most and is_on("max_num_tokens_lowered"):
        build["max_num_tokens"] = most
    if build["max_num_tokens"] < plugins["tokens_per_block"] and is_on("max_num_tokens_holds_a_block"):
        build["max_num_tokens"] = plugins["tokens_per_block"]
    opt = build["opt_num_tokens"]
    if opt is not None and opt > build["max_num_tokens"] and is_on("opt_num_tokens_lowered"):
        build["opt_num_tokens"] = build["max_num_tokens"]


def _fusions(plugins: dict[str, Any], pretrained: dict[str, Any], is_on: Callable[[str], bool]) -> None:
    architecture, is_single = pretrained["architecture"], pretrained["mapping"]["tp_size"] == 1
    if is_on("reduce_fusion_off") and (is_single or architecture not in _FUSED_REDUCE):
        plugins["reduce_fusion"] = False
    if is_on("user_buffer_off") and not plugins["reduce_fusion"]:
        plugins["user_buffer"] = False
    is_nvfp4_llama = architecture == "LlamaForCausalLM" and pretrained["quantization"]["quant_algo"] == "NVFP4"
    if is_on("norm_quant_fusion_off") and (plugins["reduce_fusion"] or not is_nvfp4_llama):
        plugins["norm_quant_fusion"] = False


def _drafts(build: dict[str, Any], pretrained: dict[str, Any], is_on: Callable[[str], bool]) -> None:
    if build["max_draft_len"] == 0 and is_on("drafts_of_checkpoint"):
        build["max_draft_len"] = pretrained.get("max_draft_len", 0)
    if build["speculative_decoding_mode"] == _MODES[None]:
        return
    if is_on("drafts_lengthen_max_seq_len"):
        build["max_seq_len"] += build["max_draft_len"]
        if build["speculative_decoding_mode"] == _MODES["eagle"]:
            build["max_seq_len"] += pretrained.get("num_eagle_layers", 1)
    num_tokens = build["max_batch_size"] * (build["max_draft_len"] + 1)
    if build["max_num_tokens"] < num_tokens and is_on("drafts_raise_max_num_tokens"):
        build["max_num_tokens"] = num_tokens


def _context_attention(
    plugins: dict[str, Any], quantization: dict[str, Any], sm: int, is_on: Callable[[str], bool]
) -> None:
    fp8, paged, cache = "use_fp8_context_fmha", "use_paged_context_fmha", quantization["kv_cache_quant_algo"]
    if not plugins["context_fmha"]:
        if is_on("no_context_fmha_no_paged"):
            plugins |= {fp8: False, paged: False}
    elif quantization["quant_algo"] not in _FP8_WORKFLOW:
        if is_on("fp8_context_off_beside_other_weights"):
            plugins[fp8] = False
        if cache == "FP8" and is_on("fp8_cache_not_paged_beside_other_weights"):
            plugins[paged] = False
    elif sm < 89:
        if is_on("fp8_context_off_before_sm_89"):
            plugins[fp8] = False
        if cache == "FP8" and is_on("fp8_cache_not_paged_before_sm_89"):
            plugins[paged] = False
    elif plugins[paged]:
        if cache != "FP8" and is_on("fp8_context_off_without_fp8_cache"):
            plugins[fp8] = False
        elif cache == "FP8" and is_on("fp8_context_on_with_fp8_cache"):
            plugins[fp8] = True
    if cache == "INT8" and is_on("int8_cache_not_paged"):
        plugins[paged] = False


def _refuse_on_blackwell(quantization: dict[str, Any], sm: int) -> None:
    algo = str(quantization["quant_algo"])
    if not 100 <= sm < 120:
        return
    if algo.startswith(("W8A16", "W4A16", "W4A8")) or quantization["kv_cache_quant_algo"] == "INT8":
        raise BuildRefused("RuntimeError: INT8/INT4 quantization is not supported on SM>=100.")
    if algo.startswith("W8A8_SQ"):
        raise BuildRefused("RuntimeError: SmoothQuant is not supported on SM>=100.")
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        raise BuildRefused("RuntimeError: Per-channel or per-token scaling is not supported on SM>=100.")


def _quantization_plugins(plugins: dict[str, Any], pretrained: dict[str, Any], is_on: Callable[[str], bool]) -> None:
    algo, dtype = str(pretrained["quantization"]["quant_algo"]), pretrained["dtype"]
    if algo == "NVFP4" and plugins["gemm_plugin"] == "auto" and is_on("nvfp4_gemm_plugin"):
        plugins["gemm_plugin"] = "nvfp4"
    if is_on("plugins_of_quantization"):
        if algo in ("W8A16", "W4A16"):
            plugins["weight_only_quant_matmul_plugin"] = dtype
        elif algo in ("W4A16_AWQ", "W4A16_GPTQ", "W4A8_AWQ"):
            plugins["weight_only_groupwise_quant_matmul_plugin"] = dtype
        elif algo.startswith("W8A8_SQ"):
            names = ("smooth_quant_gemm_plugin", "rmsnorm_quantization_plugin", "layernorm_quantization_plugin")
            plugins |= dict.fromkeys(names, dtype) | {"quantize_per_token_plugin": True, "quantize_tensor_plugin": True}
        elif algo == "FP8_PER_CHANNEL_PER_TOKEN":
            names = ("fp8_rowwise_gemm_plugin", "rmsnorm_quantization_plugin", "layernorm_quantization_plugin")
            plugins |= dict.fromkeys(names, dtype) | {"quantize_per_token_plugin": True, "quantize_tensor_plugin": True}
    if is_on("nccl_by_world_size"):
        plugins["nccl_plugin"] = dtype if pretrained["mapping"]["world_size"] > 1 else None


def main(args: argparse.Namespace, pretrained: dict[str, Any], *, sm: int, off: Container[str]) -> dict[str, Any]:
    """Return the config for a program, which ends with upstream's error."""
    try:
        return engine_config(args, pretrained, sm=sm, off=off)
    except BuildRefused as exc:
        sys.exit(str(exc))
