# SPDX-License-Identifier: Apache-2.0
"""Every argument and tensor of an `llmapi` repository is carried, implied or named as lost."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from old_repositories import write_llmapi_repository
from test_migration import TOKENIZER, entry, lost
from trtllm_generator import load_facts

from build_engines.migration import llmapi_arguments
from build_engines.migration.import_report import Outcome
from build_engines.migration.importing import Import, plan_import
from build_engines.migration.llmapi_tensors import INPUTS, OUTPUTS
from ensemble_configs.render.tensors import inputs_of, outputs_of
from ensemble_configs.spec import llm_argument_rows
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from trireme.base.errors import SpecError

FACTS = load_facts("1.2.1")["llm_args"]["classes"]

# What the template of each release fills, as its comments ask for.
TEMPLATES: dict[str, dict[str, Any]] = {
    "0.19": {
        "model": "/old/llama",
        "backend": "pytorch",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "pytorch_backend_config": {"use_cuda_graph": False},
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    },
    "1.2": {
        "model": "/old/llama",
        "backend": "pytorch",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "triton_config": {"max_batch_size": 0, "decoupled": True, "cancellation_check_period_ms": 50},
    },
}
TENSORS = ["tensorrt_llm.input text_input", "tensorrt_llm.output text_output"]


def imported(folder: Path, model: Mapping[str, Any], **options: Any) -> Import:
    repository = write_llmapi_repository(folder / "old", model)
    return plan_import(repository, out=folder / "new.yaml", **options)


def engine_of(result: Import) -> dict[str, Any]:
    data = yaml.safe_load(result.text)["engine"]
    assert isinstance(data, dict)
    return data


def flat(arguments: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}.{key}" if key else name
        for name, value in arguments.items()
        for key in (value if isinstance(value, dict) else [""])
    ]


@pytest.mark.parametrize("release", TEMPLATES)
def test_each_argument_of_each_release_is_in_exactly_one_class(release: str, tmp_path: Path) -> None:
    result = imported(tmp_path, TEMPLATES[release])
    counted = Counter(found.setting for found in result.report.entries)
    assert [name for name, count in counted.items() if count > 1] == []
    assert {f"model.yaml: {name}" for name in flat(TEMPLATES[release])} <= counted.keys()
    assert lost(result) == ["model.yaml: max_seq_len", *TENSORS], "the checkpoint is not here to tell its length"


def test_upstreams_defaults_are_written_where_ours_differ(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"max_position_embeddings": 131072}')
    result = imported(tmp_path, TEMPLATES["1.2"] | {"model": str(tmp_path / "llama")}, tokenizer_dir=TOKENIZER)
    assert engine_of(result) == {
        "provider": "pytorch",
        "dir": str(tmp_path / "llama"),
        "max_seq_len": 131072,
        "max_num_seqs": 2048,
        "max_num_batched_tokens": 8192,
        "tp_size": 4,
        "pp_size": 2,
        "is_chunked_prefill": False,
    }
    assert str(result.deployment.model.tokenizer.dir) == str(TOKENIZER)
    assert result.deployment.model.responses.exclude_input_in_output, "llmapi sends no prompt back unless asked"
    assert lost(result) == TENSORS


def test_cuda_graphs_of_0_19_are_off_unless_said(tmp_path: Path) -> None:
    assert engine_of(imported(tmp_path, TEMPLATES["0.19"]))["is_cuda_graph"] is False
    unsaid = TEMPLATES["0.19"] | {"pytorch_backend_config": {"kv_cache_dtype": "fp8"}}
    result = imported(tmp_path, unsaid)
    assert (engine_of(result)["is_cuda_graph"], engine_of(result)["kv_cache_dtype"]) == (False, "fp8")


def test_every_argument_of_1_2_is_known_and_its_default_loses_nothing(tmp_path: Path) -> None:
    fields = FACTS["BaseLlmArgs"]["fields"] | FACTS["TorchLlmArgs"]["fields"]
    defaults = {
        name: field.get("default") for name, field in fields.items() if name not in {"model", "tokenizer", "backend"}
    }
    plain = {name: value for name, value in defaults.items() if not str(value).endswith("()") and value != {}}
    plain["load_format"] = "auto"
    result = imported(tmp_path, {"model": "/old/llama", **plain, "max_seq_len": 100})
    assert lost(result) == TENSORS
    counted = Counter(found.setting for found in result.report.entries)
    assert {name: counted[f"model.yaml: {name}"] for name in plain} == dict.fromkeys(plain, 1)


@pytest.mark.parametrize("name", sorted(llmapi_arguments.DEFAULTS.keys() - llmapi_arguments.INSTEAD))
def test_an_argument_without_a_field_is_passed_on_as_it_is(name: str, tmp_path: Path) -> None:
    section, _, key = name.rpartition(".")
    arguments = {"model": "/old/llama", "max_seq_len": 9, section or name: {key: "odd"} if section else "odd"}
    if section == "cache_transceiver_config":
        arguments[section] = {key: "odd", "backend": "nixl"}
    result = imported(tmp_path, arguments)
    assert engine_of(result)["extra_llm_args"] == ({section: {key: "odd"}} if section else {name: "odd"})


@pytest.mark.parametrize("name", sorted(llmapi_arguments.INSTEAD.keys() - {"load_format"}))
def test_an_argument_without_a_field_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    section, _, key = name.rpartition(".")
    value: object = {"odd": 1} if name in llmapi_arguments.SECTIONS else "odd"
    arguments = {"model": "/old/llama", "max_seq_len": 9, section or name: {key: value} if section else value}
    if name == "multimodal":
        arguments = {"model": "/old/llama", "max_seq_len": 9, "triton_config": {"multimodal": True}}
        name = "triton_config.multimodal"
    result = imported(tmp_path, arguments)
    [found] = [found for found in result.report.of(Outcome.LOST) if found.setting.startswith(f"model.yaml: {name}")]
    assert found.verdict.why


def test_an_argument_that_upstream_does_not_have_is_named(tmp_path: Path) -> None:
    result = imported(tmp_path, {"model": "/old/llama", "max_seq_len": 9, "warp": 9})
    assert "model.yaml: warp" in lost(result)


def test_names_are_those_that_serving_hands_to_upstream() -> None:
    """Check that the import is the inverse of `ensemble_configs.spec.llm_argument_rows`, row by row."""
    module = llm_argument_rows
    tables = {
        "": (*module.LLM, *module.LLM_OF_PYTORCH),
        "kv_cache_config.": (*module.KV_CACHE, *module.KV_CACHE_OF_PYTORCH),
        "scheduler_config.": module.SCHEDULER,
        "moe_config.": module.MOE,
    }
    rows = {f"{prefix}{row.argument}": row.field for prefix, table in tables.items() for row in table}
    rows |= {
        f"cache_transceiver_config.{row.argument}": f"cache_transceiver.{row.field}" for row in module.CACHE_TRANSCEIVER
    }
    by_hand = {"model", "tokenizer", "guided_decoding_backend", "max_input_len"}
    carried = {name: argument.field for name, argument in llmapi_arguments.CARRIED.items()}
    assert {name: carried[name] for name in rows.keys() - by_hand} == {
        name: rows[name] for name in rows.keys() - by_hand
    }
    assert carried.keys() - rows.keys() == {name for name in carried if name.startswith("pytorch_backend_config.")}
    for method, fields in llmapi_arguments.SPECULATION.values():
        known = {row.argument: row.field for row in module.SPECULATION[method][1]}
        assert {name: field for name, field in fields.items() if name != "speculative_model_dir"} == known


CASES: list[tuple[dict[str, Any], str, object]] = [
    ({"kv_cache_config": {"max_tokens": 640, "tokens_per_block": 64}}, "num_kv_blocks", 10),
    ({"kv_cache_config": {"max_tokens": 640}}, "num_kv_blocks", 20),
    ({"kv_cache_config": {"free_gpu_memory_fraction": 0.5}}, "free_gpu_memory_fraction", 0.5),
    ({"kv_cache_config": {"enable_block_reuse": False}}, "is_block_reuse", False),
    ({"cuda_graph_config": None}, "is_cuda_graph", False),
    ({"cuda_graph_config": {"batch_sizes": [1, 2]}}, "extra_llm_args", {"cuda_graph_config": {"batch_sizes": [1, 2]}}),
    ({"disable_overlap_scheduler": True}, "is_overlap_scheduler", False),
    ({"sampler_type": "TRTLLMSampler"}, "sampler", "trtllm"),
    ({"sampler_type": "auto"}, "sampler", "torch"),
    ({"moe_config": {"backend": "DEEPGEMM"}}, "moe_backend", "deepgemm"),
    (
        {"scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}},
        "capacity_scheduler_policy",
        "max_utilization",
    ),
    (
        {"scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}, "guided_decoding_backend": "xgrammar"},
        "capacity_scheduler_policy",
        "guaranteed_no_evict",
    ),
    ({"cache_transceiver_config": {"backend": "NIXL"}}, "cache_transceiver", {"backend": "nixl"}),
    ({"guided_decoding_backend": "llguidance"}, "tokenizer_dir", "/old/llama"),
    (
        {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}},
        "speculation",
        {"method": "ngram", "max_draft_len": 4, "max_matching_ngram_size": 3},
    ),
    (
        {"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 4, "speculative_model_dir": "/old/eagle"}},
        "speculation",
        {"method": "eagle3", "max_draft_len": 4, "dir": "/old/eagle"},
    ),
    (
        {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 3}},
        "speculation",
        {"method": "mtp", "num_nextn_predict_layers": 3},
    ),
]


@pytest.mark.parametrize(("arguments", "field", "value"), CASES)
def test_an_argument_is_carried(arguments: dict[str, Any], field: str, value: object, tmp_path: Path) -> None:
    result = imported(tmp_path, {"model": "/old/llama", "max_seq_len": 4096} | arguments)
    assert engine_of(result)[field] == value
    assert isinstance(result.deployment.model.engine, PyTorchEngineSpec)
    assert lost(result) == TENSORS


LOST: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "TinyLlama/TinyLlama-1.1B"}, "model.yaml: model", "a name at a hub"),
    ({"backend": "_autodeploy"}, "model.yaml: backend", "provider pytorch is written"),
    ({"backend": "tensorrt"}, "model.yaml: backend", "its own inflight_batcher_llm repository"),
    ({"speculative_config": {"decoding_type": "Medusa"}}, "model.yaml: speculative_config", "see engine.speculation"),
]


@pytest.mark.parametrize(("arguments", "setting", "words"), LOST)
def test_what_cannot_be_carried_is_named(arguments: dict[str, Any], setting: str, words: str, tmp_path: Path) -> None:
    result = imported(tmp_path, {"model": "/old/llama", "max_seq_len": 9} | arguments)
    assert setting in lost(result)
    assert words in entry(result, setting).verdict.why


def test_a_server_of_unary_clients_stays_one(tmp_path: Path) -> None:
    policy = {"triton_config": {"max_batch_size": 0, "decoupled": False}}
    result = imported(tmp_path, {"model": "/old/llama", "max_seq_len": 9} | policy)
    assert result.deployment.model.decoupled is False


def test_every_tensor_of_llmapi_is_told_its_name_here(tmp_path: Path) -> None:
    ours = {name for name, _ in (*inputs_of("ensemble"), *outputs_of("ensemble"))}
    assert {name for name in (*INPUTS.values(), *OUTPUTS.values()) if name} <= ours
    repository = write_llmapi_repository(tmp_path / "old", TEMPLATES["1.2"], inputs=["sampling_param_top_p", "my_own"])
    result = plan_import(repository, out=tmp_path / "new.yaml")
    assert "have clients send top_p" in entry(result, "tensorrt_llm.input sampling_param_top_p").verdict.why
    assert "no such tensor here" in entry(result, "tensorrt_llm.input my_own").verdict.why


def test_models_beside_it_and_parameters_of_ones_own_are_named(tmp_path: Path) -> None:
    repository = write_llmapi_repository(tmp_path / "old", TEMPLATES["1.2"])
    config = repository / "tensorrt_llm" / "config.pbtxt"
    more = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "0,1;2,3" }} }}\n' for key in ("gpu_device_ids", "mine")
    )
    config.write_text(config.read_text() + more)
    (repository / "guard").mkdir()
    (repository / "guard" / "config.pbtxt").write_text('name: "guard"\n')
    result = plan_import(repository, out=tmp_path / "new.yaml")
    assert {"tensorrt_llm.gpu_device_ids", "tensorrt_llm.mine", "guard"} <= set(lost(result))


@pytest.mark.parametrize(("text", "message"), [("- 1", "must hold the LLM's arguments"), ("a: [", "cannot read")])
def test_a_model_yaml_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    repository = write_llmapi_repository(tmp_path / "old", TEMPLATES["1.2"])
    (repository / "tensorrt_llm" / "1" / "model.yaml").write_text(text)
    with pytest.raises(SpecError, match=message):
        plan_import(repository, out=tmp_path / "new.yaml")
