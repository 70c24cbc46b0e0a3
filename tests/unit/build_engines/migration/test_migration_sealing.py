# SPDX-License-Identifier: Apache-2.0
"""An imported engine becomes a sealed release that a deployment can name."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from old_repositories import write_engine_config, write_llmapi_repository, write_old_repository
from test_migration import TOKENIZER, entry, lost

from build_engines.migration.compiled_engine import kv_bytes_per_token, load_compiled_engine
from build_engines.migration.importing import Import, plan_import
from build_engines.migration.sealing import seal_import
from ensemble_configs.releases.machine import Gpu, Machine
from ensemble_configs.releases.preflight import check_release
from ensemble_configs.releases.release_manifest import address, verify
from ensemble_configs.spec.deployment import load_deployment
from trireme.base.errors import SpecError


def planned_in(folder: Path, **engine: Any) -> Import:
    repository = write_old_repository(folder / "old")
    engine_dir = write_engine_config(folder / "engine", **engine)
    return plan_import(repository, out=folder / "new.yaml", engine_dir=engine_dir, tokenizer_dir=TOKENIZER)


def test_a_release_is_sealed_and_the_deployment_is_of_it(tmp_path: Path) -> None:
    release = tmp_path / "release"
    sealed = seal_import(planned_in(tmp_path), release, num_parameters=1000, sm=90)
    manifest = verify(release)
    assert manifest.limits.model_dump() == {
        "max_batch_size": 128,
        "max_num_tokens": 8192,
        "max_seq_len": 4096,
        "max_beam_width": 1,
    }
    assert (manifest.provider, manifest.versions, manifest.sm) == ("tensorrt", {"tensorrt_llm": "1.2.1"}, 90)
    assert manifest.recipe["engine_config"] == json.loads((tmp_path / "engine" / "config.json").read_text())
    assert entry(sealed, "release").value == address(release)
    assert lost(sealed) == []
    (tmp_path / "new.yaml").write_text(sealed.text)
    deployment = load_deployment(tmp_path / "new.yaml")
    assert deployment == sealed.deployment
    assert (deployment.model.release_dir, deployment.model.tokenizer.dir) == (release, release / "tokenizer")
    assert "dir" not in yaml.safe_load(sealed.text)["engine"]


def test_a_start_finds_nothing_wrong_with_it_but_the_gpu_and_the_version(tmp_path: Path) -> None:
    release = tmp_path / "release"
    sealed = seal_import(planned_in(tmp_path), release, num_parameters=1000, sm=90)
    gpu = Gpu(name="NVIDIA H200", sm=90, free_bytes=2**37)
    fit = Machine(packages={"tensorrt_llm": "1.2.1"}, gpus=(gpu,), free_host_bytes=2**37)
    assert check_release(release, machine=fit, deployment=sealed.deployment.model) == []
    other = Machine(
        packages={"tensorrt_llm": "1.1.0"},
        gpus=(Gpu(name="NVIDIA L4", sm=89, free_bytes=2**37),),
        free_host_bytes=2**37,
    )
    found = check_release(release, machine=other, deployment=sealed.deployment.model)
    assert sorted(finding.check for finding in found) == ["sm", "tensorrt_llm"]


def test_files_are_linked_and_weights_beside_a_tokenizer_are_left(tmp_path: Path) -> None:
    tokenizer = tmp_path / "model"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / name).write_bytes((TOKENIZER / name).read_bytes())
    (tokenizer / "model.safetensors").write_bytes(b"weights")
    engine = write_engine_config(tmp_path / "engine")
    (engine / "notes.txt").write_text("mine")
    repository = write_old_repository(tmp_path / "old")
    planned = plan_import(repository, out=tmp_path / "new.yaml", engine_dir=engine, tokenizer_dir=tokenizer)
    release = tmp_path / "release"
    seal_import(planned, release, num_parameters=1000, sm=90)
    assert (release / "engine" / "rank0.engine").samefile(engine / "rank0.engine")
    assert sorted(path.name for path in (release / "tokenizer").iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sorted(path.name for path in (release / "engine").iterdir()) == ["config.json", "rank0.engine"]


def test_files_are_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    release = tmp_path / "release"
    seal_import(planned_in(tmp_path), release, num_parameters=1000, sm=90)
    verify(release)
    assert not (release / "engine" / "rank0.engine").samefile(tmp_path / "engine" / "rank0.engine")


def test_without_the_gpu_that_it_was_built_on_that_is_named(tmp_path: Path) -> None:
    sealed = seal_import(planned_in(tmp_path), tmp_path / "release", num_parameters=1000, sm=None)
    assert lost(sealed) == ["release: sm"]


def test_a_folder_in_use_is_refused_and_left(tmp_path: Path) -> None:
    mine = tmp_path / "release" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(SpecError, match="is not empty; name a new folder with --release-dir"):
        seal_import(planned_in(tmp_path), tmp_path / "release", num_parameters=1000, sm=90)
    assert [path.name for path in mine.parent.iterdir()] == ["mine.txt"]


def test_what_is_not_here_cannot_be_sealed(tmp_path: Path) -> None:
    elsewhere = plan_import(write_old_repository(tmp_path / "old"), out=tmp_path / "new.yaml")
    llmapi = plan_import(
        write_llmapi_repository(tmp_path / "llmapi", {"model": "/old/llama"}), out=tmp_path / "new.yaml"
    )
    for planned in (elsewhere, llmapi):
        with pytest.raises(SpecError, match="a compiled engine that is on this machine"):
            seal_import(planned, tmp_path / "release", num_parameters=1000, sm=90)
    planned = planned_in(tmp_path / "whole")
    (tmp_path / "whole" / "engine" / "rank0.engine").unlink()
    with pytest.raises(SpecError, match=r"there is no .*rank0.engine, so there is nothing to make a release of"):
        seal_import(planned, tmp_path / "release", num_parameters=1000, sm=90)
    assert not (tmp_path / "release").exists()


# Llama-3.1-70B in 16 bits: 327,680 bytes a token, a quarter of that on each of 4 ranks. Llama-2-7B: 0.5 MiB.
SHAPES: list[tuple[Mapping[str, Any], int]] = [
    ({"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192}, 327_680),
    ({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None, "hidden_size": 4096}, 2**19),
    (
        {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192}
        | {"mapping": {"tp_size": 4, "world_size": 4}, "quantization": {"kv_cache_quant_algo": "INT8"}},
        40_960,
    ),
    ({"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 61 * 576 * 2),
]


@pytest.mark.parametrize(("shape", "expected"), SHAPES)
def test_bytes_of_the_cache_are_those_of_the_models_shape(
    shape: Mapping[str, Any], expected: int, tmp_path: Path
) -> None:
    engine = load_compiled_engine(write_engine_config(tmp_path / "engine", pretrained=dict(shape)))
    assert engine is not None
    assert kv_bytes_per_token(engine) == expected
