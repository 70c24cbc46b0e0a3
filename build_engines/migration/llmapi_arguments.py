# SPDX-License-Identifier: Apache-2.0
"""The arguments of `tensorrt_llm`'s LLM that a `model.yaml` may hold, with their fate; a nested one by its dotted path.

The names are those of TorchLlmArgs in 1.2.1 and of the `pytorch_backend_config` that 0.19 and 0.20 had.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Argument(NamedTuple):
    """An argument that is a field of the deployment's engine; `default` is upstream's where the field's differs."""

    field: str
    convert: Callable[[object], object] = lambda value: value
    default: object = None


def _lower(value: object) -> object:
    return str(value).lower()


def _not(value: object) -> object:
    return not value


_SAMPLERS = {"trtllmsampler": "trtllm", "torchsampler": "torch", "auto": "torch"}

CARRIED: Mapping[str, Argument] = {
    "tensor_parallel_size": Argument("tp_size"),
    "pipeline_parallel_size": Argument("pp_size"),
    "context_parallel_size": Argument("cp_size"),
    "moe_expert_parallel_size": Argument("ep_size"),
    "moe_tensor_parallel_size": Argument("moe_tp_size"),
    "gpus_per_node": Argument("gpus_per_node"),
    "enable_attention_dp": Argument("is_attention_dp"),
    "enable_chunked_prefill": Argument("is_chunked_prefill", default=False),
    "max_batch_size": Argument("max_num_seqs", default=2048),
    "max_num_tokens": Argument("max_num_batched_tokens", default=8192),
    "max_seq_len": Argument("max_seq_len"),
    "max_beam_width": Argument("max_beam_width"),
    "disable_overlap_scheduler": Argument("is_overlap_scheduler", _not),
    "sampler_type": Argument("sampler", lambda value: _SAMPLERS.get(str(value).lower(), value)),
    "moe_config.backend": Argument("moe_backend", _lower),
    "kv_cache_config.enable_block_reuse": Argument("is_block_reuse"),
    "kv_cache_config.max_attention_window": Argument("max_attention_window"),
    "kv_cache_config.sink_token_length": Argument("sink_tokens"),
    "kv_cache_config.free_gpu_memory_fraction": Argument("free_gpu_memory_fraction"),
    "kv_cache_config.host_cache_size": Argument("host_cache_bytes"),
    "kv_cache_config.enable_partial_reuse": Argument("is_partial_block_reuse"),
    "kv_cache_config.dtype": Argument("kv_cache_dtype"),
    "kv_cache_config.tokens_per_block": Argument("kv_block_tokens"),
    "scheduler_config.capacity_scheduler_policy": Argument("capacity_scheduler_policy", _lower),
    "scheduler_config.context_chunking_policy": Argument("context_chunking_policy", _lower),
    "cache_transceiver_config.backend": Argument("cache_transceiver.backend", _lower),
    "cache_transceiver_config.max_tokens_in_buffer": Argument("cache_transceiver.max_buffer_tokens"),
    "cache_transceiver_config.kv_transfer_timeout_ms": Argument("cache_transceiver.transfer_timeout_ms"),
    "pytorch_backend_config.use_cuda_graph": Argument("is_cuda_graph", default=False),
    "pytorch_backend_config.enable_overlap_scheduler": Argument("is_overlap_scheduler"),
    "pytorch_backend_config.disable_overlap_scheduler": Argument("is_overlap_scheduler", _not),
    "pytorch_backend_config.kv_cache_dtype": Argument("kv_cache_dtype"),
    "pytorch_backend_config.moe_backend": Argument("moe_backend", _lower),
}

# Method of speculation by decoding_type: the deployment's word, and its fields by upstream's names.
_DRAFTS = {"max_draft_len": "max_draft_len"}
_DRAFT_MODEL = _DRAFTS | {"speculative_model": "dir", "speculative_model_dir": "dir"}
SPECULATION: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ngram": (
        "ngram",
        _DRAFTS
        | {
            "max_matching_ngram_size": "max_matching_ngram_size",
            "is_keep_all": "is_keeping_all",
            "is_use_oldest": "is_using_oldest",
            "is_public_pool": "is_public_pool",
        },
    ),
    "mtp": (
        "mtp",
        {
            "num_nextn_predict_layers": "num_nextn_predict_layers",
            "use_mtp_vanilla": "is_vanilla",
            "use_relaxed_acceptance_for_thinking": "is_relaxed_for_thinking",
            "relaxed_topk": "relaxed_top_k",
            "relaxed_delta": "relaxed_delta",
        },
    ),
    "eagle": ("eagle3", _DRAFT_MODEL | {"eagle3_one_model": "is_one_model"}),
    "eagle3": ("eagle3", _DRAFT_MODEL | {"eagle3_one_model": "is_one_model"}),
    "draft_target": ("draft_target", _DRAFT_MODEL),
}

