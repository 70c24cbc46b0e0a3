# SPDX-License-Identifier: Apache-2.0
"""Every setting of a filled `inflight_batcher_llm` repository, 0.17 to 1.2, is carried, implied or named as lost."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from old_repositories import (
    FIXED,
    PARAMETERS,
    USUAL,
    VERSIONS,
    Version,
    fill,
    placeholders,
    template,
    write_engine_config,
    write_old_repository,
)
from tritonclient.grpc import model_config_pb2

from build_engines.migration.import_report import Entry, Outcome
from build_engines.migration.importing import Import, name_of, plan_import
from build_engines.migration.tensor_contract import PICTURES
from ensemble_configs.releases.built_engine import engine_mismatches, load_built_engine
from ensemble_configs.render.model_configs import render_configs
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

TOKENIZER = CODE_ROOT / "examples" / "demo_model" / "target"

# A value for every placeholder that USUAL leaves, such as somebody might fill.
EVERYTHING = {
    "add_special_tokens": "False",
    "visual_model_path": "",
    "multimodal_model_path": "",
    "max_num_images": "1",
    "hf_model_path": "",
    "skip_special_tokens": "true",
    "encoder_engine_dir": "",
    "max_beam_width": "1",
    "max_tokens_in_paged_kv_cache": "8192",
    "max_attention_window_size": "2048,4096",
    "sink_token_length": "4",
    "batch_scheduler_policy": "max_utilization",
    "kv_cache_free_gpu_mem_fraction": "0.85",
    "cross_kv_cache_fraction": "0.5",
    "kv_cache_host_memory_bytes": "1073741824",
    "kv_cache_onboard_blocks": "true",
    "exclude_input_in_output": "True",
    "cancellation_check_period_ms": "50",
    "stats_check_period_ms": "200",
    "iter_stats_max_iterations": "100",
    "request_stats_max_iterations": "10",
    "enable_kv_cache_reuse": "false",
    "normalize_log_probs": "false",
    "enable_chunked_context": "true",
    "gpu_device_ids": "0",
    "participant_ids": "",
    "num_nodes": "1",
    "lora_cache_optimal_adapter_size": "8",
    "lora_cache_max_adapter_size": "16",
    "lora_cache_gpu_memory_fraction": "0.1",
    "lora_cache_host_memory_bytes": "4096",
    "lora_prefetch_dir": "/lora",
    "decoding_mode": "top_k_top_p",
    "lookahead_window_size": "7",
    "lookahead_ngram_size": "7",
    "lookahead_verification_set_size": "7",
    "medusa_choices": "{0, 0}, {1}",
    "eagle_choices": "{0, 0}, {1}",
    "gpu_weights_percent": "1.0",
    "enable_context_fmha_fp32_acc": "true",
    "multi_block_mode": "false",
    "cuda_graph_mode": "true",
    "cuda_graph_cache_size": "32",
    "speculative_decoding_fast_logits": "false",
    "guided_decoding_backend": "xgrammar",
    "xgrammar_tokenizer_info_path": "/old/info.json",
    "enable_trt_overlap": "false",
    "accumulate_tokens": "True",
    "tensorrt_llm_model_name": "tensorrt_llm",
    "tensorrt_llm_draft_model_name": "",
    "multimodal_encoders_name": "",
    "max_queue_size": "0",
}


def version_id(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def imported(
    folder: Path,
    values: Mapping[str, str] | None = None,
    *,
    version: Version = VERSIONS[-1],
    is_usual: bool = True,
    engine: Mapping[str, Any] | None = None,
) -> Import:
    """Import a repository of a release, filled with `values`, with an engine of that release."""
    repository = write_old_repository(folder / "old", version, values or {}, is_usual=is_usual)
    settings: dict[str, Any] = {"version": f"{version_id(version)}.1"} | dict(engine or {})
    engine_dir = write_engine_config(folder / "engine", **settings)
    return plan_import(repository, out=folder / "new.yaml", engine_dir=engine_dir, tokenizer_dir=TOKENIZER)


def entry(result: Import, setting: str) -> Entry:
    [found] = [entry for entry in result.report.entries if entry.setting == setting]
    return found


def lost(result: Import) -> list[str]:
    return [entry.setting for entry in result.report.of(Outcome.LOST)]


@pytest.mark.parametrize("version", VERSIONS, ids=version_id)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["usual", "everything"])
def test_each_placeholder_of_each_release_is_in_exactly_one_class(
    version: Version, values: dict[str, str], tmp_path: Path
) -> None:
    result = imported(tmp_path, values, version=version)
    counted = Counter(entry.setting for entry in result.report.entries)
    assert [name for name, count in counted.items() if count > 1] == []
    wanted = [setting for named in placeholders(version).values() for setting in named.values()]
    fixed = [f"{model}.{key}" for model, keys in FIXED.items() for key in keys]
    assert {name: counted[name] for name in wanted + fixed} == dict.fromkeys(wanted + fixed, 1)


@pytest.mark.parametrize("version", VERSIONS, ids=version_id)
def test_what_nobody_filled_is_upstreams_default_and_is_said_so(version: Version, tmp_path: Path) -> None:
    result = imported(tmp_path, version=version)
    for model, named in placeholders(version).items():
        for placeholder, setting in named.items():
            is_filled = placeholder in USUAL or placeholder.startswith("max_queue_")
            found = entry(result, setting)
            assert (found.note == "not filled") is not is_filled, (model, placeholder)
            assert is_filled or found.verdict.why, "the default, or why there is none"
    engine = result.deployment.model.engine
    assert isinstance(engine, TensorRtEngineSpec)
    assert (engine.free_gpu_memory_fraction, engine.max_beam_width, engine.is_chunked_prefill) == (0.9, 1, False)
    assert engine.is_block_reuse is (version >= (0, 19)), "upstream turned it on in 0.19"


@pytest.mark.parametrize("version", VERSIONS, ids=version_id)
def test_a_usual_repository_loses_nothing_but_an_engine_that_has_to_be_built_again(
    version: Version, tmp_path: Path
) -> None:
    result = imported(tmp_path, version=version)
    assert lost(result) == ([] if version == (1, 2) else ["engine config.json: version"])


@pytest.mark.parametrize("version", VERSIONS, ids=version_id)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["usual", "everything"])
def test_the_deployment_is_valid_and_is_what_the_file_says(
    version: Version, values: dict[str, str], tmp_path: Path
) -> None:
    result = imported(tmp_path, values, version=version)
    (tmp_path / "new.yaml").write_text(result.text)
    assert load_deployment(tmp_path / "new.yaml") == result.deployment


def test_every_value_goes_where_the_report_says(tmp_path: Path) -> None:
    result = imported(tmp_path, EVERYTHING)
    data = yaml.safe_load(result.text)
    assert data["tokenizer"] == {"dir": str(TOKENIZER), "add_special_tokens": False, "skip_special_tokens": True}
    assert data["responses"] == {"exclude_input_in_output": True}
    assert data["bls"] == {"accumulate_tokens": True}
    assert data["triton"] == {"triton_max_batch_size": 64}
    assert data["engine"] == {
        "provider": "tensorrt",
        "dir": str(tmp_path / "engine"),
        "max_seq_len": 4096,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 8192,
        "tp_size": 1,
        "pp_size": 1,
        "num_kv_blocks": 128,  # 8192 tokens in blocks of 64
        "free_gpu_memory_fraction": 0.85,
        "host_cache_bytes": 2**30,
        "is_block_reuse": False,
        "max_attention_window": [2048, 4096],
        "sink_tokens": 4,
        "is_chunked_prefill": True,
        "capacity_scheduler_policy": "guaranteed_no_evict",  # for guides
        "tokenizer_dir": str(TOKENIZER),
        "max_beam_width": 1,
        "end_ids": [1],
        "guided_decoding_backend": "xgrammar",
        "is_gathering_generation_logits": False,
        "is_gathering_context_logits": False,
        "is_normalizing_log_probs": False,
        "perf_knobs": {
            "is_multi_block": False,
            "is_context_fmha_fp32_acc": True,
            "is_cuda_graph": True,
            "cuda_graph_cache_size": 32,
        },
    }
    for found in result.report.of(Outcome.CARRIED):
        value: Any = data
        for name in found.verdict.where.split("."):
            value = value[name]
        assert found.verdict.fields[found.verdict.where] == value, found


@pytest.mark.parametrize("version", VERSIONS, ids=version_id)
def test_a_repository_that_nobody_filled_is_read_to_the_end(version: Version, tmp_path: Path) -> None:
    # Triton cannot parse these: placeholders stand where numbers, words and types belong.
    repository = write_old_repository(tmp_path / "old", version, is_usual=False)
    with pytest.raises(text_format.ParseError):
        text_format.Parse((repository / "tensorrt_llm" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    with pytest.raises(SpecError, match="names no engine; name its folder with --engine-dir"):
        plan_import(repository, out=tmp_path / "new.yaml")
    result = imported(tmp_path, version=version, is_usual=False)
    for named in placeholders(version).values():
        for placeholder, setting in named.items():
            filled_by_script = {"max_queue_size"} | ({"max_queue_delay_microseconds"} if version >= (0, 19) else set())
            assert (entry(result, setting).note == "not filled") is (placeholder not in filled_by_script), setting
    assert [name for name in lost(result) if "version" not in name] == ["tensorrt_llm.decoupled"]


@pytest.mark.parametrize("mode", ["True", "False"])
def test_a_repository_streams_or_answers_once_as_it_did(mode: str, tmp_path: Path) -> None:
    result = imported(tmp_path, {"decoupled_mode": mode})
    assert result.deployment.model.decoupled is (mode == "True")
    assert [name for name in lost(result) if "decoupled" in name] == []


def test_models_that_differ_in_their_policy_are_all_as_the_engines(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old", values={"decoupled_mode": "False"})
    bls = repository / "tensorrt_llm_bls" / "config.pbtxt"
    bls.write_text(
        bls.read_text().replace("decoupled: false", "decoupled: true").replace("decoupled: False", "decoupled: True")
    )
    engine = write_engine_config(tmp_path / "engine")
    result = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine, tokenizer_dir=TOKENIZER)
    assert result.deployment.model.decoupled is False
    assert "tensorrt_llm_bls.decoupled" in lost(result)
    assert "all models are as tensorrt_llm, which is False" in entry(result, "tensorrt_llm_bls.decoupled").verdict.why


def test_templates_are_filled_as_upstreams_script_fills_them() -> None:
    text = template("tensorrt_llm", (1, 2))
    filled = fill(text, r"gpu_device_ids:0\,1,max_beam_width:4,engine_dir:/a b")
    assert 'string_value: "0,1"' in filled
    assert 'string_value: "4"' in filled
    assert 'string_value: "/a b"' in filled
    assert "max_queue_size: 0" in filled
    assert "max_batch_size: ${triton_max_batch_size}" in filled
    assert "max_queue_delay_microseconds: ${" in fill(template("tensorrt_llm", (0, 17)), "", version=(0, 17))


@pytest.mark.parametrize("version", VERSIONS, ids=version_id)
@pytest.mark.parametrize("model", PARAMETERS)
def test_every_tensor_of_theirs_is_ours_with_the_same_type_and_dims(
    model: str, version: Version, tmp_path: Path
) -> None:
    result = imported(tmp_path, version=version)
    old = text_format.Parse((tmp_path / "old" / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    text = render_configs(result.deployment.model, result.deployment.triton, source="new.yaml")[model]
    new = text_format.Parse(text, model_config_pb2.ModelConfig())
    for theirs, ours in ((old.input, new.input), (old.output, new.output)):
        declared = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in ours}
        promised = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in theirs}
        missing = promised.keys() - declared.keys()
        # The exceptions, by name: pictures and videos of preprocessing.
        assert missing <= (PICTURES if model == "preprocessing" else set())
        assert {name: declared[name] for name in promised.keys() - missing} == {
            name: promised[name] for name in promised.keys() - missing
        }


VALUES = st.sampled_from(
    ("", "0", "-1", "1", "7", "0.0", "0.5", "1.0", "2", "1e9", "nan", "inf", "true", "False", "x", "0,1", "-1,0", "1;2",
     "{0}, {1}", "medusa", "eagle", "lookahead", "xgrammar", "max_utilization", "/a/b", "${x}", "é", " ", "1_000")
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@settings(max_examples=60)
@given(values=st.dictionaries(st.sampled_from(sorted(EVERYTHING)), VALUES, max_size=12))
def test_whatever_is_filled_the_deployment_is_valid_and_nothing_goes_missing(
    folder: Path, values: dict[str, str]
) -> None:
    values = {name: value for name, value in values.items() if not (name == "max_queue_size" and not value.isdigit())}
    result = imported(folder, values)
    (folder / "random.yaml").write_text(result.text)
    spec = load_deployment(folder / "random.yaml")
    data = spec.model.model_dump() | {"triton": spec.triton.model_dump()}
    counted = Counter(entry.setting for entry in result.report.entries)
    wanted = [setting for named in placeholders((1, 2)).values() for setting in named.values()]
    assert {name: counted[name] for name in wanted} == dict.fromkeys(wanted, 1)
    for found in result.report.of(Outcome.CARRIED):
        value: Any = data
        for name in found.verdict.where.split("."):
            value = value[name]
        assert value is not None, found


@pytest.mark.parametrize(
    ("placeholder", "value", "words"),
    [
        (
            "kv_cache_free_gpu_mem_fraction",
            "0.0",
            "engine.free_gpu_memory_fraction refuses it: Input should be greater",
        ),
        ("max_beam_width", "0", ""),
        ("sink_token_length", "-1", "engine.sink_tokens refuses it"),
        ("kv_cache_host_memory_bytes", "-1", "engine.host_cache_bytes refuses it"),
        ("cuda_graph_cache_size", "-1", "engine.perf_knobs.cuda_graph_cache_size refuses it"),
        ("max_attention_window_size", "2048,0", ""),
    ],
)
def test_a_value_that_no_deployment_may_have_is_named(placeholder: str, value: str, words: str, tmp_path: Path) -> None:
    result = imported(tmp_path, {placeholder: value})
    found = entry(result, f"tensorrt_llm.{placeholder}").verdict
    assert (found.outcome, words in found.why) == (
        Outcome.CARRIED if placeholder == "max_beam_width" else Outcome.LOST,
        True,
    )


def test_a_parameter_that_upstream_never_had_is_named(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old")
    config = repository / "tensorrt_llm" / "config.pbtxt"
    more = 'parameters { key: "my_flag" value { string_value: "7" } }\nversion_policy { latest { num_versions: 2 } }\n'
    config.write_text(config.read_text() + more)
    result = plan_import(repository, out=tmp_path / "new.yaml")
    assert entry(result, "tensorrt_llm.my_flag").verdict.outcome is Outcome.LOST
    assert entry(result, "tensorrt_llm.version_policy.latest.num_versions").value == "2"
    assert {"tensorrt_llm.my_flag", "tensorrt_llm.version_policy.latest.num_versions"} <= set(lost(result))


def test_models_and_steps_of_ones_own_are_named(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old")
    (repository / "guard").mkdir()
    (repository / "guard" / "config.pbtxt").write_text('name: "guard"\nbackend: "python"\nmax_batch_size: 1\n')
    ensemble = repository / "ensemble" / "config.pbtxt"
    ensemble.write_text(ensemble.read_text().replace('model_name: "postprocessing"', 'model_name: "guard"'))
    result = plan_import(repository, out=tmp_path / "new.yaml")
    assert {"guard", "ensemble.ensemble_scheduling"} <= set(lost(result))


@pytest.mark.parametrize(
    ("old", "new", "setting", "why"),
    [
        ("TYPE_UINT64", "TYPE_INT64", "ensemble.input seed", "TYPE_UINT64 here"),
        ('name: "seed"', 'name: "sprout"', "ensemble.input sprout", "no such tensor here"),
        ("dims: [-1, 3]", "dims: [3]", "ensemble.input lora_config", r"dims [-1, 3] here, not [3]"),
    ],
)
def test_a_tensor_of_ones_own_is_named(old: str, new: str, setting: str, why: str, tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old")
    config = repository / "ensemble" / "config.pbtxt"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    result = plan_import(repository, out=tmp_path / "new.yaml")
    assert why in entry(result, setting).verdict.why
    assert setting in lost(result)


def test_folders_of_another_machine_are_kept_and_said_so(tmp_path: Path) -> None:
    result = plan_import(write_old_repository(tmp_path / "old"), out=tmp_path / "new.yaml")
    data = yaml.safe_load(result.text)
    assert (data["engine"]["dir"], data["tokenizer"]["dir"]) == ("/old/engines/llama", "/old/models/llama")
    for setting in ("tensorrt_llm.gpt_model_path", "preprocessing.tokenizer_dir"):
        assert "is not on this machine; kept as it is" in entry(result, setting).verdict.why
    assert lost(result) == ["tokenizer: eos_token", "engine config.json"], "what only the folders tell is named"


def test_an_engine_without_the_models_around_it_is_enough(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old", models=["tensorrt_llm"])
    with pytest.raises(SpecError, match="names no tokenizer; name its folder with --tokenizer-dir"):
        plan_import(repository, out=tmp_path / "new.yaml")
    engine = write_engine_config(tmp_path / "engine")
    result = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine, tokenizer_dir=TOKENIZER)
    assert (result.deployment.model.tokenizer.dir, lost(result)) == (TOKENIZER, [])


def test_log_probabilities_are_a_setting_of_the_deployment_and_not_of_the_build(tmp_path: Path) -> None:
    result = imported(tmp_path)
    why = entry(result, "engine config.json: gather_generation_logits").verdict.why
    assert "set true, which any engine can be loaded with" in why
    engine, built = result.deployment.model.engine, load_built_engine(tmp_path / "engine")
    assert isinstance(engine, TensorRtEngineSpec)
    gathering = engine.model_copy(update={"is_gathering_generation_logits": True})
    assert list(engine_mismatches(gathering, built)) == list(engine_mismatches(engine, built)) == []


def test_the_report_in_the_documentation_is_one_that_the_import_writes(tmp_path: Path) -> None:
    values = {"decoupled_mode": "False", "kv_cache_free_gpu_mem_fraction": "0.85", "max_queue_size": "128"}
    report = imported(tmp_path, values | {"normalize_log_probs": "true"}).report.to_text()
    document = (CODE_ROOT / "docs" / "migration.md").read_text()
    [sample] = [block for block in document.split("```") if "carried into the deployment" in block]
    shown = re.sub(r"\n  (?=model; )", " ", sample)  # the document breaks long lines
    missing = [line for line in shown.splitlines() if line and line not in report.splitlines()]
    assert missing == []


def test_the_old_repository_is_not_touched(tmp_path: Path) -> None:
    repository = write_old_repository(tmp_path / "old")
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    plan_import(repository, out=tmp_path / "new.yaml")
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no tensorrt_llm/config.pbtxt"),
        ("name: [", "is not a model's config.pbtxt"),
        ("\udcff", "cannot read"),
    ],
)
def test_what_is_no_repository_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "tensorrt_llm").mkdir()
        (tmp_path / "tensorrt_llm" / "config.pbtxt").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SpecError, match=message):
        plan_import(tmp_path, out=tmp_path / "new.yaml")


@pytest.mark.parametrize(
    ("file", "name"), [("Llama-3.1 8B.yaml", "llama_3_1_8b"), ("7b.yaml", "imported_7b"), ("é.yaml", "imported")]
)
def test_a_deployment_is_named_for_its_file(file: str, name: str) -> None:
    assert name_of(Path("x") / file) == name
