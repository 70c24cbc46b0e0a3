# SPDX-License-Identifier: Apache-2.0
"""The arguments of vLLM's engine for a deployment: its EngineArgs, field by field."""

from typing import Any

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.vllm.vllm_drafting import drafting_arguments
from serving.engines.vllm.vllm_lora import lora_arguments

GUIDES = "xgrammar"
TOKENIZER_FILE = "tokenizer.json"


def has_guides(spec: VllmEngineSpec) -> bool:
    """Return whether grammars of characters can be followed: by a tokenizer beside the model."""
    return (spec.dir / TOKENIZER_FILE).is_file()


def engine_arguments(spec: VllmEngineSpec) -> dict[str, Any]:
    """Return the keywords of EngineArgs.

    Raises:
        SpecError: vLLM has no such engine.
    """
    arguments: dict[str, Any] = {
        "model": str(spec.dir),
        # Guides alone need vLLM's tokenizer; text is ours.
        "skip_tokenizer_init": not has_guides(spec),
        "dtype": spec.dtype,
        "max_model_len": spec.max_seq_len,
        "max_num_seqs": spec.max_num_seqs,
        "max_num_batched_tokens": spec.max_num_batched_tokens,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": spec.is_block_reuse,
        "scheduling_policy": "priority",  # who begins first, and whose blocks go last
        "kv_cache_dtype": spec.kv_cache_dtype,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
        "tensor_parallel_size": spec.tp_size,
        "pipeline_parallel_size": spec.pp_size,
        "enforce_eager": not spec.is_compiled,
        "generation_config": "vllm",  # a request without a value has the contract's default, not the checkpoint's
        # As on `openvino`, no white space between the parts of JSON: a small model would fill its max_tokens with it.
        "structured_outputs_config": {"backend": GUIDES, "disable_any_whitespace": True},
        "disable_log_stats": False,
        "use_tqdm_on_load": False,
    }
    if spec.world_size > 1:
        arguments["distributed_executor_backend"] = "mp"
    if spec.kv_block_tokens is not None:
        arguments["block_size"] = spec.kv_block_tokens
    if spec.num_kv_blocks is not None:
        arguments["num_gpu_blocks_override"] = spec.num_kv_blocks + 1  # one is never given to a request
    if spec.kv_cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = spec.kv_cache_bytes
    return arguments | lora_arguments(spec) | drafting_arguments(spec)