# Always so here, whatever the value.
IMPLIED: Mapping[str, str] = {
    "skip_tokenizer_init": "the engine gets token ids, and the tokenizer only for guided decoding",
    "return_perf_metrics": "always on; a request asks with return_perf_metrics",
    "enable_iter_perf_stats": "always on; metrics come of it",
    "enable_iter_req_stats": "a request tells its own figures",
    "iter_stats_max_iterations": "metrics are read after each step",
    "request_stats_max_iterations": "a request tells its own figures",
    "max_stats_len": "metrics are read after each step",
    "perf_metrics_max_requests": "a request tells its own figures",
    "print_iter_log": "figures are metrics here, not lines of a log",
    "max_input_len": "max_seq_len is the limit",
    "num_postprocess_workers": "text is made outside of the engine",
    "postprocess_tokenizer_dir": "text is made outside of the engine",
    "enable_tqdm": "no progress bars",
    "backend": "provider pytorch",
    "mpi_session": "made by the launcher",
    "orchestrator_type": "made by the launcher",
    "quant_config": "of the checkpoint",
    "build_config": "not of the PyTorch backend",
    "garbage_collection_gen0_threshold": "left to upstream",
}

# What to do about an argument that has no field, and is not passed on: it would not do here what it did there.
INSTEAD: Mapping[str, str] = {
    "trust_remote_code": "no code from a checkpoint is run here; use an architecture that TensorRT-LLM has",
    "custom_tokenizer": "no code from a checkpoint is run here; save the tokenizer as tokenizer.json",
    "tokenizer_mode": "tokenizer.json is read, always; write one with transformers' save_pretrained",
    "revision": "a deployment serves a folder; download that revision and name it as engine.dir",
    "tokenizer_revision": "a deployment serves a folder; download that revision and name it as tokenizer.dir",
    "reasoning_parser": "text is sent as the model makes it; split it in the client",
    "logits_post_processors": "no code of yours runs in the engine; use guided decoding, bad_words or embedding_bias",
    "batched_logits_processor": "no code of yours runs in the engine; use guided decoding, bad_words or embedding_bias",
    "lora_config": "put each adapter into a folder named by the lora_task_id of its requests, and set engine.lora.dir",
    "enable_lora": "put each adapter into a folder named by the lora_task_id of its requests, and set engine.lora.dir",
    "stream_interval": "set responses.max_chunk_delay_ms: tokens leave together that are made within it",
    "otlp_traces_endpoint": "traces are Triton's: start it with --trace-config",
    "env_overrides": "set the variables where `trireme serve` is started",
    "kv_connector_config": "a KV connector is not served here; leave it out",
    "load_format": "weights are read from safetensors in engine.dir",
    "multimodal": "the models served here read text alone; serve a model that sees with another server",
}
NO_FIELD = "no version of TensorRT-LLM that is known here has it, so it cannot be passed on; see whether you need it"

# Upstream's default of what has no field; such a value changes nothing. Others' default is none.
DEFAULTS: Mapping[str, object] = {
    "tokenizer_mode": "auto",
    "trust_remote_code": False,
    "dtype": "auto",
    "enable_lm_head_tp_in_adp": False,
    "cp_config": {},
    "load_format": "auto",
    "fail_fast_on_attention_window_too_large": False,
    "enable_lora": False,
    "gather_generation_logits": False,
    "attn_backend": "TRTLLM",
    "sampler_force_async_worker": False,
    "batch_wait_timeout_ms": 0,
    "batch_wait_timeout_iters": 0,
    "batch_wait_max_tokens_ratio": 0,
    "enable_autotuner": True,
    "enable_layerwise_nvtx_marker": False,
    "enable_min_latency": False,
    "stream_interval": 1,
    "force_dynamic_quantization": False,
    "allreduce_strategy": "AUTO",
    "mm_encoder_only": False,
    "enable_sleep": False,
    "disable_flashinfer_sampling": False,
    "kv_cache_config.onboard_blocks": True,
    "kv_cache_config.event_buffer_max_size": 0,
    "kv_cache_config.attention_dp_events_gather_period_ms": 5,
    "kv_cache_config.copy_on_partial_reuse": True,
    "kv_cache_config.use_uvm": False,
    "kv_cache_config.max_gpu_total_bytes": 0,
    "kv_cache_config.mamba_ssm_cache_dtype": "auto",
    "cuda_graph_config.max_batch_size": 0,
    "cuda_graph_config.enable_padding": False,
    "moe_config.disable_finalize_fusion": False,
    "moe_config.use_low_precision_moe_combine": False,
    "cache_transceiver_config.kv_transfer_sender_future_timeout_ms": 1000,
}
# Arguments that are mappings; their parts are looked at one by one.
SECTIONS = frozenset(
    {
        "kv_cache_config",
        "scheduler_config",
        "cache_transceiver_config",
        "moe_config",
        "cuda_graph_config",
        "pytorch_backend_config",
    }
)
