# SPDX-License-Identifier: Apache-2.0
"""Old model repositories for tests, made from tables of names: which parameters and placeholders each release had.

Nothing here is upstream's text. The names were read at the tags v0.17.0, v0.18.2 and v0.19.0 of
triton-inference-server/tensorrtllm_backend and, for later releases, in single files of NVIDIA/TensorRT-LLM's
triton_backend; the release in which one of the few later names came is from the date of its pull request.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from types import MappingProxyType

import yaml

from ensemble_configs.render.pbtxt import Symbol, to_pbtxt

CONTRACT = json.loads((Path(__file__).parent.parent / "data" / "upstream_contract.json").read_text())
Version = tuple[int, int]
VERSIONS: tuple[Version, ...] = ((0, 17), (0, 18), (0, 19), (0, 20), (0, 21), (1, 0), (1, 1), (1, 2))
FOREVER: Version = (9, 9)

# placeholder: (parameter's key, first release, first release without)
Parameters = Mapping[str, tuple[str, Version, Version]]


def _since(version: Version, *names: str) -> dict[str, tuple[str, Version, Version]]:
    return {name: (name, version, FOREVER) for name in names}


_FIRST = VERSIONS[0]
_ENGINE: Parameters = {
    "batching_strategy": ("gpt_model_type", _FIRST, FOREVER),
    "engine_dir": ("gpt_model_path", _FIRST, FOREVER),
    "encoder_engine_dir": ("encoder_model_path", _FIRST, FOREVER),
    **_since(
        _FIRST,
        *("max_beam_width", "max_tokens_in_paged_kv_cache", "max_attention_window_size", "sink_token_length"),
        *("batch_scheduler_policy", "kv_cache_free_gpu_mem_fraction", "cross_kv_cache_fraction"),
        *("kv_cache_host_memory_bytes", "kv_cache_onboard_blocks", "exclude_input_in_output"),
        *("cancellation_check_period_ms", "stats_check_period_ms", "iter_stats_max_iterations"),
        *("request_stats_max_iterations", "enable_kv_cache_reuse", "normalize_log_probs", "enable_chunked_context"),
        *("gpu_device_ids", "participant_ids", "lora_cache_optimal_adapter_size", "lora_cache_max_adapter_size"),
        *("lora_cache_gpu_memory_fraction", "lora_cache_host_memory_bytes", "decoding_mode", "medusa_choices"),
        *("eagle_choices", "gpu_weights_percent", "enable_context_fmha_fp32_acc", "multi_block_mode"),
        *("cuda_graph_mode", "cuda_graph_cache_size", "speculative_decoding_fast_logits"),
    ),
    **_since(
        (0, 19),
        *("num_nodes", "lora_prefetch_dir", "lookahead_window_size", "lookahead_ngram_size"),
        *(
            "lookahead_verification_set_size",
            "tokenizer_dir",
            "guided_decoding_backend",
            "xgrammar_tokenizer_info_path",
        ),
    ),
    **_since((1, 2), "enable_trt_overlap"),
}
PARAMETERS: Mapping[str, Parameters] = {
    "preprocessing": {
        **_since(_FIRST, "tokenizer_dir", "add_special_tokens", "max_num_images"),
        "visual_model_path": ("visual_model_path", _FIRST, (0, 19)),
        **_since((0, 19), "multimodal_model_path"),
        "engine_dir": ("gpt_model_path", _FIRST, FOREVER),
        **_since((1, 1), "hf_model_path"),
    },
    "tensorrt_llm": _ENGINE,
    "postprocessing": _since(_FIRST, "tokenizer_dir", "skip_special_tokens"),
    "ensemble": {},
    "tensorrt_llm_bls": _since(
        _FIRST,
        *("accumulate_tokens", "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name", "multimodal_encoders_name"),
    ),
}
# Parameters of every release that no placeholder fills.
FIXED: Mapping[str, Mapping[str, str]] = {
    "tensorrt_llm": {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    }
}
_INSTANCES = {
    "preprocessing": "preprocessing_instance_count",
    "postprocessing": "postprocessing_instance_count",
    "tensorrt_llm_bls": "bls_instance_count",
}
_QUEUED = {"tensorrt_llm": _FIRST, "preprocessing": (0, 19)}
_STREAMING = {"tensorrt_llm", "tensorrt_llm_bls"}

# What upstream called a tensor before a release, and tensors that came with one.
_FORMER: Mapping[str, tuple[str, Version]] = {
    "return_perf_metrics": ("return_kv_cache_reuse_stats", (0, 19)),
    "seed": ("random_seed", (0, 20)),
    "min_tokens": ("min_length", (0, 20)),
}
_PERF = {
    "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
    "total_accepted_draft_tokens", "total_draft_tokens",
}  # fmt: skip
_NEW: Mapping[str, Version] = (
    dict.fromkeys(
        _PERF
        | {"guided_decoding_guide_type", "guided_decoding_guide", "mrope_rotary_cos_sin", "mrope_position_deltas"}
        | {"lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"}
        | {"ATTENTION_MASK", "IMAGE_GRID_THW", "VISION_INPUT_ID"},
        (0, 19),
    )
    | dict.fromkeys(
        {"return_num_input_tokens", "return_num_output_tokens", "num_input_tokens", "num_output_tokens"}, (0, 21)
    )
    | {"IMAGES": (1, 1)}
)


def placeholders(version: Version) -> dict[str, dict[str, str]]:
    """Return, for each model, every placeholder of the release, and the name that an import's report has for it."""
    named: dict[str, dict[str, str]] = {}
    for model, parameters in PARAMETERS.items():
        found = {"triton_max_batch_size": f"{model}.max_batch_size"}
        found |= {
            placeholder: f"{model}.{key}"
            for placeholder, (key, since, until) in parameters.items()
            if since <= version < until
        }
        if model in _STREAMING:
            found["decoupled_mode"] = f"{model}.decoupled"
        if _QUEUED.get(model, FOREVER) <= version:
            found["max_queue_delay_microseconds"] = f"{model}.dynamic_batching.max_queue_delay_microseconds"
            found["max_queue_size"] = f"{model}.dynamic_batching.default_queue_policy.max_queue_size"
        if model in _INSTANCES:
            found[_INSTANCES[model]] = f"{model}.instance_group.count"
        if model in {"tensorrt_llm", "ensemble", "tensorrt_llm_bls"}:
            found["logits_datatype"] = f"{model}.logits_datatype"
        if model == "tensorrt_llm":
            found["triton_backend"] = f"{model}.backend"
            found["encoder_input_features_data_type"] = f"{model}.encoder_input_features_data_type"
        if model in _STREAMING and version >= (1, 2):
            found["prompt_embedding_table_data_type"] = f"{model}.prompt_embedding_table_data_type"
        named[model] = found
    return named


