# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's loader: it refuses an engine folder with the options of a runtime, changes them, or loads.

Written from upstream's source of the 1.x line (NVIDIA/TensorRT-LLM): `TrtLlmArgs` in tensorrt_llm/llmapi/llm_args.py,
`_TrtLLM._build_model` in llmapi/llm.py, and the constructors of `TrtGptModel` (cpp/tensorrt_llm/batch_manager/
trtGptModel.h) and `TrtGptModelInflightBatching` (trtGptModelInflightBatching.cpp). Nothing of the project is imported.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class LoadRefused(Exception):
    """An error that upstream raises; the text is what its message says."""


@dataclass(frozen=True)
class RuntimeOptions:
    """Options that the LLM is made with; defaults are upstream's."""

    installed: str = "1.2.1"
    sm: int = 90
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_beam_width: int | None = None
    enable_chunked_prefill: bool = False
    enable_block_reuse: bool = True
    sink_token_length: int = 0
    max_attention_window: tuple[int, ...] = ()
    has_lora: bool = False
    speculation: str | None = None  # of the decoding config: lookahead_decoding, medusa, eagle
    num_kv_blocks: int | None = None  # as the memory or `max_tokens` makes them


@dataclass
class Loaded:
    """An engine as it runs, and what upstream changed with no more than a warning."""

    max_seq_len: int
    max_input_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int
    is_block_reuse: bool
    has_lora: bool
    speculation: str | None
    warnings: list[str] = field(default_factory=list)


