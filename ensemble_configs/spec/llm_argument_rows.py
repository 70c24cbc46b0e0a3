# SPDX-License-Identifier: Apache-2.0
"""The arguments of `tensorrt_llm`'s LLM by our fields: a table from our names to upstream's for each part."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


def _plain(value: object) -> object:
    """Return paths as text and tuples as lists, which is what upstream's types say."""
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _upper(value: object) -> object:
    return None if value is None else str(value).upper()


def _not(value: object) -> object:
    return not value


def _or_none(value: object) -> object:
    return value or None


class Row(NamedTuple):
    """A setting; None is left out, so that upstream's own default holds."""

    field: str  # of our spec
    argument: str  # of upstream
    convert: Callable[[object], object] = _plain


LLM = (
    Row("dir", "model"),
    Row("tokenizer_dir", "tokenizer"),
    Row("tp_size", "tensor_parallel_size"),
    Row("pp_size", "pipeline_parallel_size"),
    Row("gpus_per_node", "gpus_per_node"),
    Row("max_num_seqs", "max_batch_size"),
    Row("max_num_batched_tokens", "max_num_tokens"),
    Row("max_seq_len", "max_seq_len"),
    Row("max_seq_len", "max_input_len"),  # its own default is 1024
    Row("is_chunked_prefill", "enable_chunked_prefill"),
    Row("guided_decoding_backend", "guided_decoding_backend"),
    Row("max_beam_width", "max_beam_width"),
)
LLM_OF_TENSORRT = (
    Row("is_gathering_generation_logits", "gather_generation_logits"),
    Row("is_normalizing_log_probs", "normalize_log_probs"),
)
LLM_OF_PYTORCH = (
    Row("ep_size", "moe_expert_parallel_size"),
    Row("moe_tp_size", "moe_tensor_parallel_size"),
    Row("cp_size", "context_parallel_size"),
    Row("is_attention_dp", "enable_attention_dp"),
    Row("sampler", "sampler_type", {"torch": "TorchSampler", "trtllm": "TRTLLMSampler"}.__getitem__),  # type: ignore[arg-type]
    Row("is_overlap_scheduler", "disable_overlap_scheduler", _not),
)
KV_CACHE = (
    Row("free_gpu_memory_fraction", "free_gpu_memory_fraction"),
    Row("host_cache_bytes", "host_cache_size", _or_none),
    Row("is_block_reuse", "enable_block_reuse"),
    Row("is_partial_block_reuse", "enable_partial_reuse"),
    Row("max_attention_window", "max_attention_window"),
    Row("sink_tokens", "sink_token_length"),
)
KV_CACHE_OF_PYTORCH = (Row("kv_cache_dtype", "dtype"), Row("kv_block_tokens", "tokens_per_block"))
SCHEDULER = (
    Row("capacity_scheduler_policy", "capacity_scheduler_policy", _upper),
    Row("context_chunking_policy", "context_chunking_policy", _upper),
)
MOE = (Row("moe_backend", "backend", _upper),)
PERF_KNOBS = (
    Row("is_multi_block", "multi_block_mode"),
    Row("is_context_fmha_fp32_acc", "enable_context_fmha_fp32_acc"),
    Row("is_cuda_graph", "cuda_graph_mode"),
    Row("cuda_graph_cache_size", "cuda_graph_cache_size"),
)
LORA = (
    Row("max_rank", "max_lora_rank"),
    Row("max_device_adapters", "max_loras"),
    Row("max_host_adapters", "max_cpu_loras"),
)
CACHE_TRANSCEIVER = (
    Row("backend", "backend", _upper),
    Row("max_buffer_tokens", "max_tokens_in_buffer"),
    Row("transfer_timeout_ms", "kv_transfer_timeout_ms"),
)
_DRAFT_DIR = Row("dir", "speculative_model")
_DRAFT_LEN = Row("max_draft_len", "max_draft_len")
LOOKAHEAD = (
    Row("window_size", "max_window_size"),
    Row("ngram_size", "max_ngram_size"),
    Row("verification_set_size", "max_verification_set_size"),
)
# What a request samples with counts beside these drafts only if the engine is told so, in 1.2; later it always does.
SAMPLED_SPECULATION = frozenset({"mtp", "eagle3"})
# By method: upstream's classes, of which the first that a version has is taken, and the arguments.
SPECULATION: dict[str, tuple[tuple[str, ...], tuple[Row, ...]]] = {
    "lookahead": (("LookaheadDecodingConfig",), LOOKAHEAD),
    "medusa": (
        ("MedusaDecodingConfig",),
        (_DRAFT_LEN, Row("num_heads", "num_medusa_heads"), Row("choices", "medusa_choices")),
    ),
    "eagle": (
        ("EagleDecodingConfig",),
        (
            _DRAFT_LEN,
            Row("num_layers", "num_eagle_layers"),
            Row("choices", "eagle_choices"),
            Row("is_greedy_sampling", "greedy_sampling"),
            Row("posterior_threshold", "posterior_threshold"),
            Row("is_dynamic_tree", "use_dynamic_tree"),
            Row("dynamic_tree_max_top_k", "dynamic_tree_max_topK"),
        ),
    ),
    "ngram": (
        ("NGramDecodingConfig",),
        (
            _DRAFT_LEN,
            Row("max_matching_ngram_size", "max_matching_ngram_size"),
            Row("is_keeping_all", "is_keep_all"),
            Row("is_using_oldest", "is_use_oldest"),
            Row("is_public_pool", "is_public_pool"),
        ),
    ),
    "mtp": (
        ("MTPDecodingConfig",),
        (
            Row("num_nextn_predict_layers", "num_nextn_predict_layers"),
            Row("is_vanilla", "use_mtp_vanilla"),
            Row("is_relaxed_for_thinking", "use_relaxed_acceptance_for_thinking"),
            Row("relaxed_top_k", "relaxed_topk"),
            Row("relaxed_delta", "relaxed_delta"),
        ),
    ),
    "eagle3": (
        ("Eagle3DecodingConfig", "EagleDecodingConfig"),
        (_DRAFT_DIR, _DRAFT_LEN, Row("is_one_model", "eagle3_one_model")),
    ),
    "draft_target": (("DraftTargetDecodingConfig",), (_DRAFT_DIR, _DRAFT_LEN)),
}