def template(model: str, version: Version) -> str:
    """Return a `config.pbtxt` in the shape of the release's, with its placeholders."""
    message: dict[str, object] = {"name": model}
    if model == "ensemble":
        message["platform"] = "ensemble"
    else:
        message["backend"] = "${triton_backend}" if model == "tensorrt_llm" else "python"
    message["max_batch_size"] = _bare("triton_max_batch_size")
    if model in _STREAMING:
        message["model_transaction_policy"] = {"decoupled": _bare("decoupled_mode")}
    if _QUEUED.get(model, FOREVER) <= version:
        message["dynamic_batching"] = {
            "preferred_batch_size": [_bare("triton_max_batch_size")],
            "max_queue_delay_microseconds": _bare("max_queue_delay_microseconds"),
            "default_queue_policy": {"max_queue_size": _bare("max_queue_size")},
        }
    elif model == "postprocessing":
        message["dynamic_batching"] = {}
    message |= {direction: _tensors(model, f"{direction}s", version) for direction in ("input", "output")}
    if model == "ensemble":
        steps = ("preprocessing", "tensorrt_llm", "postprocessing")
        message["ensemble_scheduling"] = {"step": [{"model_name": step, "model_version": -1} for step in steps]}
    else:
        count: object = _bare(_INSTANCES[model]) if model in _INSTANCES else 1
        message["instance_group"] = [{"count": count, "kind": Symbol("KIND_CPU")}]
    values = {
        key: f"${{{placeholder}}}"
        for placeholder, (key, since, until) in PARAMETERS[model].items()
        if since <= version < until
    }
    values |= FIXED.get(model, {})
    message["parameters"] = [{"key": key, "value": {"string_value": value}} for key, value in values.items()]
    return "# ${triton_max_batch_size} in a comment is no setting\n" + to_pbtxt(message)


def _bare(placeholder: str) -> Symbol:
    return Symbol(f"${{{placeholder}}}")


def _tensors(model: str, direction: str, version: Version) -> list[dict[str, object]]:
    tensors = []
    for known, tensor in CONTRACT[model][direction].items():
        if _NEW.get(known, _FIRST) > version:
            continue
        former, until = _FORMER.get(known, (known, _FIRST))
        name = former if version < until else known
        data_type = tensor["data_type"]
        if name == "prompt_embedding_table" and model in _STREAMING and version >= (1, 2):
            data_type = "${prompt_embedding_table_data_type}"
        row = {"name": name, "data_type": Symbol(data_type), "dims": tensor["dims"]}
        tensors.append(row | ({"optional": True} if tensor.get("optional") else {}))
    return tensors