_MODES = {"draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8, "explicit_draft_tokens": 16, "eagle": 32}


def load(folder: Path, options: RuntimeOptions, *, built_for_sm: int | None = None) -> Loaded:
    """Load an engine.

    Args:
        folder: with config.json and a rank file for each rank.
        options: of the runtime.
        built_for_sm: of the GPU that built it, which TensorRT keeps in the engine file.

    Raises:
        LoadRefused: upstream raises at load, or dies at the first prompt.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    pretrained, build = config["pretrained_config"], config["build_config"]
    plugins = build["plugin_config"]
    _files(folder, config, options, built_for_sm)
    if not (plugins["gpt_attention_plugin"] and plugins["remove_input_padding"] and plugins["paged_kv_cache"]):
        raise LoadRefused("requires GPT attention/Mamba Conv 1d plugin with packed input and paged KV cache")
    is_paged = bool(plugins["use_paged_context_fmha"])
    loaded = _sizes(build, options)
    _context(loaded, pretrained, build, options, is_paged=is_paged)
    mode = build["speculative_decoding_mode"]
    built_to = next((name for name, number in _MODES.items() if number == mode), None)
    if built_to not in (options.speculation, "draft_tokens_external"):  # getDecodingMode()
        loaded.speculation = built_to
        loaded.warnings.append(f"Model is {built_to}, not {options.speculation}. Overwriting decoding mode.")
    windows = {min(size, loaded.max_seq_len) for size in options.max_attention_window}
    if len(windows) > 1 and mode not in (1, _MODES["draft_tokens_external"]):  # needsKVCacheRewind()
        raise LoadRefused("Rewinding KV cache blocks for variable SWA models isn't supported")
    if mode == _MODES["draft_tokens_external"] and not loaded.is_block_reuse:
        raise LoadRefused("KV cache block reuse must be enabled for speculative decoding target model")
    if options.has_lora and plugins["lora_plugin"] in (None, "disable"):
        loaded.has_lora = False  # NoOpPeftCacheManager
        loaded.warnings.append("adapters are ignored")
    _clamp_to_cache(loaded, plugins, options)
    return loaded


def _files(folder: Path, config: dict[str, Any], options: RuntimeOptions, built_for_sm: int | None) -> None:
    if config["version"] != options.installed:
        raise LoadRefused(f"engine of version {config['version']}, runtime {options.installed}")
    for rank in range(config["pretrained_config"]["mapping"]["world_size"]):
        if not (folder / f"rank{rank}.engine").is_file():
            raise LoadRefused(f"rank{rank}.engine is missing")
    if built_for_sm is not None and built_for_sm != options.sm:
        raise LoadRefused(f"expecting compute {options.sm} got compute {built_for_sm}")


def _sizes(build: dict[str, Any], options: RuntimeOptions) -> Loaded:
    """Return sizes as validate_build_config_with_runtime_params() does: clamped or overridden with a warning."""
    warnings = []
    sizes = {}
    for name in ("max_batch_size", "max_num_tokens"):
        asked = getattr(options, name)
        sizes[name] = build[name] if asked is None else min(asked, build[name])
        if asked is not None and asked > build[name]:
            warnings.append(f"{name} [{asked}] clamped to build_config.{name} [{build[name]}]")
    beams = build["max_beam_width"]
    if options.max_beam_width not in (None, beams):
        warnings.append(f"max_beam_width [{options.max_beam_width}] overridden by build_config [{beams}]")
    longest = build["max_seq_len"] - 1
    return Loaded(
        max_seq_len=build["max_seq_len"],
        max_input_len=longest if options.enable_chunked_prefill else min(longest, sizes["max_num_tokens"]),
        max_beam_width=beams,
        is_block_reuse=options.enable_block_reuse,
        has_lora=options.has_lora,
        speculation=options.speculation,
        warnings=warnings,
        **sizes,
    )


def _context(
    loaded: Loaded, pretrained: dict[str, Any], build: dict[str, Any], options: RuntimeOptions, *, is_paged: bool
) -> None:
    if options.enable_chunked_prefill and not is_paged:
        raise LoadRefused("Chunked context requires context FMHA, paged kv_cache and paged context FMHA all enabled")
    if loaded.is_block_reuse and not is_paged:
        loaded.is_block_reuse = False
        loaded.warnings.append("KV cache reuse disabled because model was not built with paged context FMHA support")
    if loaded.is_block_reuse and build["gather_context_logits"]:
        loaded.is_block_reuse = False
        loaded.warnings.append("KV cache reuse disabled because model was built to return context logits")
    # AttentionOp::enqueueContext, cpp/tensorrt_llm/common/attentionOp.cpp, at the first prompt.
    cache = pretrained["quantization"]["kv_cache_quant_algo"]
    if is_paged and cache == "INT8":
        raise LoadRefused("Paged Context FMHA doesn't work with int8 kv cache currently.")
    is_fp8_workflow = pretrained["quantization"]["quant_algo"] in ("FP8", "W4A8_AWQ", "NVFP4")
    if is_paged and cache == "FP8" and not is_fp8_workflow:
        raise LoadRefused("FMHA kernels are not found")
    if is_paged and options.sink_token_length > 0:
        raise LoadRefused("Cannot support StreamingLLM now when enabling paged KV context FMHA.")


def _clamp_to_cache(loaded: Loaded, plugins: dict[str, Any], options: RuntimeOptions) -> None:
    if options.num_kv_blocks is None:
        return
    window = window_of_one_sequence(
        loaded.max_input_len,
        loaded.max_seq_len,
        num_beams=loaded.max_beam_width,
        block_tokens=plugins["tokens_per_block"],
        num_blocks=options.num_kv_blocks,
    )
    if window < loaded.max_seq_len:
        loaded.warnings.append(f"maxSequenceLen is reduced to maxAttentionWindow: {window}")
        loaded.max_seq_len = window
        loaded.max_input_len = min(loaded.max_input_len, window - 1)


def window_of_one_sequence(
    max_input_len: int, max_seq_len: int, *, num_beams: int, block_tokens: int, num_blocks: int
) -> int:
    """Return `max_seq_len`, or what clampWindowSizesToFitAtLeastOneSequence() leaves of it."""
    output = max_seq_len - max_input_len
    if _blocks(max_input_len, output, num_beams, block_tokens) <= num_blocks:
        return max_seq_len
    output_blocks = _blocks(0, output, num_beams, block_tokens)
    if output_blocks > num_blocks:
        return num_blocks // num_beams * block_tokens
    return min(output + (num_blocks - output_blocks) * block_tokens, max_seq_len)


def window_upper_bound(max_seq_len: int, *, num_beams: int, block_tokens: int, num_blocks: int) -> int:
    """Return what the PyTorch backend leaves of `max_seq_len`; it asserts that there is room for anything at all.

    Source: `get_max_atten_window_upper_bound` of _torch/pyexecutor/resource_manager.py.
    """
    bound = num_blocks // num_beams * block_tokens
    if max_seq_len > bound and num_beams > 1:
        bound -= block_tokens
    assert bound > 0, "Impossible to fit in any sequence in kvCache"
    return min(max_seq_len, bound)


def _blocks(prompt: int, output: int, beams: int, block: int) -> int:
    """Return KVCacheManager::calculateMaxBlockRequirements(), the window being the whole sequence."""
    if beams == 1:
        return math.ceil((prompt + output) / block)
    context = prompt // block
    leftover = prompt - context * block
    return context + math.ceil((output + leftover) / block) * beams


def load_checkpoint(quant_algo: str | None, kv_cache_quant_algo: str | None, *, sm: int) -> None:
    """Load a checkpoint on the PyTorch backend, and prefill a first prompt with block reuse on, which is its default.

    Raises:
        LoadRefused: upstream has no attention kernel, or no such KV cache (`KvCacheConfig.dtype` of llm_args.py, and
            pull request 8862 of NVIDIA/TensorRT-LLM).
    """
    if kv_cache_quant_algo not in (None, "FP8", "NVFP4"):
        raise LoadRefused(f"KV cache quantization {kv_cache_quant_algo} is not supported by the PyTorch backend")
    if kv_cache_quant_algo == "NVFP4" and sm < 100:
        raise LoadRefused("NVFP4 KV cache needs SM 100")
    if quant_algo == "W4A16_AWQ" and kv_cache_quant_algo == "FP8":
        raise LoadRefused("FMHA kernels are not found")
