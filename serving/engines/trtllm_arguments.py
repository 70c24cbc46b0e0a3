# SPDX-License-Identifier: Apache-2.0
"""An engine's spec as the arguments of `tensorrt_llm`'s LLM: one table from our names to upstream's for each part."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from ensemble_configs.engine_specs import LoraSpec, PyTorchEngineSpec, TensorRtEngineSpec
from serving.engines.adapter_folder import engine_modules
from serving.engines.trtllm_upstream import Upstream

TrtLlmSpec = TensorRtEngineSpec | PyTorchEngineSpec


def _plain(value: object) -> object:
    """Paths as text and tuples as lists, which is what upstream's types say."""
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
    """One setting; None is left out, so that upstream's own default holds."""

    field: str  # of our spec
    argument: str  # of upstream
    convert: Callable[[object], object] = _plain


_LLM = (
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
_LLM_OF_TENSORRT = (
    Row("is_gathering_generation_logits", "gather_generation_logits"),
    Row("is_normalizing_log_probs", "normalize_log_probs"),
)
_LLM_OF_PYTORCH = (
    Row("ep_size", "moe_expert_parallel_size"),
    Row("moe_tp_size", "moe_tensor_parallel_size"),
    Row("cp_size", "context_parallel_size"),
    Row("is_attention_dp", "enable_attention_dp"),
    Row("sampler", "sampler_type", {"torch": "TorchSampler", "trtllm": "TRTLLMSampler"}.__getitem__),  # type: ignore[arg-type]
    Row("is_overlap_scheduler", "disable_overlap_scheduler", _not),
)
_KV_CACHE = (
    Row("free_gpu_memory_fraction", "free_gpu_memory_fraction"),
    Row("host_cache_bytes", "host_cache_size", _or_none),
    Row("is_block_reuse", "enable_block_reuse"),
    Row("is_partial_block_reuse", "enable_partial_reuse"),
    Row("max_attention_window", "max_attention_window"),
    Row("sink_tokens", "sink_token_length"),
)
_KV_CACHE_OF_PYTORCH = (Row("kv_cache_dtype", "dtype"), Row("kv_block_tokens", "tokens_per_block"))
_SCHEDULER = (
    Row("capacity_scheduler_policy", "capacity_scheduler_policy", _upper),
    Row("context_chunking_policy", "context_chunking_policy", _upper),
)
_MOE = (Row("moe_backend", "backend", _upper),)
_PERF_KNOBS = (
    Row("is_multi_block", "multi_block_mode"),
    Row("is_context_fmha_fp32_acc", "enable_context_fmha_fp32_acc"),
    Row("is_cuda_graph", "cuda_graph_mode"),
    Row("cuda_graph_cache_size", "cuda_graph_cache_size"),
)
_LORA = (
    Row("max_rank", "max_lora_rank"),
    Row("max_device_adapters", "max_loras"),
    Row("max_host_adapters", "max_cpu_loras"),
)
_CACHE_TRANSCEIVER = (
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
_SAMPLED_SPECULATION = {"mtp", "eagle3"}
_SPECULATION: dict[str, tuple[str, tuple[Row, ...]]] = {  # by method: upstream's class, and its arguments
    "lookahead": ("LookaheadDecodingConfig", LOOKAHEAD),
    "medusa": (
        "MedusaDecodingConfig",
        (_DRAFT_LEN, Row("num_heads", "num_medusa_heads"), Row("choices", "medusa_choices")),
    ),
    "eagle": (
        "EagleDecodingConfig",
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
        "NGramDecodingConfig",
        (
            _DRAFT_LEN,
            Row("max_matching_ngram_size", "max_matching_ngram_size"),
            Row("is_keeping_all", "is_keep_all"),
            Row("is_using_oldest", "is_use_oldest"),
            Row("is_public_pool", "is_public_pool"),
        ),
    ),
    "mtp": (
        "MTPDecodingConfig",
        (
            Row("num_nextn_predict_layers", "num_nextn_predict_layers"),
            Row("is_vanilla", "use_mtp_vanilla"),
            Row("is_relaxed_for_thinking", "use_relaxed_acceptance_for_thinking"),
            Row("relaxed_top_k", "relaxed_topk"),
            Row("relaxed_delta", "relaxed_delta"),
        ),
    ),
    "eagle3": ("EagleDecodingConfig", (_DRAFT_DIR, _DRAFT_LEN, Row("is_one_model", "eagle3_one_model"))),
    "draft_target": ("DraftTargetDecodingConfig", (_DRAFT_DIR, _DRAFT_LEN)),
}


def llm_arguments(spec: TrtLlmSpec, upstream: Upstream, *, kv_block_tokens: int) -> dict[str, object]:
    """What the LLM of this spec is made with; parts are upstream's own objects, which check themselves.

    Args:
        spec: every setting of it ends up in an argument.
        upstream: makes the parts.
        kv_block_tokens: of the engine, for `num_kv_blocks`, which upstream counts in tokens.
    """
    kv_cache = _arguments(spec, _KV_CACHE)
    if spec.num_kv_blocks is not None:
        kv_cache["max_tokens"] = spec.num_kv_blocks * kv_block_tokens
    arguments = _arguments(spec, _LLM)
    arguments |= {"skip_tokenizer_init": spec.tokenizer_dir is None, "return_perf_metrics": True}
    arguments["scheduler_config"] = upstream.make_config("SchedulerConfig", **_arguments(spec, _SCHEDULER))
    if isinstance(spec, PyTorchEngineSpec):
        kv_cache |= _arguments(spec, _KV_CACHE_OF_PYTORCH)
        arguments |= _arguments_of_pytorch(spec, upstream)
    else:
        arguments |= _arguments(spec, _LLM_OF_TENSORRT)
        arguments["iter_stats_max_iterations"] = 1000  # without it an engine tells no stats
        knobs = _arguments(spec.perf_knobs, _PERF_KNOBS)
        arguments["extended_runtime_perf_knob_config"] = upstream.make_config("ExtendedRuntimePerfKnobConfig", **knobs)
    arguments["kv_cache_config"] = upstream.make_config("KvCacheConfig", **kv_cache)
    if spec.lora is not None:
        arguments |= {"enable_lora": True, "lora_config": _lora_config(spec.lora, upstream)}
    if spec.cache_transceiver is not None:
        transceiver = _arguments(spec.cache_transceiver, _CACHE_TRANSCEIVER)
        arguments["cache_transceiver_config"] = upstream.make_config("CacheTransceiverConfig", **transceiver)
    if spec.speculation is not None:
        name, rows = _SPECULATION[spec.speculation.method]
        speculation = _arguments(spec.speculation, rows)
        if spec.speculation.method in _SAMPLED_SPECULATION:
            speculation["allow_advanced_sampling"] = True
        arguments["speculative_config"] = upstream.make_config(name, **speculation)
    return arguments


def _arguments(spec: BaseModel, rows: tuple[Row, ...]) -> dict[str, object]:
    values = {row.argument: row.convert(getattr(spec, row.field)) for row in rows}
    return {argument: value for argument, value in values.items() if value is not None}


def _arguments_of_pytorch(spec: PyTorchEngineSpec, upstream: Upstream) -> dict[str, object]:
    arguments = _arguments(spec, _LLM_OF_PYTORCH)
    arguments["enable_iter_perf_stats"] = True  # without it there are no stats
    arguments["moe_config"] = upstream.make_config("MoeConfig", **_arguments(spec, _MOE))
    if not spec.is_cuda_graph:
        arguments["cuda_graph_config"] = None
    return arguments


def _lora_config(spec: LoraSpec, upstream: Upstream) -> object:
    # No lora_dir: adapters come with the requests that name them. Upstream reads modules from a single folder only, and
    # of several refuses to start without modules (_torch/pyexecutor/_util.py, create_py_executor_instance).
    arguments = _arguments(spec, _LORA) | {"lora_target_modules": sorted(engine_modules(spec))}
    return upstream.make_config("LoraConfig", **arguments)
