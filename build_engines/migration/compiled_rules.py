# SPDX-License-Identifier: Apache-2.0
"""The meaning of a compiled engine's config for the deployment, cross-checked with the files beside it."""

from collections.abc import Iterator

from build_engines.migration.compiled_engine import CompiledEngine, int_of
from build_engines.migration.import_report import Entry, Verdict, carried, implied, lost

_LAST = (1, 2)  # 1.2.1 is the last release with compiled engines
_COMPILED_IN = "compiled into the engine"

# key of build_config: the deployment's field that it bounds
_LIMITS = {
    "max_batch_size": "engine.max_num_seqs",
    "max_num_tokens": "engine.max_num_batched_tokens",
    "max_seq_len": "engine.max_seq_len",
}


def engine_entries(engine: CompiledEngine) -> Iterator[Entry]:
    """Yield an entry for each figure of the engine's config that a deployment depends on."""
    yield _entry("version", engine.version, _version(engine))
    yield from _mapping(engine)
    for key in ("quant_algo", "kv_cache_quant_algo"):
        yield _entry(f"quantization.{key}", engine.quantization.get(key), implied(_COMPILED_IN))
    for key, field in _LIMITS.items():
        limit = int_of(engine.build, key)
        verdict = carried(field, limit) if limit else lost(f"the engine's config.json has no {key}; set {field}")
        yield _entry(key, limit, verdict)
    yield _entry("max_input_len", int_of(engine.build, "max_input_len"), _max_input_len(engine))
    yield from _gathering(engine)
    yield _entry("speculative_decoding_mode", engine.speculation, _speculation(engine))
    yield _entry("plugin_config.lora_plugin", engine.plugins.get("lora_plugin"), _lora(engine))
    yield _entry("plugin_config.tokens_per_block", engine.kv_block_tokens, implied(_COMPILED_IN))
    paged = engine.plugins.get("use_paged_context_fmha")
    yield _entry("plugin_config.use_paged_context_fmha", paged, implied(_COMPILED_IN))
    yield _entry("kv_cache_type", engine.build.get("kv_cache_type"), _kv_cache_type(engine))
    yield _entry(
        "max_prompt_embedding_table_size",
        int_of(engine.build, "max_prompt_embedding_table_size"),
        _prompt_table(engine),
    )
    yield _entry("architecture", engine.pretrained.get("architecture"), _architecture(engine))


def _entry(key: str, value: object, verdict: Verdict) -> Entry:
    return Entry(f"engine config.json: {key}", "" if value is None else str(value), verdict)


def _version(engine: CompiledEngine) -> Verdict:
    release = engine.release
    if release is None:
        return lost("it does not say which TensorRT-LLM built it; build it with 1.2.1, the last that compiles engines")
    if release > _LAST:
        return lost(
            f"TensorRT-LLM {engine.version} has no such engines any more; serve the checkpoint with provider pytorch, "
            "or build an engine with 1.2.1"
        )
    if release < _LAST:
        return lost(
            f"only TensorRT-LLM {engine.version}, which built it, can load it, and provider tensorrt is for 1.2; build "
            "it with 1.2.1 from its checkpoint, with the same flags, and the deployment holds for the new one"
        )
    return implied(f"the server needs exactly TensorRT-LLM {engine.version}")


def _mapping(engine: CompiledEngine) -> Iterator[Entry]:
    sizes = {key: int_of(engine.mapping, key) or 1 for key in ("tp_size", "pp_size", "cp_size")}
    for key in ("tp_size", "pp_size"):
        yield _entry(f"mapping.{key}", sizes[key], carried(f"engine.{key}", sizes[key]))
    if sizes["cp_size"] > 1:
        cp = lost("context parallelism of compiled engines is not served here; build the engine with tp_size instead")
    else:
        cp = implied("1, as here")
    yield _entry("mapping.cp_size", sizes["cp_size"], cp)
    yield _entry("mapping.world_size", engine.world_size, _world_size(engine, sizes))


