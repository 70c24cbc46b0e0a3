# SPDX-License-Identifier: Apache-2.0
"""Settings without a field in a deployment go to upstream as they are, checked by the names that were read of it."""

import contextlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from demo_release import write_gpu_release
from fake_tensorrt_llm import fake_tensorrt_llm, write_checkpoint, write_engine
from pydantic import TypeAdapter, ValidationError
from trtllm_behaviour import Executor

from ensemble_configs.changes.deployment_diff import compare
from ensemble_configs.releases.machine import Gpu, Machine
from ensemble_configs.releases.preflight import check_release
from ensemble_configs.render.release_file import load_release
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.trtllm_facts import DATA, facts_note, facts_of, known_facts
from scripts import trtllm_names
from serving.engines.providers import create_engine
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

TOKENIZER = CODE_ROOT / "examples/demo_model/tokenizer"
L4 = Gpu(name="NVIDIA L4", sm=89, memory_bytes=24 * 2**30, free_bytes=23 * 2**30)
WHOLE = {
    "kv_cache_config": {"event_buffer_max_size": 1024, "copy_on_partial_reuse": False},
    "cuda_graph_config": {"enable_padding": True},
    "attn_backend": "FLASHINFER",
    "env_overrides": None,
}


def engine_of(provider: str = "pytorch", **changes: Any) -> EngineSpec:
    data = {"provider": provider, "dir": "model"} | changes
    return TypeAdapter[EngineSpec](EngineSpec).validate_python(data)


def args_of(folder: Path, version: str = "1.2.1", provider: str = "pytorch", **changes: Any) -> Any:
    """Return the arguments that upstream has made."""
    write = {"pytorch": write_checkpoint, "tensorrt": write_engine}[provider]
    spec = engine_of(provider, dir=write(folder / "model"), **changes)
    with fake_tensorrt_llm(version):
        create_engine(spec).close()
    return Executor.created[-1].args


# As it is


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc29"])
def test_arguments_reach_upstream_as_they_are_and_beside_ours(tmp_path: Path, version: str) -> None:
    args = args_of(tmp_path, version, extra_llm_args=WHOLE, free_gpu_memory_fraction=0.5)
    kv_cache = args.kv_cache_config
    assert (kv_cache.event_buffer_max_size, kv_cache.copy_on_partial_reuse) == (1024, False)
    assert (kv_cache.free_gpu_memory_fraction, args.attn_backend) == (0.5, "FLASHINFER")
    assert args.cuda_graph_config.enable_padding is True
    assert "env_overrides" in args.model_fields_set


def test_a_compiled_engine_takes_them_too(tmp_path: Path) -> None:
    knobs = {"kv_cache_config": {"secondary_offload_min_priority": 30}, "batching_type": "STATIC"}
    args = args_of(tmp_path, provider="tensorrt", extra_llm_args=knobs)
    assert (args.kv_cache_config.secondary_offload_min_priority, args.batching_type) == (30, "STATIC")


def test_a_part_of_its_own_and_one_beside_a_field_of_ours_are_passed_on(tmp_path: Path) -> None:
    extra = {
        "peft_cache_config": {"host_cache_size": 2**30},
        "speculative_config": {"max_concurrency": 8},
        "scheduler_config": {"waiting_queue_policy": "priority"},
    }
    speculation = {"method": "ngram", "max_draft_len": 3, "max_matching_ngram_size": 2}
    args = args_of(tmp_path, "1.3.0rc29", extra_llm_args=extra, speculation=speculation)
    assert args.peft_cache_config.host_cache_size == 2**30
    assert (args.speculative_config.max_concurrency, args.speculative_config.max_draft_len) == (8, 3)
    assert args.scheduler_config.waiting_queue_policy == "priority"


