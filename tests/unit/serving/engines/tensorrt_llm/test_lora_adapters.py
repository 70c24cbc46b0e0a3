# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters that come, change and go while an engine runs: found by name, checked before upstream sees them."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_adapters import write_adapter, write_safetensors

from ensemble_configs.spec.engine.lora_spec import LoraSpec
from serving.engines.seam.adapter_check import ModelSizes, check_adapter
from serving.engines.seam.adapter_folder import Adapter, AdapterFolder, engine_modules, model_sizes
from serving.supervisor.adapters_command import KEPT_S
from trireme.base.errors import RequestError, SpecError
from trireme.commands import run_command

MODULES = frozenset({"attn_q", "attn_k", "attn_v"})


def folder_of(root: Path, **settings: Any) -> AdapterFolder:
    return AdapterFolder(LoraSpec(dir=root, **settings), MODULES)


def find(adapters: AdapterFolder, name: str) -> Adapter:
    return adapters.find(name, field="lora_name")


def test_an_adapter_that_appears_can_be_asked_for_and_one_that_is_gone_cannot(tmp_path: Path) -> None:
    adapters = folder_of(tmp_path)
    with pytest.raises(RequestError, match=r"lora_name \(legal\) is no adapter in engine.lora.dir; there are none yet"):
        find(adapters, "legal")
    write_adapter(tmp_path / "legal")
    found = find(adapters, "legal")
    assert (found.name, found.folder) == ("legal", tmp_path / "legal")
    assert find(adapters, "legal") == found
    shutil.rmtree(tmp_path / "legal")
    write_adapter(tmp_path / "other")
    with pytest.raises(RequestError, match="there are other") as refused:
        find(adapters, "legal")
    assert refused.value.facts == {"field": "lora_name", "value": "legal"}


def test_new_weights_under_an_old_name_have_a_number_of_their_own(tmp_path: Path) -> None:
    adapters = folder_of(tmp_path)
    write_adapter(tmp_path / "legal", seed=1)
    first = find(adapters, "legal").number
    shutil.rmtree(tmp_path / "legal")
    write_adapter(tmp_path / "legal", seed=2)
    second = find(adapters, "legal").number
    assert first != second, "upstream loads a number once and keeps it"
    assert {1 <= number < 2**31 for number in (first, second)} == {True}


def test_an_engine_s_life_holds_so_many_adapters_and_no_more(tmp_path: Path) -> None:
    adapters = folder_of(tmp_path, max_adapters=2)
    for name in ("a", "b", "c"):
        write_adapter(tmp_path / name)
    assert find(adapters, "a").number != find(adapters, "b").number
    with pytest.raises(RequestError, match=r"raise engine\.lora\.max_adapters \(2\), or start the engine anew"):
        find(adapters, "c")
    assert find(adapters, "a").name == "a", "those that are there go on"


@pytest.mark.parametrize("name", ["../legal", "", ".hidden", "a/b", "a\x00b", "x" * 300, "legal\n"])
def test_a_name_that_is_no_folder_s_is_refused_without_a_look_at_the_disk(tmp_path: Path, name: str) -> None:
    write_adapter(tmp_path / "legal")
    with pytest.raises(RequestError, match=r"is no adapter in engine\.lora\.dir"):
        find(folder_of(tmp_path / "lora"), name)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a rank that is too large": ({"rank": 65}, "has rank 65, and engine.lora.max_rank is 64"),
    "modules of another engine": ({"modules": ["q_proj", "up_proj"]}, "changes mlp_gate, and the engine was started"),
    "modules that upstream does not know": ({"modules": ["conv"]}, "is no LoRA tensor of"),
    "a bias": ({"bias": "all"}, "bias is 'all'"),
    "DoRA": ({"use_dora": True}, "use_dora is True"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
    "another method": ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    "no rank": ({"r": None}, "is no adapter's configuration"),
    "no scale": ({"lora_alpha": None}, "is no adapter's configuration"),
}