def _world_size(engine: CompiledEngine, sizes: dict[str, int]) -> Verdict:
    product = sizes["tp_size"] * sizes["pp_size"] * sizes["cp_size"]
    if product != engine.world_size:
        return lost(
            f"tp_size * pp_size * cp_size is {product}, not {engine.world_size}; the engine was not built by that"
        )
    files = [f"rank{rank}.engine" for rank in range(engine.world_size)]
    if missing := [name for name in files if not (engine.file.parent / name).is_file()]:
        return lost(f"{engine.file.parent} has no {', '.join(missing)}; copy the engine whole")
    extra = len(list(engine.file.parent.glob("rank*.engine"))) - len(files)
    if extra > 0:
        return lost(f"{engine.file.parent} has {extra} rank files more than that; keep one engine in a folder")
    return implied("the product of the sizes")


def _max_input_len(engine: CompiledEngine) -> Verdict:
    if _is_packed(engine):
        return implied(
            "not a limit: with packed input and context FMHA any prompt that max_seq_len allows is taken, or where "
            "engine.is_chunked_prefill is false, any of max_num_tokens"
        )
    prompt, total = int_of(engine.build, "max_input_len"), int_of(engine.build, "max_seq_len")
    if prompt and total and prompt + 1 < total:
        return lost(
            f"without packed input no prompt is longer than {prompt}, and a deployment has one limit, so both "
            f"lengths together are {prompt + 1} here, not {total}; build it with remove_input_padding and context_fmha",
            **{"engine.max_seq_len": prompt + 1},
        )
    return implied("max_seq_len is the limit")


def _is_packed(engine: CompiledEngine) -> bool:
    return all(engine.plugins.get(key, True) for key in ("remove_input_padding", "context_fmha"))


def _gathering(engine: CompiledEngine) -> Iterator[Entry]:
    for key in ("gather_context_logits", "gather_generation_logits"):
        is_built = bool(engine.build.get(key))
        why = ""
        if key == "gather_generation_logits" and not is_built:
            why = (
                "so return_log_probs is refused; for clients that send it set true, which any engine can be loaded "
                "with and takes memory of the GPU for 8 steps' logits of a full batch"
            )
        yield _entry(key, is_built, carried(f"engine.is_{key.replace('gather', 'gathering')}", is_built, why))


def _speculation(engine: CompiledEngine) -> Verdict:
    if engine.speculation in {"draft_tokens_external", "explicit_draft_tokens"}:
        return lost(
            "TensorRT-LLM's LLM cannot draft for such an engine; build it without, or for lookahead, medusa or eagle"
        )
    return implied("what decoding_mode says has to fit it")


def _lora(engine: CompiledEngine) -> Verdict:
    if not engine.has_lora:
        return implied("no adapters")
    return lost(
        "requests brought the weights of their adapter; lora_weights and lora_config are refused here: "
        "put each adapter into a folder named by its number, and set engine.lora.dir"
    )


def _kv_cache_type(engine: CompiledEngine) -> Verdict:
    kind = str(engine.build.get("kv_cache_type", "")).rpartition(".")[2].lower()
    is_paged = engine.plugins.get("paged_kv_cache") is not False
    if kind in {"continuous", "disabled"} or not is_paged:
        return lost("batching in flight needs a paged KV cache; build the engine with --kv_cache_type paged")
    return implied("paged, always")


def _prompt_table(engine: CompiledEngine) -> Verdict:
    if not int_of(engine.build, "max_prompt_embedding_table_size"):
        return implied("no prompt tables")
    return lost("TensorRT-LLM's LLM takes no prompt_embedding_table with a request; have clients leave it out")


def _architecture(engine: CompiledEngine) -> Verdict:
    if engine.is_encoder_decoder:
        return lost("models of an encoder and a decoder are not served here; keep them where they are")
    return implied(_COMPILED_IN)