def test_a_value_that_upstream_refuses_is_upstreams_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"refuses KvCacheConfig: .*event_buffer_max_size Input should be a valid int"):
        args_of(tmp_path, extra_llm_args={"kv_cache_config": {"event_buffer_max_size": "many"}})
    with pytest.raises(SpecError, match=r"cannot load .*stream_interval"):
        args_of(tmp_path, extra_llm_args={"stream_interval": "often"})


# What is refused without upstream


REFUSED: list[tuple[str, Mapping[str, Any], dict[str, Any], str]] = [
    ("pytorch", {"tensor_parallel_size": 2}, {}, "tensor_parallel_size is what engine.tp_size says; set that"),
    ("pytorch", {"model": "x"}, {}, "model is what engine.dir says; set that"),
    ("pytorch", {"max_batch_size": 9}, {}, "max_batch_size is what engine.max_num_seqs says"),
    ("pytorch", {"backend": "tensorrt"}, {}, "backend is what engine.provider says"),
    (
        "pytorch",
        {"kv_cache_config": {"enable_block_reuse": False}},
        {},
        "kv_cache_config.enable_block_reuse is what engine.is_block_reuse says",
    ),
    ("pytorch", {"kv_cache_config": {"max_tokens": 9}}, {}, "max_tokens is what engine.num_kv_blocks says"),
    ("pytorch", {"trust_remote_code": True}, {}, "trust_remote_code is never set: no code from a checkpoint is run"),
    ("pytorch", {"enable_iter_perf_stats": False}, {}, "enable_iter_perf_stats is always on"),
    ("pytorch", {"cuda_graph_config": {}}, {"is_cuda_graph": False}, "cuda_graph_config is what engine.is_cuda_graph"),
    ("pytorch", {"speculative_config": {"decoding_type": "SA"}}, {}, "speculative_config needs engine.speculation"),
    ("pytorch", {"lora_config": {}}, {}, "lora_config needs engine.lora"),
    ("pytorch", {"lora_config": {"lora_dir": []}}, {"lora": {"dir": "x"}}, "lora_dir is what engine.lora.dir says"),
    (
        "pytorch",
        {"speculative_config": {"max_draft_len": 9}},
        {"speculation": {"method": "mtp"}},
        "max_draft_len is what engine.speculation.num_nextn_predict_layers says",
    ),
    ("pytorch", {"kv_cache_config": None}, {}, "kv_cache_config must be a mapping"),
    (
        "pytorch",
        {"kv_cache_config.use_uvm": True},
        {},
        r"must be nested, as upstream has it: kv_cache_config: {use",
    ),
    ("pytorch", {"attn_backend": float("inf")}, {}, "attn_backend is inf, and must be a value that JSON has"),
    (
        "pytorch",
        {"atn_backend": "X"},
        {},
        r"no argument of provider 'pytorch' in TensorRT-LLM 1.2.1, 1.3; did you",
    ),
    ("pytorch", {"warp": 9}, {}, "leave it out, or name the newer version in engine.tensorrt_llm"),
    (
        "pytorch",
        {"kv_cache_config": {"event_bufer_max_size": 9}},
        {},
        "did you mean kv_cache_config.event_buffer_max_size?",
    ),
    ("pytorch", {"generation_config": "auto"}, {"tensorrt_llm": "1.2.1"}, "no argument .* in TensorRT-LLM 1.2.1;"),
    ("pytorch", {"fail_fast_on_attention_window_too_large": True}, {"tensorrt_llm": "1.3"}, "in TensorRT-LLM 1.3;"),
    ("tensorrt", {"attn_backend": "X"}, {}, "no argument of provider 'tensorrt'"),
]


