# SPDX-License-Identifier: Apache-2.0
"""The settings of the model `tensorrt_llm`, for a deployment with provider `tensorrt`."""

from collections.abc import Callable, Mapping

from build_engines.migration.compiled_engine import int_of
from build_engines.migration.context import (
    NO_PAUSE_BESIDE_GUIDED_DECODING,
    UNREADABLE,
    Context,
    Rule,
    always,
    carry,
    only,
)
from build_engines.migration.import_report import Verdict, carried, implied, lost
from build_engines.migration.pipeline_rules import STREAMING
from build_engines.migration.speculation_rules import LOOKAHEAD, choices, decoding_mode, fast_logits, lookahead_size
from build_engines.migration.values import Value, absolute, boolean, fraction, integer, integers, one_of

_ENCODER = "models of an encoder and a decoder are not served here; keep them where they are"
_OWN_WORKERS = "the engine starts its own workers"
_OWN_STATS = "metrics are read from the engine after each step"


def _engine_dir(value: Value, context: Context) -> Verdict:
    if context.engine_dir is not None:
        return carried("engine.dir", str(context.engine_dir.resolve()), "of --engine-dir")
    if value.is_set:
        return carried("engine.dir", absolute(value.text))
    return lost("the repository names no engine; name its folder with --engine-dir")


def _batching(value: Value, _: Context) -> Verdict:
    if value.text.strip().lower() == "v1":
        return lost("static batching: batching is in flight here, always; nothing to do, greedy text is the same")
    return implied("in-flight batching, always")