@pytest.mark.parametrize(("changes", "complaint"), BROKEN.values(), ids=BROKEN)
def test_what_upstream_cannot_serve_is_refused_before_it_is_asked(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    write_adapter(tmp_path / "legal", **changes)
    with pytest.raises(RequestError, match=complaint) as refused:
        find(folder_of(tmp_path), "legal")
    assert refused.value.facts["field"] == "lora_name"


def test_files_that_are_missing_cut_off_or_pickled_are_refused_until_they_are_whole(tmp_path: Path) -> None:
    adapters = folder_of(tmp_path)
    folder = write_adapter(tmp_path / "legal")
    weights = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(weights[:-1])
    with pytest.raises(RequestError, match="is no whole safetensors file"):
        find(adapters, "legal")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(RequestError, match=r"adapter_model\.bin is pickled, which can run code"):
        find(adapters, "legal")
    (folder / "adapter_config.json").unlink()
    with pytest.raises(RequestError, match=r"has no adapter_config\.json"):
        find(adapters, "legal")
    write_adapter(folder)
    assert find(adapters, "legal").name == "legal"


def test_a_rank_in_the_weights_counts_whatever_the_configuration_says(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "legal", rank=8)
    write_safetensors(
        folder / "adapter_model.safetensors",
        {f"model.layers.0.self_attn.q_proj.lora_{side}.weight": np.zeros((16, 16), np.float16) for side in "AB"},
    )
    assert check_adapter(folder, LoraSpec(dir=tmp_path)).rank == 16


Q = "base_model.model.model.layers.0.self_attn.q_proj"
MISNAMED: dict[str, tuple[dict[str, tuple[int, int]], str]] = {
    "no layer": ({"q_proj.lora_A.weight": (4, 16)}, "is no LoRA tensor"),
    "one side": ({f"{Q}.lora_A.weight": (4, 16)}, "lora_A.weight and .*lora_B.weight alone"),
    "a layer too many": ({f"{Q.replace('0', '2')}.lora_A.weight": (4, 16)}, "is of layer 2, and the .* has 2 layers"),
    "a wider model": ({f"{Q}.lora_A.weight": (4, 32)}, "hidden states of 32, and the engine's model has 16"),
    "a wider output": ({f"{Q.replace('q_', 'o_')}.lora_B.weight": (32, 4)}, "hidden states of 32, and the"),
}


@pytest.mark.parametrize(("shapes", "complaint"), MISNAMED.values(), ids=MISNAMED)
def test_tensors_that_upstream_would_not_survive_are_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, int]], complaint: str
) -> None:
    folder = write_adapter(tmp_path / "legal")
    tensors = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    with pytest.raises(SpecError, match=complaint):
        check_adapter(folder, LoraSpec(dir=tmp_path), sizes=ModelSizes(num_layers=2, hidden_size=16))


def test_an_expert_s_tensors_are_of_its_layer(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "legal")
    expert = "base_model.model.model.layers.1.block_sparse_moe.experts.7.w1"
    tensors = {f"{expert}.lora_{side}.weight": np.zeros((4, 16), np.float16) for side in "AB"}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    assert check_adapter(folder, LoraSpec(dir=tmp_path)).modules == {"moe_h_to_4h"}


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"num_hidden_layers": 4, "hidden_size": 64}, ModelSizes(4, 64)),
        ({"text_config": {"num_hidden_layers": 4, "hidden_size": 64}}, ModelSizes(4, 64)),
        ({"build_config": {}, "pretrained_config": {"num_hidden_layers": 4, "hidden_size": 64}}, ModelSizes(4, 64)),
        ({"d_model": 64}, ModelSizes()),
        ({"hidden_size": "64"}, ModelSizes()),
    ],
)
def test_the_sizes_of_a_model_are_its_configurations(tmp_path: Path, config: object, sizes: ModelSizes) -> None:
    assert model_sizes(tmp_path) == ModelSizes(), "not on this machine"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_sizes(tmp_path) == sizes