@pytest.mark.parametrize(("provider", "extra", "changes", "words"), REFUSED)
def test_what_may_not_be_passed_on_is_refused_without_tensorrt_llm(
    provider: str, extra: Mapping[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        engine_of(provider, extra_llm_args=extra, **changes)


@pytest.mark.parametrize(
    ("extra", "version"),
    [({"generation_config": "auto"}, None), ({"generation_config": "auto"}, "1.3"), ({"warp": 9}, "1.5.0")],
    ids=["of-one-known-version", "of-the-version-named", "of-a-newer-version"],
)
def test_a_name_of_a_version_that_may_serve_it_is_taken(extra: dict[str, Any], version: str | None) -> None:
    assert isinstance(engine_of(extra_llm_args=extra, tensorrt_llm=version), PyTorchEngineSpec)


# What is refused by the installed version


def test_a_name_that_the_installed_version_lacks_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    message = r"engine.extra_llm_args.generation_config: the installed TensorRT-LLM 1.2.1 has no such argument"
    with pytest.raises(SpecError, match=message):
        args_of(tmp_path, extra_llm_args={"generation_config": "auto"})
    message = r"engine.extra_llm_args.kv_cache_config.onboard_blocks: the installed TensorRT-LLM 1.3.0rc29"
    with pytest.raises(SpecError, match=message):
        args_of(tmp_path, "1.3.0rc29", extra_llm_args={"kv_cache_config": {"onboard_blocks": False}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "trtllm"}, "sampler .trtllm. cannot be honoured: TorchLlmArgs of TensorRT-LLM 1.3.0rc29 has no"),
        ({"sink_tokens": 4}, r"sink_tokens .4. cannot be honoured: KvCacheConfig of TensorRT-LLM 1.3.0rc29 has no"),
        ({"moe_backend": "wideep"}, "1.3.0rc29 refuses MoeConfig: .*backend Input should be 'AUTO'"),
        (
            {"speculation": {"method": "eagle3", "dir": "draft", "max_draft_len": 3, "is_one_model": False}},
            "1.3.0rc29 sets eagle3_one_model of Eagle3DecodingConfig to True, whatever is asked for",
        ),
        ({"tensorrt_llm": "1.2.1"}, r"engine.tensorrt_llm is 1.2.1, and TensorRT-LLM 1.3.0rc29 is installed"),
    ],
    ids=["removed", "ignored", "value-removed", "set-back", "other-version"],
)
def test_what_the_installed_version_does_not_honour_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        args_of(tmp_path, "1.3.0rc29", **changes)


def test_drafts_by_eagle_3_are_of_the_class_that_the_version_has(tmp_path: Path) -> None:
    speculation = {"method": "eagle3", "dir": "draft", "max_draft_len": 3}
    for version, name in (("1.2.1", "EagleDecodingConfig"), ("1.3.0rc29", "Eagle3DecodingConfig")):
        assert type(args_of(tmp_path, version, speculation=speculation).speculative_config).__name__ == name


# Versions


def test_a_newer_version_is_loaded_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = engine_of(dir=write_checkpoint(tmp_path / "model"))
    with fake_tensorrt_llm("1.4.0rc1", facts_of="1.3"), caplog.at_level(logging.WARNING):
        create_engine(spec).close()
    assert "TensorRT-LLM 1.4.0rc1 is newer than what provider 'pytorch' is written for (1.2.1, 1.3)" in caplog.text


@pytest.mark.parametrize("version", ["1.1.0", "0.21.0", "unknown"])
def test_an_older_version_is_refused_by_name(tmp_path: Path, version: str) -> None:
    spec = engine_of(dir=write_checkpoint(tmp_path / "model"))
    with (
        fake_tensorrt_llm(version, facts_of="1.2.1"),
        pytest.raises(SpecError, match=rf"TensorRT-LLM {version} is installed, and provider 'pytorch' is written for"),
    ):
        create_engine(spec)


def test_a_known_version_is_loaded_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    args_of(tmp_path, "1.3.0rc29")
    assert not caplog.records


def test_the_names_in_the_product_are_those_of_the_facts() -> None:
    assert DATA.read_text(encoding="utf-8") == trtllm_names.text(), "run `make docs`"
    assert [facts.version for facts in known_facts()] == ["1.2.1", "1.3"]


