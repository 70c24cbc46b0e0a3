# SPDX-License-Identifier: Apache-2.0
"""Paged context attention of TensorRT-LLM: which types of the KV cache allow it, and what an engine without it lacks.

A prompt can be prefilled in chunks, or go on from cached blocks, only where its attention reads the KV cache in pages
(`use_paged_context_fmha`). `trtllm-build` turns that off without an error where it has no kernel for it; older
versions refused the build. Every row has its source in `docs/trtllm_behaviour.md`, E1.
"""

# Formats of weights beside which upstream attends to a prompt in FP8, which an FP8 cache in pages needs.
FP8_ATTENTION_FORMATS = frozenset({"fp8", "w4a8_awq", "nvfp4"})
FIRST_FP8_ATTENTION_SM = 89
# The PyTorch backend has no kernel for attention in 16 bits over an FP8 cache in pages beside these weights.
NO_FP8_CACHE_ON_PYTORCH = frozenset({"int4_awq"})


def why_not_paged(weight_format: str, kv_format: str, sm: int) -> str | None:
    """Return the rule by which an engine gets no paged context attention, or None where it gets it.

    Source: `build` in tensorrt_llm/builder.py, versions of 2025 and 1.2.

    Args:
        weight_format: a name of `build_engines.checkpoint.weight_formats`.
        kv_format: a name of `build_engines.checkpoint.weight_formats`, of the KV cache; `auto` is 16 bits.
        sm: compute capability of the GPU that builds, 90 for 9.0.
    """
    if kv_format == "int8":
        return "paged context attention does not work with an INT8 KV cache"
    if kv_format != "fp8":
        return None
    if weight_format not in FP8_ATTENTION_FORMATS:
        formats = ", ".join(sorted(FP8_ATTENTION_FORMATS))
        return f"paged context attention with an FP8 KV cache needs weights in {formats}"
    if sm < FIRST_FP8_ATTENTION_SM:
        return f"paged context attention with an FP8 KV cache needs SM {FIRST_FP8_ATTENTION_SM} or later"
    return None


def why_not_on_pytorch(weight_format: str, kv_format: str) -> str | None:
    """Return the rule by which the PyTorch backend cannot serve a KV type beside these weights, or None.

    Source: pull request 8862 of NVIDIA/TensorRT-LLM, closed unmerged: "FMHA kernels are not found" in prefill.
    """
    if weight_format in NO_FP8_CACHE_ON_PYTORCH and kv_format == "fp8":
        return f"the PyTorch backend has no attention kernel for an FP8 KV cache beside {weight_format} weights"
    return None


def longest_prompt(max_seq_len: int, max_num_tokens: int, *, is_chunked: bool) -> int:
    """Return how many tokens the longest prompt may have, for an engine with packed input and context FMHA.

    Without chunks a prompt is prefilled in one step, so a step's tokens bound it.

    Source: `TrtGptModel`'s constructor, cpp/tensorrt_llm/batch_manager/trtGptModel.h.
    """
    return max_seq_len - 1 if is_chunked else min(max_seq_len - 1, max_num_tokens)