def test_an_engine_is_started_for_the_modules_that_are_named_or_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"engine\.lora\.target_modules is empty, and .* has no adapter"):
        engine_modules(LoraSpec(dir=tmp_path / "none"))
    assert engine_modules(LoraSpec(dir=tmp_path, target_modules=("mlp_gate",))) == {"mlp_gate"}
    write_adapter(tmp_path / "a", modules=["q_proj"])
    write_adapter(tmp_path / "b", modules=["down_proj"])
    write_adapter(tmp_path / "broken", modules=["conv"])
    assert engine_modules(LoraSpec(dir=tmp_path)) == MODULES | {"mlp_4h_to_h"}, "upstream completes q, k, v"


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\ntokenizer: {dir: model}\n"
        "engine: {provider: pytorch, dir: model, lora: {dir: lora, max_rank: 16}}\n"
    )
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def files_in(folder: Path) -> list[Path]:
    """Return the folders that links name, or named."""
    return sorted(path for path in folder.iterdir() if path.name.startswith("."))


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        run_command("adapters", [str(arg) for arg in args])
    return int(ended.value.code or 0)


def test_adapters_are_loaded_shown_and_unloaded(
    tmp_path: Path, deployment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_adapter(tmp_path / "legal-en")
    assert run("load", source, "--deployment", deployment) == 0
    assert "legal-en can be asked for: lora_name=legal-en (rank 8, " in capsys.readouterr().out
    assert run("load", source, "--name", "7", "--deployment", deployment, "--json") == 0
    assert json.loads(capsys.readouterr().out)["modules"] == ["attn_q", "attn_v"]
    assert names_in(tmp_path / "lora") == ["7", "legal-en"]
    assert run("load", source, "--deployment", deployment) == 2
    assert "there is an adapter 'legal-en'" in capsys.readouterr().err
    assert run("status", "--deployment", deployment) == 0
    assert "legal-en  rank 8" in capsys.readouterr().out
    assert run("unload", "legal-en", "--deployment", deployment) == 0
    assert run("unload", "legal-en", "--deployment", deployment) == 2
    assert "there are: 7" in capsys.readouterr().err
    assert names_in(tmp_path / "lora") == ["7"]


def test_the_files_of_an_adapter_that_is_taken_out_stay_for_those_who_have_asked_for_it(
    tmp_path: Path, deployment: Path
) -> None:
    lora = tmp_path / "lora"
    adapters = folder_of(lora)
    assert run("load", write_adapter(tmp_path / "legal"), "--deployment", deployment) == 0
    old = find(adapters, "legal")
    assert run("unload", "legal", "--deployment", deployment) == 0
    with pytest.raises(RequestError, match="is no adapter in"):
        find(adapters, "legal")
    assert run("load", write_adapter(tmp_path / "legal", seed=2), "--deployment", deployment) == 0
    new = find(adapters, "legal")
    assert new.number != old.number
    for adapter in (old, new):
        assert check_adapter(adapter.folder, LoraSpec(dir=lora)).rank == 8, "upstream may read it at any time"
    assert new.folder != old.folder
    assert new.folder.is_dir()
    an_hour_ago = time.time() - KEPT_S - 1
    for files in files_in(lora):
        os.utime(files, (an_hour_ago, an_hour_ago))
    write_adapter(lora / "by-hand")
    assert run("unload", "by-hand", "--deployment", deployment) == 0
    assert old.folder not in files_in(lora), "nobody asks any more"
    assert find(adapters, "legal") == new, "what is named stays, however old it is"
    assert names_in(lora) == ["legal"]


def test_a_link_of_ones_own_is_an_adapter_and_what_it_names_is_left_alone(tmp_path: Path, deployment: Path) -> None:
    elsewhere = write_adapter(tmp_path / "elsewhere")
    an_hour_ago = time.time() - KEPT_S - 1
    os.utime(elsewhere, (an_hour_ago, an_hour_ago))
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "legal").symlink_to(elsewhere)
    assert find(folder_of(lora), "legal").folder == elsewhere
    assert run("unload", "legal", "--deployment", deployment) == 0
    assert names_in(lora) == []
    assert elsewhere.stat().st_mtime == pytest.approx(an_hour_ago)
    assert check_adapter(elsewhere, LoraSpec(dir=lora)).rank == 8


