# SPDX-License-Identifier: Apache-2.0
"""Rules on one setting at a time: the verdict, with which engine, and what the report tells to do instead."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from old_repositories import write_engine_config, write_old_repository
from test_migration import TOKENIZER, entry, imported, lost

from build_engines.migration.compiled_engine import CompiledEngine, load_compiled_engine
from build_engines.migration.import_report import Outcome
from build_engines.migration.importing import Import, plan_import
from ensemble_configs.releases.engine_fit import fit_findings
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec
from trireme.base.errors import SpecError

CARRIED, IMPLIED, LOST = Outcome.CARRIED, Outcome.IMPLIED, Outcome.LOST
LORA: dict[str, Any] = {"plugin_config": {"lora_plugin": "float16"}}
FOUR: dict[str, Any] = {"pretrained": {"mapping": {"world_size": 4, "tp_size": 2, "pp_size": 2}}}
MEDUSA: dict[str, Any] = {
    "speculative_decoding_mode": 4,
    "max_draft_len": 63,
    "pretrained": {"num_medusa_heads": 4},
}
EAGLE: dict[str, Any] = {"speculative_decoding_mode": 32, "max_draft_len": 63, "pretrained": {"num_eagle_layers": 1}}


def engine_of(result: Import) -> dict[str, Any]:
    data = yaml.safe_load(result.text)["engine"]
    assert isinstance(data, dict)
    return data


# placeholder, its value, what becomes of it, words of the reason
CASES: list[tuple[str, str, str, Outcome, str]] = [
    ("decoupled_mode", "True", "tensorrt_llm.decoupled", IMPLIED, "streams"),
    ("decoupled_mode", "False", "tensorrt_llm.decoupled", CARRIED, "one response a request"),
    ("decoupled_mode", "False", "tensorrt_llm_bls.decoupled", IMPLIED, "as tensorrt_llm's"),
    ("max_queue_size", "128", "tensorrt_llm.dynamic_batching.default_queue_policy.max_queue_size", LOST, "admission"),
    ("batching_strategy", "V1", "tensorrt_llm.gpt_model_type", LOST, "static batching"),
    ("encoder_engine_dir", "/enc", "tensorrt_llm.encoder_model_path", LOST, "encoder and a decoder"),
    ("kv_cache_onboard_blocks", "false", "tensorrt_llm.kv_cache_onboard_blocks", LOST, "leave it out"),
    ("enable_trt_overlap", "true", "tensorrt_llm.enable_trt_overlap", LOST, "no such argument"),
    ("gpu_device_ids", "0,1", "tensorrt_llm.gpu_device_ids", LOST, "2 GPUs for an engine of 1 ranks"),
    ("gpu_device_ids", "3", "tensorrt_llm.gpu_device_ids", LOST, "CUDA_VISIBLE_DEVICES=3"),
    ("gpu_device_ids", "0;1", "tensorrt_llm.gpu_device_ids", LOST, "2 engines in one server"),
    ("participant_ids", "1,2", "tensorrt_llm.participant_ids", LOST, "mpirun"),
    ("num_nodes", "2", "tensorrt_llm.num_nodes", LOST, "set engine.gpus_per_node"),
    ("gpu_weights_percent", "0.5", "tensorrt_llm.gpu_weights_percent", LOST, "streams no weights"),
    ("speculative_decoding_fast_logits", "true", "tensorrt_llm.speculative_decoding_fast_logits", LOST, "no drafts"),
    ("decoding_mode", "redrafter", "tensorrt_llm.decoding_mode", LOST, "ReDrafter"),
    ("decoding_mode", "medusa", "tensorrt_llm.decoding_mode", LOST, "num_medusa_heads"),
    ("decoding_mode", "lookahead", "tensorrt_llm.decoding_mode", LOST, "lookahead_window_size"),
    ("decoding_mode", "guess", "tensorrt_llm.decoding_mode", LOST, "no method of that name"),
    ("decoding_mode", "beam_search", "tensorrt_llm.decoding_mode", IMPLIED, "as it asks"),
    ("max_beam_width", "4", "tensorrt_llm.max_beam_width", LOST, "--max_beam_width 4"),
    ("max_beam_width", "many", "tensorrt_llm.max_beam_width", CARRIED, "cannot read it"),
    ("enable_chunked_context", "maybe", "tensorrt_llm.enable_chunked_context", CARRIED, "cannot read it"),
    ("batch_scheduler_policy", "greedy", "tensorrt_llm.batch_scheduler_policy", CARRIED, "cannot read it"),
    ("logits_datatype", "TYPE_FP16", "ensemble.logits_datatype", LOST, "TYPE_FP32"),
    ("logits_datatype", "TYPE_FP16", "tensorrt_llm.logits_datatype", LOST, "TYPE_FP32"),
    ("encoder_input_features_data_type", "TYPE_BF16", "tensorrt_llm.encoder_input_features_data_type", LOST, "encoder"),
    (
        "prompt_embedding_table_data_type",
        "TYPE_BF16",
        "tensorrt_llm.prompt_embedding_table_data_type",
        LOST,
        "TYPE_FP16",
    ),
    ("guided_decoding_backend", "outlines", "tensorrt_llm.guided_decoding_backend", LOST, "xgrammar"),
    ("guided_decoding_backend", "xgrammar", "tensorrt_llm.guided_decoding_backend", IMPLIED, "upstream left it off"),
    ("multimodal_model_path", "/vit", "preprocessing.multimodal_model_path", LOST, "text alone"),
    ("multimodal_model_path", "/vit", "preprocessing.input IMAGE_BYTES", LOST, "no such tensor here"),
    (
        "tensorrt_llm_draft_model_name",
        "small",
        "tensorrt_llm_bls.tensorrt_llm_draft_model_name",
        LOST,
        "speculate within",
    ),
    ("tensorrt_llm_model_name", "llama", "tensorrt_llm_bls.tensorrt_llm_model_name", LOST, "called tensorrt_llm"),
    ("multimodal_encoders_name", "vit", "tensorrt_llm_bls.multimodal_encoders_name", LOST, "text alone"),
    ("cross_kv_cache_fraction", "0.5", "tensorrt_llm.cross_kv_cache_fraction", IMPLIED, "there is none"),
    ("lora_cache_host_memory_bytes", "9", "tensorrt_llm.lora_cache_host_memory_bytes", IMPLIED, "without LoRA"),
    (
        "max_queue_delay_microseconds",
        "500",
        "tensorrt_llm.dynamic_batching.max_queue_delay_microseconds",
        IMPLIED,
        "waits",
    ),
    ("bls_instance_count", "16", "tensorrt_llm_bls.instance_group.count", IMPLIED, "one process"),
]


@pytest.mark.parametrize(("placeholder", "value", "setting", "outcome", "words"), CASES)
def test_a_setting_has_its_class_and_its_reason(
    placeholder: str, value: str, setting: str, outcome: Outcome, words: str, tmp_path: Path
) -> None:
    result = imported(tmp_path, {placeholder: value})
    verdict = entry(result, setting).verdict
    assert (verdict.outcome, words in verdict.why) == (outcome, True), verdict


def test_the_largest_batch_of_all_models_is_carried(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old")
    ensemble = repository / "ensemble" / "config.pbtxt"
    ensemble.write_text(ensemble.read_text().replace("max_batch_size: 64", "max_batch_size: 300"))
    result = plan_import(repository, out=tmp_path / "new.yaml")
    assert result.deployment.triton.triton_max_batch_size == 300
    assert entry(result, "preprocessing.max_batch_size").verdict.why == "the largest of all models"


def test_an_engine_takes_the_first_gpus(tmp_path: Path) -> None:
    result = imported(tmp_path, {"gpu_device_ids": "0,1,2,3"}, engine=FOUR)
    assert entry(result, "tensorrt_llm.gpu_device_ids").verdict.outcome is IMPLIED
    assert (engine_of(result)["tp_size"], engine_of(result)["pp_size"]) == (2, 2)


def test_nodes_are_carried_as_gpus_of_each(tmp_path: Path) -> None:
    assert engine_of(imported(tmp_path, {"num_nodes": "2"}, engine=FOUR))["gpus_per_node"] == 2


def test_guides_of_the_python_backend_need_a_tokenizer_and_those_of_the_other_its_file(tmp_path: Path) -> None:
    backend = {"guided_decoding_backend": "xgrammar"}
    python = imported(tmp_path / "python", backend | {"triton_backend": "python"})
    assert engine_of(python)["guided_decoding_backend"] == "xgrammar"
    assert engine_of(python)["tokenizer_dir"] == str(TOKENIZER)
    native = imported(tmp_path / "native", backend | {"xgrammar_tokenizer_info_path": "/info.json"})
    assert engine_of(native)["guided_decoding_backend"] == "xgrammar"
    assert engine_of(native)["tokenizer_dir"] == str(TOKENIZER)


def test_requests_are_not_paused_where_there_are_guides_which_would_begin_anew(tmp_path: Path) -> None:
    policy = {"batch_scheduler_policy": "max_utilization"}
    assert engine_of(imported(tmp_path / "plain", policy))["capacity_scheduler_policy"] == "max_utilization"
    guided = {"guided_decoding_backend": "xgrammar", "triton_backend": "python"}
    result = imported(tmp_path / "guided", policy | guided)
    assert engine_of(result)["capacity_scheduler_policy"] == "guaranteed_no_evict"
    assert "a paused request anew" in entry(result, "tensorrt_llm.batch_scheduler_policy").verdict.why


SPECULATION: list[tuple[dict[str, str], Mapping[str, Any], dict[str, object]]] = [
    (
        {"decoding_mode": "medusa", "medusa_choices": "{0}, {0, 1}"},
        MEDUSA,
        {"method": "medusa", "max_draft_len": 63, "num_heads": 4, "choices": [[0], [0, 1]]},
    ),
    ({}, MEDUSA, {"method": "medusa", "max_draft_len": 63, "num_heads": 4}),
    (
        {"decoding_mode": "eagle", "eagle_choices": "[[0], [0, 1]]"},
        EAGLE,
        {"method": "eagle", "max_draft_len": 63, "num_layers": 1, "choices": [[0], [0, 1]]},
    ),
    (
        {
            "decoding_mode": "lookahead",
            "lookahead_window_size": "7",
            "lookahead_ngram_size": "6",
            "lookahead_verification_set_size": "5",
        },
        {"speculative_decoding_mode": "LOOKAHEAD_DECODING"},
        {"method": "lookahead", "window_size": 7, "ngram_size": 6, "verification_set_size": 5},
    ),
]


@pytest.mark.parametrize(("values", "engine", "speculation"), SPECULATION)
def test_speculation_within_the_engine_is_carried_whole(
    values: dict[str, str], engine: Mapping[str, Any], speculation: dict[str, object], tmp_path: Path
) -> None:
    result = imported(tmp_path, values, engine=engine)
    assert engine_of(result)["speculation"] == speculation
    assert lost(result) == []


@pytest.mark.parametrize(
    "key", ["lora_cache_optimal_adapter_size", "lora_cache_host_memory_bytes", "lora_prefetch_dir"]
)
def test_the_cache_of_adapters_is_named_where_the_engine_has_them(key: str, tmp_path: Path) -> None:
    result = imported(tmp_path, {key: "17"}, engine=LORA)
    assert lost(result) == [f"tensorrt_llm.{key}", "engine config.json: plugin_config.lora_plugin"]
    assert "engine.lora.dir" in entry(result, f"tensorrt_llm.{key}").verdict.why


ENGINES: list[tuple[str, Mapping[str, Any], str]] = [
    ("version", {"version": "1.3.0rc4"}, "has no such engines any more"),
    ("version", {"version": "0.21.0"}, "only TensorRT-LLM 0.21.0, which built it, can load it"),
    ("version", {"version": ""}, "does not say which TensorRT-LLM built it"),
    ("version", {"version": "main"}, "does not say which TensorRT-LLM built it"),
    ("mapping.world_size", {"pretrained": {"mapping": {"world_size": 2}}}, "is 1, not 2"),
    ("mapping.cp_size", {"pretrained": {"mapping": {"cp_size": 2, "world_size": 2}}}, "context parallelism"),
    ("kv_cache_type", {"kv_cache_type": "CONTINUOUS"}, "needs a paged KV cache"),
    ("kv_cache_type", {"plugin_config": {"paged_kv_cache": False}}, "needs a paged KV cache"),
    ("speculative_decoding_mode", {"speculative_decoding_mode": 2}, "cannot draft for such an engine"),
    ("max_prompt_embedding_table_size", {"max_prompt_embedding_table_size": 16}, "have clients leave it out"),
    ("architecture", {"pretrained": {"architecture": "DecoderModel"}}, "encoder and a decoder"),
    ("max_seq_len", {"max_seq_len": None}, "set engine.max_seq_len"),
    ("max_input_len", {"plugin_config": {"remove_input_padding": False}}, "lengths together are 1025 here, not 4096"),
]


@pytest.mark.parametrize(("key", "changes", "words"), ENGINES)
def test_what_the_engine_cannot_is_named(key: str, changes: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    result = imported(tmp_path, engine=changes)
    setting = f"engine config.json: {key}"
    assert lost(result) == [setting]
    assert words in entry(result, setting).verdict.why


NOT_PAGED = {"plugin_config": {"use_paged_context_fmha": False, "tokens_per_block": 64}}


def test_an_engine_without_paged_context_attention_is_served_without_what_needs_it(tmp_path: Path) -> None:
    values = {"enable_chunked_context": "true", "enable_kv_cache_reuse": "true"}
    result = imported(tmp_path, values, engine=NOT_PAGED)
    chunked = entry(result, "tensorrt_llm.enable_chunked_context").verdict
    assert (chunked.outcome, "TensorRT-LLM refuses to load it so" in chunked.why) == (LOST, True)
    reuse = entry(result, "tensorrt_llm.enable_kv_cache_reuse").verdict
    assert (reuse.outcome, reuse.fields) == (CARRIED, {"engine.is_block_reuse": False})
    engine = result.deployment.model.engine
    assert isinstance(engine, TensorRtEngineSpec)
    assert (engine.is_chunked_prefill, engine.is_block_reuse) == (False, False)
    assert fit_findings(engine) == []


def test_an_engine_that_gathers_context_logits_reuses_no_blocks(tmp_path: Path) -> None:
    result = imported(tmp_path, {"enable_kv_cache_reuse": "true"}, engine={"gather_context_logits": True})
    assert (
        "gather_context_logits, with which upstream leaves it off"
        in entry(result, "tensorrt_llm.enable_kv_cache_reuse").verdict.why
    )
    assert fit_findings(result.deployment.model.engine) == []


def test_log_probabilities_are_a_setting_of_the_load_and_no_matter_of_the_build(tmp_path: Path) -> None:
    found = entry(imported(tmp_path), "engine config.json: gather_generation_logits").verdict
    assert found.fields == {"engine.is_gathering_generation_logits": False}
    assert "return_log_probs is refused" in found.why
    assert "true, which any engine can be loaded with" in found.why


def test_without_packed_input_the_shorter_limit_is_written(tmp_path: Path) -> None:
    result = imported(tmp_path, engine={"plugin_config": {"remove_input_padding": False}})
    assert engine_of(result)["max_seq_len"] == 1025


def test_more_beams_than_the_engine_has_are_not_written(tmp_path: Path) -> None:
    result = imported(tmp_path, {"max_beam_width": "4"}, engine={"max_beam_width": 2})
    assert engine_of(result)["max_beam_width"] == 2


def test_a_rank_that_is_missing_or_too_many_is_named(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old")
    engine = write_engine_config(tmp_path / "engine", **FOUR)
    setting = "engine config.json: mapping.world_size"
    (engine / "rank2.engine").unlink()
    result = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine, tokenizer_dir=TOKENIZER)
    assert "has no rank2.engine; copy the engine whole" in entry(result, setting).verdict.why
    (engine / "rank2.engine").touch()
    (engine / "rank4.engine").touch()
    result = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine, tokenizer_dir=TOKENIZER)
    assert "has 1 rank files more than that" in entry(result, setting).verdict.why


def engine_with(build: dict[str, object]) -> CompiledEngine:
    return CompiledEngine(Path("config.json"), "1.2.1", {}, build)


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        (1, "none"),
        (2, "draft_tokens_external"),
        (4, "medusa"),
        (8, "lookahead_decoding"),
        (16, "explicit_draft_tokens"),
        (32, "eagle"),
        (64, "ngram"),
        ("SpeculativeDecodingMode.EAGLE", "eagle"),
        ("MEDUSA", "medusa"),
        (4096, "4096"),
    ],
)
def test_upstreams_flag_is_read_as_number_and_as_name(mode: object, word: str) -> None:
    assert engine_with({"speculative_decoding_mode": mode}).speculation == word


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot read"), ("{", "is not JSON"), ('{"model": 1}', "has no pretrained_config")],
)
def test_a_folder_that_holds_no_engine_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=message):
        load_compiled_engine(tmp_path)
    assert load_compiled_engine(tmp_path / "elsewhere") is None


def tokenizer_folder(folder: Path, vocab: object, **files: object) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("vocab", "files", "end_ids"),
    [
        ({"a": 0, "</s>": 7}, {"tokenizer_config": {"eos_token": "</s>"}}, [7]),
        ({"a": 0, "</s>": 7}, {"special_tokens_map": {"eos_token": {"content": "</s>"}}}, [7]),
        ([["a", 0.0], ["</s>", -1.0]], {"tokenizer_config": {"eos_token": "</s>"}}, [1]),
        ({"a": 0}, {"tokenizer_config": {"eos_token": "</s>"}}, None),
        ({"a": 0}, {}, None),
    ],
)
def test_a_text_ends_at_the_token_that_the_old_preprocessing_took(
    vocab: object, files: dict[str, object], end_ids: list[int] | None, tmp_path: Path
) -> None:
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", vocab, **files)
    engine = write_engine_config(tmp_path / "engine")
    repository = write_old_repository(tmp_path / "old")
    result = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine, tokenizer_dir=tokenizer)
    assert engine_of(result).get("end_ids") == end_ids
    assert lost(result) == ([] if end_ids else ["tokenizer: eos_token"])


def test_a_tokenizer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    vocab = {str(number): number for number in range(101)} | {"</s>": 101}
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", vocab, tokenizer_config={"eos_token": "</s>"})
    engine = write_engine_config(tmp_path / "engine", pretrained={"vocab_size": 100})
    repository = write_old_repository(tmp_path / "old", values={"tokenizer_dir": str(tokenizer)})
    result = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine)
    assert "102 tokens and the engine 100" in entry(result, "tokenizer: tokenizer.json").verdict.why
    (tokenizer / "tokenizer.json").unlink()
    result = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine)
    assert "save_pretrained" in entry(result, "tokenizer: tokenizer.json").verdict.why


def test_two_tokenizers_are_named(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old")
    config = repository / "postprocessing" / "config.pbtxt"
    config.write_text(config.read_text().replace("/old/models/llama", "/old/models/other"))
    result = plan_import(repository, out=tmp_path / "new.yaml")
    assert "/old/models/llama" in entry(result, "postprocessing.tokenizer_dir").verdict.why
    assert "postprocessing.tokenizer_dir" in lost(result)