def _kv_tokens(value: Value, context: Context) -> Verdict:
    tokens = value.read(integer)
    if not tokens or tokens < 0:
        return implied("no bound but the memory fraction, as here")
    size = context.engine.kv_block_tokens if context.engine else 32
    known = "" if context.engine else ", upstream's default; the engine's config.json was not read"
    return carried("engine.num_kv_blocks", max(1, tokens // size), f"blocks of {size} tokens{known}")


_NOT_PAGED = "the engine was built without use_paged_context_fmha"


def _chunked_context(value: Value, context: Context) -> Verdict:
    if value.read(boolean) and context.engine is not None and context.engine.is_paged_context is False:
        return lost(
            f"{_NOT_PAGED}, and TensorRT-LLM refuses to load it so; build it with another KV type",
            **{"engine.is_chunked_prefill": False},
        )
    return carry("engine.is_chunked_prefill", boolean, default=False)(value, context)


def _why_no_reuse(context: Context) -> str | None:
    if context.engine is None:
        return None
    if context.engine.is_paged_context is False:
        return _NOT_PAGED
    if context.engine.build.get("gather_context_logits"):
        return "the engine was built with gather_context_logits"
    return None


def _block_reuse(value: Value, context: Context) -> Verdict:
    reuse = value.read(boolean)
    if reuse is not False and (why := _why_no_reuse(context)):
        return carried("engine.is_block_reuse", False, f"{why}, with which upstream leaves it off")
    if reuse is not None:
        return carried("engine.is_block_reuse", reuse)
    release = context.engine.release if context.engine else None
    if release is None:
        return carried("engine.is_block_reuse", True, "upstream's default from 0.19 on; it was false before")
    return carried("engine.is_block_reuse", release >= (0, 19), f"upstream's default in {release[0]}.{release[1]}")


def _beams(value: Value, context: Context) -> Verdict:
    wanted = value.read(integer) or 1
    built = int_of(context.engine.build, "max_beam_width") if context.engine else None
    if built is not None and wanted > built:
        return lost(
            f"the engine was built for {built}; build it with --max_beam_width {wanted}",
            **{"engine.max_beam_width": built},
        )
    unreadable = UNREADABLE if value.is_set else ""
    is_read = value.read(integer) is not None
    return carried("engine.max_beam_width", wanted, "" if is_read else f"{unreadable}upstream's default, 1")


def _guided(value: Value, context: Context) -> Verdict:
    if not value.is_set:
        return implied("no guided decoding, as here")
    if value.text != "xgrammar":
        return lost(f"{value.text} is no backend of compiled engines; set engine.guided_decoding_backend: xgrammar")
    if not _is_guided(context):
        return implied(f"upstream left it off, for {_guide_file(context)} is not filled")
    folder = _guide_tokenizer(context)
    if folder is None:
        return lost("its grammars need the tokenizer's folder, which nothing names; import again with --tokenizer-dir")
    verdict = carried("engine.guided_decoding_backend", "xgrammar")
    verdict.fields["engine.tokenizer_dir"] = folder
    return verdict


def _scheduler_policy(value: Value, context: Context) -> Verdict:
    policy = one_of("max_utilization", "guaranteed_no_evict")
    if value.read(policy) == "max_utilization" and _is_guided(context):
        return carried("engine.capacity_scheduler_policy", "guaranteed_no_evict", NO_PAUSE_BESIDE_GUIDED_DECODING)
    return carry("engine.capacity_scheduler_policy", policy, default="guaranteed_no_evict")(value, context)


def _guide_file(context: Context) -> str:
    """Return the parameter that upstream's back end reads the vocabulary from."""
    is_python = context.get("tensorrt_llm.backend").text == "python"
    return "tokenizer_dir" if is_python else "xgrammar_tokenizer_info_path"


def _is_guided(context: Context) -> bool:
    is_on = context.get("tensorrt_llm.parameters.guided_decoding_backend").text == "xgrammar"
    return is_on and context.get(f"tensorrt_llm.parameters.{_guide_file(context)}").is_set


def _guide_tokenizer(context: Context) -> str | None:
    if context.tokenizer_dir is not None:
        return str(context.tokenizer_dir.resolve())
    for model in ("tensorrt_llm", "preprocessing"):
        folder = context.get(f"{model}.parameters.tokenizer_dir")
        if folder.is_set:
            return absolute(folder.text)
    return None


def _guide_tokenizer_dir(value: Value, context: Context) -> Verdict:
    if value.is_set and _is_guided(context):
        return carried("engine.tokenizer_dir", _guide_tokenizer(context), "for guided decoding")
    return implied("only read for guided decoding, which is off")


def _gpu_device_ids(value: Value, context: Context) -> Verdict:
    if not value.is_set:
        return implied("all visible GPUs, as here")
    instances = [value for value in value.text.split(";") if value.strip()]
    if len(instances) > 1:
        return lost(
            f"{len(instances)} engines in one server; write one deployment each, with ports of its own, and start each "
            "with its CUDA_VISIBLE_DEVICES"
        )
    ids = value.read(integers) or []
    if context.engine and len(ids) != context.engine.world_size:
        return lost(
            f"{len(ids)} GPUs for an engine of {context.engine.world_size} ranks; start it with CUDA_VISIBLE_DEVICES "
            f"naming {context.engine.world_size}"
        )
    if ids == list(range(len(ids))):
        return implied("an engine takes the first GPUs that it sees")
    return lost(f"which GPUs is not in a deployment; start it with CUDA_VISIBLE_DEVICES={','.join(map(str, ids))}")


def _num_nodes(value: Value, context: Context) -> Verdict:
    nodes = value.read(integer) or 1
    if nodes == 1:
        return implied("one node, as here")
    world_size = context.engine.world_size if context.engine else 0
    if not world_size or world_size % nodes:
        return lost(f"{nodes} nodes for {world_size or 'unknown'} ranks; set engine.gpus_per_node")
    return carried("engine.gpus_per_node", world_size // nodes, f"{world_size} ranks on {nodes} nodes")


def _lora(default: object, convert: Callable[[str], object] = integer) -> Rule:
    def rule(value: Value, context: Context) -> Verdict:
        read = value.read(convert)
        if context.engine is not None and not context.engine.has_lora:
            return implied("the engine was built without LoRA")
        if read is None or read == default:
            return implied("upstream's default")
        return lost(
            "adapters are read from engine.lora.dir here and not sent with requests; the cache is as large as "
            "engine.lora.max_device_adapters and max_host_adapters say"
        )

    return rule


def _cross_kv(value: Value, context: Context) -> Verdict:
    if not value.is_set or not context.get("tensorrt_llm.parameters.encoder_model_path").is_set:
        return implied("only read for an encoder, and there is none")
    return lost(_ENCODER)


def _instances(value: Value, _: Context) -> Verdict:
    if (value.read(integer) or 1) == 1:
        return implied("one engine, as here")
    return lost("several engines in one server; write one deployment each, with ports of its own")


_PARAMETERS: Mapping[str, Rule] = {
    "FORCE_CPU_ONLY_INPUT_TENSORS": always("inputs stay in the CPU's memory"),
    "max_beam_width": _beams,
    "gpt_model_type": _batching,
    "gpt_model_path": _engine_dir,
    "encoder_model_path": only(None, _ENCODER),
    "max_tokens_in_paged_kv_cache": _kv_tokens,
    "max_attention_window_size": carry("engine.max_attention_window", integers),
    "sink_token_length": carry("engine.sink_tokens", lambda text: integer(text) or None),
    "batch_scheduler_policy": _scheduler_policy,
    "kv_cache_free_gpu_mem_fraction": carry("engine.free_gpu_memory_fraction", fraction, default=0.9),
    "cross_kv_cache_fraction": _cross_kv,
    "kv_cache_host_memory_bytes": carry("engine.host_cache_bytes", integer, default=0),
    "kv_cache_onboard_blocks": only(True, "blocks always come back from host memory here; leave it out", boolean),
    "enable_trt_overlap": only(
        False,
        "TensorRT-LLM's LLM has no such argument (1.2 measured 1.05x with it, until then it did nothing)",
        boolean,
    ),
    "exclude_input_in_output": carry("responses.exclude_input_in_output", boolean, default=False),
    "cancellation_check_period_ms": always("tensorrt_llm looks every 40 ms, the other models every 120 ms"),
    "stats_check_period_ms": always(_OWN_STATS),
    "recv_poll_period_ms": always(_OWN_WORKERS),
    "iter_stats_max_iterations": always(_OWN_STATS),
    "request_stats_max_iterations": always("a request tells its own figures: return_perf_metrics"),
    "enable_kv_cache_reuse": _block_reuse,
    "normalize_log_probs": carry("engine.is_normalizing_log_probs", boolean, default=True),
    "enable_chunked_context": _chunked_context,
    "gpu_device_ids": _gpu_device_ids,
    "participant_ids": only(None, "ranks are numbered by the launcher; start several nodes with mpirun or srun"),
    "num_nodes": _num_nodes,
    "lora_cache_optimal_adapter_size": _lora(8),
    "lora_cache_max_adapter_size": _lora(64),
    "lora_cache_gpu_memory_fraction": _lora(0.05, fraction),
    "lora_cache_host_memory_bytes": _lora(2**30),
    "lora_prefetch_dir": _lora(None, str),
    "decoding_mode": decoding_mode,
    "executor_worker_path": always(_OWN_WORKERS),
    "worker_path": always(_OWN_WORKERS),
    **{key: lookahead_size(key) for key in LOOKAHEAD},
    "medusa_choices": choices("medusa"),
    "eagle_choices": choices("eagle"),
    "gpu_weights_percent": only(
        1.0, "TensorRT-LLM's LLM streams no weights from the CPU; use more GPUs or smaller weights", fraction
    ),
    "enable_context_fmha_fp32_acc": carry("engine.perf_knobs.is_context_fmha_fp32_acc", boolean, default=False),
    "multi_block_mode": carry("engine.perf_knobs.is_multi_block", boolean, default=True),
    "cuda_graph_mode": carry("engine.perf_knobs.is_cuda_graph", boolean, default=False),
    "cuda_graph_cache_size": carry("engine.perf_knobs.cuda_graph_cache_size", integer, default=0),
    "speculative_decoding_fast_logits": fast_logits,
    "tokenizer_dir": _guide_tokenizer_dir,
    "guided_decoding_backend": _guided,
    "xgrammar_tokenizer_info_path": always("made from engine.tokenizer_dir when the engine is loaded"),
}
TENSORRT_LLM: Mapping[str, Rule] = {f"parameters.{key}": rule for key, rule in _PARAMETERS.items()} | {
    **STREAMING,
    "backend": always("the provider is tensorrt"),
    "instance_group.count": _instances,
}