def test_an_adapter_that_upstream_could_not_load_is_not_asked_for_again_until_its_files_are_others(
    tmp_path: Path,
) -> None:
    adapters = folder_of(tmp_path)
    write_adapter(tmp_path / "legal")
    found = find(adapters, "legal")
    error = adapters.note_failed("legal", found.number, "KeyError: 'lora_alpha'", field="lora_name")
    assert "lora_name (legal): TensorRT-LLM could not load this adapter: KeyError: 'lora_alpha'; mend" in error.message
    with pytest.raises(RequestError, match="could not load this adapter: KeyError"):
        find(adapters, "legal")
    shutil.rmtree(tmp_path / "legal")
    write_adapter(tmp_path / "legal", seed=2)
    assert find(adapters, "legal").name == "legal"


def test_an_engine_that_frees_adapters_has_no_limit_and_is_told_which_are_gone(tmp_path: Path) -> None:
    adapters = AdapterFolder(LoraSpec(dir=tmp_path, max_adapters=1), None, upstream="vLLM", is_freed=True)
    for seed, name in enumerate(("a", "b")):
        write_adapter(tmp_path / name, seed=seed)
    first, second = find(adapters, "a"), find(adapters, "b")
    assert adapters.is_current(first)
    shutil.rmtree(tmp_path / "a")
    write_adapter(tmp_path / "a", seed=2)
    shutil.rmtree(tmp_path / "b")
    assert not adapters.is_current(first)
    assert not adapters.is_current(second)
    again = find(adapters, "a")
    assert adapters.is_current(again)
    assert not adapters.is_current(first), "others of its name"
    assert "(a): vLLM could not load this adapter: no" in adapters.note_failed("a", 1, "no", field="lora_name").message


def test_an_adapter_that_cannot_be_served_is_not_loaded(
    tmp_path: Path, deployment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("load", write_adapter(tmp_path / "first"), "--deployment", deployment) == 0
    for changes, complaint in (({"rank": 32}, "max_rank is 16"), ({"modules": ["up_proj"]}, "changes mlp_gate")):
        source = write_adapter(tmp_path / "wrong", **changes)
        assert run("load", source, "--deployment", deployment) == 2
        assert complaint in capsys.readouterr().err
    assert names_in(tmp_path / "lora") == ["first"]
    assert len(files_in(tmp_path / "lora")) == 1, "no drafts are left"
    shutil.copytree(tmp_path / "wrong", tmp_path / "lora" / "by-hand")
    (tmp_path / "lora" / "by-hand" / "adapter_config.json").write_text("{}")
    assert run("status", "--deployment", deployment, "--json") == 1
    shown = {row["name"]: row["problem"] for row in json.loads(capsys.readouterr().out)}
    assert shown["first"] is None
    assert "is no adapter's configuration" in shown["by-hand"]


def test_a_deployment_without_adapters_is_told_where_they_go(
    tmp_path: Path, deployment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text("name: plain\ntokenizer: {dir: model}\nengine: {provider: openvino, dir: model}\n")
    assert run("status", "--deployment", plain) == 2
    assert "the engine has no engine.lora" in capsys.readouterr().err
    assert run("status", "--deployment", deployment, "--model", "other") == 2
    assert "--model must be one of mine" in capsys.readouterr().err
    assert run("load", tmp_path, "--name", "../x", "--deployment", deployment) == 2
    assert "--name '../x' must be letters" in capsys.readouterr().err