def fill(text: str, substitutions: str, *, version: Version = VERSIONS[-1]) -> str:
    r"""Return a text filled as `fill_template.py` does from ``key:value,key:value``; ``\`` takes a comma's meaning."""
    values: dict[str, str] = {"max_queue_size": "0"}
    if version >= (0, 19):
        values["max_queue_delay_microseconds"] = "0"
    for pair in _split(substitutions, ",") if substitutions else ():
        key, value = _split(pair, ":")
        values[key] = value
    return Template(text).safe_substitute(values)


def _split(text: str, delimiter: str) -> list[str]:
    parts, is_escaped = [""], False
    for char in text:
        if not is_escaped and char == "\\":
            is_escaped = True
        elif not is_escaped and char == delimiter:
            parts.append("")
        else:
            # Upstream splits twice, and the first split takes the escapes away.
            parts[-1] += char
            is_escaped = False
    return parts


# What a guide to upstream's ensemble fills; everything else keeps its placeholder.
USUAL: Mapping[str, str] = MappingProxyType(
    {
        "triton_backend": "tensorrtllm",
        "triton_max_batch_size": "64",
        "decoupled_mode": "True",
        "batching_strategy": "inflight_fused_batching",
        "max_queue_delay_microseconds": "0",
        "encoder_input_features_data_type": "TYPE_FP16",
        "prompt_embedding_table_data_type": "TYPE_FP16",
        "logits_datatype": "TYPE_FP32",
        "preprocessing_instance_count": "1",
        "postprocessing_instance_count": "1",
        "bls_instance_count": "1",
        "engine_dir": "/old/engines/llama",
        "tokenizer_dir": "/old/models/llama",
    }
)


def write_old_repository(
    folder: Path,
    version: Version = VERSIONS[-1],
    values: Mapping[str, str] = MappingProxyType({}),
    *,
    models: Iterable[str] = tuple(PARAMETERS),
    is_usual: bool = True,
) -> Path:
    """Write a repository of the release, filled with `USUAL` (or nothing) and `values`."""
    wanted = {**(USUAL if is_usual else {}), **values}
    for model in models:
        text = template(model, version)
        pairs = [f"{key}:{_escaped(value)}" for key, value in wanted.items() if f"${{{key}}}" in text]
        (folder / model / "1").mkdir(parents=True, exist_ok=True)
        (folder / model / "config.pbtxt").write_text(fill(text, ",".join(pairs), version=version))
    return folder


def _escaped(value: str) -> str:
    return value.replace(",", "\\,")


def write_engine_config(folder: Path, *, version: str = "1.2.1", **changes: object) -> Path:
    """Write a compiled engine's folder without weights; `changes` are of `build_config`, or of its sections by name."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {"world_size": 1, "tp_size": 1, "pp_size": 1, "cp_size": 1}
    pretrained: dict[str, object] = {"architecture": "LlamaForCausalLM", "dtype": "float16", "vocab_size": 32000}
    pretrained |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    pretrained |= {"quantization": {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": None}}
    given = changes.pop("pretrained", {})
    assert isinstance(given, dict)
    pretrained |= given
    mapping |= given.get("mapping", {})
    pretrained["mapping"] = mapping
    build: dict[str, object] = {
        "max_input_len": 1024,
        "max_seq_len": 4096,
        "max_batch_size": 128,
        "max_num_tokens": 8192,
    }
    build |= {"max_beam_width": 1, "gather_context_logits": False, "gather_generation_logits": False}
    build |= {"speculative_decoding_mode": 1, "plugin_config": {"tokens_per_block": 64, "lora_plugin": None}}
    config = {"version": version, "pretrained_config": pretrained, "build_config": build | changes}
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(mapping["world_size"]):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    return folder


def write_llmapi_repository(folder: Path, model: Mapping[str, object], inputs: Iterable[str] = ()) -> Path:
    """Write a repository of `llmapi` with this `model.yaml`."""
    text = {"name": "text_input", "data_type": Symbol("TYPE_STRING"), "dims": [-1]}
    message = {
        "name": "tensorrt_llm",
        "backend": "python",
        "instance_group": [{"count": 1, "kind": Symbol("KIND_CPU")}],
        "input": [text, *({"name": name, "data_type": Symbol("TYPE_FP32"), "dims": [1]} for name in inputs)],
        "output": [{"name": "text_output", "data_type": Symbol("TYPE_STRING"), "dims": [-1]}],
    }
    (folder / "tensorrt_llm" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "tensorrt_llm" / "config.pbtxt").write_text(to_pbtxt(message))
    (folder / "tensorrt_llm" / "1" / "model.yaml").write_text(yaml.safe_dump(dict(model), sort_keys=False))
    return folder