@pytest.mark.parametrize(
    ("version", "note"),
    [
        ("1.2.0", "checked by what was read of 1.2.1"),
        ("1.3.0rc29", "checked by what was read of 1.3"),
        ("1.4.0", "not checked, it is newer than what was read (1.2.1, 1.3)"),
        ("1.1.0", "not checked, it is older than what was read"),
    ],
)
def test_which_facts_hold_for_a_version_is_said(version: str, note: str) -> None:
    assert note in facts_note(version)
    assert (facts_of(version) is None) == ("not checked" in note)


# Where it shows


def deployment(**engine: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate(
        {"name": "d", "models": [{"name": "d", "tokenizer": {"dir": TOKENIZER}, "engine": engine_of(**engine)}]}
    )


def test_a_release_of_another_version_than_they_are_for_is_a_finding(tmp_path: Path) -> None:
    release = write_gpu_release(tmp_path / "release", provider="pytorch", sm=None)
    machine = Machine(gpus=(L4,), free_host_bytes=2**34, packages={"tensorrt_llm": "1.2.1"})
    known = {"attn_backend": "X", "kv_cache_config": {"use_uvm": True}}

    def findings(**engine: Any) -> list[str]:
        spec = ReleaseSpec.model_validate(
            {"release": 1, "release_dir": release, "engine": {"provider": "pytorch", **engine}}
        )
        return [str(one) for one in check_release(release, machine=machine, deployment=spec)]

    assert findings(extra_llm_args=known, tensorrt_llm="1.2.0") == []
    assert findings(extra_llm_args=known | {"generation_config": "auto"}) == [
        "engine.extra_llm_args.generation_config: found no such argument, wanted one of TensorRT-LLM 1.2.1; leave it "
        "out, or name the newer version in engine.tensorrt_llm"
    ]
    assert findings(tensorrt_llm="1.3") == [
        "engine.tensorrt_llm: found 1.3, wanted 1.2.1; set it to that, or build the release for the other"
    ]


def test_doctor_says_which_facts_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = write_gpu_release(tmp_path / "release", provider="pytorch", sm=None)
    with contextlib.suppress(SystemExit):
        run_command("doctor", [str(release), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["tensorrt_llm_facts"] == "1.2.1"


def test_a_change_of_them_loads_the_engine_anew_and_says_which() -> None:
    [change] = {
        change.why
        for change in compare(deployment(), deployment(extra_llm_args={"attn_backend": "FLASHINFER"})).changes
        if change.name.endswith("tensorrt_llm")
    }
    assert any("extra_llm_args" in line and "FLASHINFER" in line for line in change)


def test_a_null_is_passed_on_through_file_and_repository(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    extra = {"cuda_graph_config": None, "kv_cache_config": {"secondary_offload_min_priority": None}}
    engine = {"provider": "pytorch", "dir": str(tmp_path), "extra_llm_args": extra}
    file.write_text(yaml.safe_dump({"name": "d", "tokenizer": {"dir": str(TOKENIZER)}, "engine": engine}))
    write_repository(load_deployment(file), root=tmp_path / "repository", source="d.yaml")
    release = tmp_path / "repository" / "tensorrt_llm" / "1"
    assert json.loads((release / "release.json").read_text())["engine"]["extra_llm_args"] == extra
    loaded = load_release(release).engine
    assert isinstance(loaded, PyTorchEngineSpec)
    assert loaded.extra_llm_args == extra


def test_a_file_that_names_an_unknown_argument_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    engine = {"provider": "pytorch", "dir": str(tmp_path), "extra_llm_args": {"atn_backend": "X"}}
    file.write_text(yaml.safe_dump({"name": "d", "tokenizer": {"dir": str(TOKENIZER)}, "engine": engine}))
    with pytest.raises(SpecError, match=r"d.yaml: .*engine.*extra_llm_args.atn_backend is no .*mean attn_backend"):
        load_deployment(file)
