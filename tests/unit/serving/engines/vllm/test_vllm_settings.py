# SPDX-License-Identifier: Apache-2.0
"""Tests of the arguments that adapters and drafts of a deployment become, without vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import write_adapter
from pydantic import ValidationError
from vllm_environment import DRAFT, EAGLE_HEAD, TARGET, vllm_spec

from serving.engines.seam.model_folder import load_model_folder
from serving.engines.vllm.vllm_capabilities import CAPABILITIES
from serving.engines.vllm.vllm_drafting import check_draft_model, drafting_arguments
from serving.engines.vllm.vllm_lora import lora_arguments
from trireme.base.errors import SpecError
from trireme.commands import run_command

MODEL = {"num_hidden_layers": 2, "hidden_size": 16}  # of the adapters that `write_adapter` makes
LORA: dict[str, Any] = {"dir": Path("lora")}


def test_an_engine_without_adapters_and_drafts_is_given_no_arguments_for_them() -> None:
    spec = vllm_spec()
    assert lora_arguments(spec) == drafting_arguments(spec) == {}
    assert spec.max_tokens_per_step == 1
    assert {"lora_name", "lora_task_id"} <= CAPABILITIES.unmet(spec).keys()
    assert "embedding_bias" not in CAPABILITIES.unmet(spec)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"max_lora_rank": 64, "max_loras": 1, "max_cpu_loras": 1}),
        ({"max_rank": 5}, {"max_lora_rank": 8, "max_loras": 1, "max_cpu_loras": 1}),
        ({"max_rank": 65, "max_device_adapters": 4}, {"max_lora_rank": 128, "max_loras": 4, "max_cpu_loras": 4}),
        (
            {"max_device_adapters": 2, "max_host_adapters": 9},
            {"max_lora_rank": 64, "max_loras": 2, "max_cpu_loras": 9},
        ),
        (
            {"max_device_adapters": 4, "max_host_adapters": 2},
            {"max_lora_rank": 64, "max_loras": 4, "max_cpu_loras": 4},
        ),
    ],
    ids=["defaults", "a rank of vLLM's", "more on the device", "more on the host", "no fewer on the host"],
)
def test_adapters_become_arguments_with_a_place_more_on_a_cpu(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    lora = LORA | settings
    assert lora_arguments(vllm_spec(lora=lora, device="gpu")) == {"enable_lora": True} | expected
    more = {name: expected[name] + 1 for name in ("max_loras", "max_cpu_loras")}
    assert lora_arguments(vllm_spec(lora=lora)) == {"enable_lora": True} | expected | more


def test_modules_are_given_by_the_names_of_checkpoints() -> None:
    spec = vllm_spec(lora=LORA | {"target_modules": ("attn_q", "mlp_4h_to_h")})
    assert lora_arguments(spec)["lora_target_modules"] == ["q_proj", "k_proj", "v_proj", "down_proj"]


def test_adapters_that_vllm_cannot_serve_are_refused() -> None:
    with pytest.raises(SpecError, match=r"max_rank \(513\) is more than the highest of vLLM, 512"):
        lora_arguments(vllm_spec(lora=LORA | {"max_rank": 513}))
    with pytest.raises(SpecError, match="does not go with 2 ranks on a CPU"):
        lora_arguments(vllm_spec(lora=LORA, tp_size=2))
    assert lora_arguments(vllm_spec(lora=LORA, tp_size=2, device="gpu"))["enable_lora"]
    with pytest.raises(ValidationError, match=r"lora does not go with speculation\.method: eagle3"):
        vllm_spec(lora=LORA, speculation={"method": "eagle3", "dir": DRAFT, "max_draft_len": 2})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"method": "ngram"},
            {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 2},
        ),
        (
            {"method": "ngram", "max_matching_ngram_size": 3, "min_matching_ngram_size": 1},
            {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1},
        ),
        ({"method": "draft_target", "dir": DRAFT}, {"method": "draft_model", "model": str(DRAFT)}),
        ({"method": "eagle3", "dir": DRAFT}, {"method": "eagle3", "model": str(DRAFT)}),
    ],
    ids=["ngram", "ngram with sizes", "draft_target", "eagle3"],
)
def test_drafts_become_arguments(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = vllm_spec(speculation=settings | {"max_draft_len": 4})
    arguments = drafting_arguments(spec)
    assert arguments["speculative_config"] == expected | {"num_speculative_tokens": 4}
    assert arguments["per_request_spec_decode_metrics"] == "summary"
    assert spec.max_tokens_per_step == 5
    assert "embedding_bias" in CAPABILITIES.unmet(spec)


def test_sizes_of_ngrams_in_the_wrong_order_are_refused() -> None:
    sizes = {"max_matching_ngram_size": 2, "min_matching_ngram_size": 3}
    with pytest.raises(ValidationError, match=r"min_matching_ngram_size \(3\) is above max_matching_ngram_size \(2\)"):
        vllm_spec(speculation={"method": "ngram", "max_draft_len": 4} | sizes)


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        run_command("adapters", [str(arg) for arg in args])
    return int(ended.value.code or 0)


def test_adapters_of_a_deployment_are_loaded_and_unloaded_by_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    deployment = tmp_path / "mine.yaml"
    deployment.write_text(
        "name: mine\ntokenizer: {dir: model}\n"
        "engine: {provider: vllm, dir: model, kv_cache_bytes: 1000000, lora: {dir: lora, max_rank: 16}}\n"
    )
    where = ("--deployment", deployment)
    assert run("load", write_adapter(tmp_path / "first"), *where) == 0
    assert run("load", write_adapter(tmp_path / "wide", rank=32), *where) == 2
    assert "max_rank is 16" in capsys.readouterr().err
    # The modules of the first bind no other one, as vLLM is started for all that its model has.
    assert run("load", write_adapter(tmp_path / "second", modules=("o_proj",)), *where) == 0
    assert run("status", *where) == 0
    assert {"first", "second"} <= set(capsys.readouterr().out.split())
    assert run("unload", "first", *where) == 0
    assert sorted(path.name for path in (tmp_path / "lora").iterdir() if path.name[0] != ".") == ["second"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pp_size": 2}, r"pp_size \(2\) does not go with device: cpu"),
        ({"dp_size": 2}, r"dp_size is no key: .* gateway\.servers"),
        ({"data_parallel_size": 2}, "data_parallel_size is no key"),
    ],
)
def test_ranks_that_cannot_run_are_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        vllm_spec(**changes)
    assert vllm_spec(device="gpu", pp_size=2, tp_size=4).world_size == 8


DEMO = load_model_folder(TARGET, weights="config.json")


def head_folder(folder: Path, **config: object) -> Path:
    """Return a folder with the demo model's head and another config."""
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(EAGLE_HEAD / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_draft_model_and_a_head_that_go_with_the_model_are_taken(tmp_path: Path) -> None:
    layer = {"hidden_size": 256, "vocab_size": 4096}
    configs: list[dict[str, Any]] = [
        {"speculators_model_type": "eagle3", "transformer_layer_config": layer},
        {"hidden_size": 128, "target_hidden_size": 256, "vocab_size": 4096},
        {},
    ]
    for number, config in enumerate(configs):
        folder = head_folder(tmp_path / str(number), **config)
        check_draft_model(vllm_spec(speculation={"method": "eagle3", "dir": folder, "max_draft_len": 2}), DEMO)
    for method, folder in (("eagle3", EAGLE_HEAD), ("draft_target", DRAFT)):
        check_draft_model(vllm_spec(speculation={"method": method, "dir": folder, "max_draft_len": 2}), DEMO)


@pytest.mark.parametrize(
    ("method", "config", "why"),
    [
        ("draft_target", {"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 4096,
                          "max_position_embeddings": 2048}, "is an EAGLE-3 head, not a draft model"),
        ("eagle3", {"hidden_size": 4096}, "was trained for a model of hidden_size 4096, and this one has 256"),
        ("eagle3", {"transformer_layer_config": {"hidden_size": 512}}, "of hidden_size 512, and this one has 256"),
        ("eagle3", {"hidden_size": 256, "vocab_size": 128256}, "of 128256 tokens, and this one has 4096"),
        ("eagle3", {"speculators_model_type": "peagle"}, "a head of the kind peagle, not eagle3"),
        ("eagle3", {"architectures": 7}, "architectures"),
    ],
)  # fmt: skip
def test_a_head_that_does_not_go_with_the_model_is_refused_by_name(
    tmp_path: Path, method: str, config: dict[str, Any], why: str
) -> None:
    spec = vllm_spec(
        speculation={"method": method, "dir": head_folder(tmp_path / "head", **config), "max_draft_len": 2}
    )
    with pytest.raises(SpecError, match=why):
        check_draft_model(spec, DEMO)


def test_a_folder_that_is_no_head_is_refused_by_name(tmp_path: Path) -> None:
    for folder, why in ((DRAFT, "has no weights fc, so it is no EAGLE-3 head"), (tmp_path, "has no config.json")):
        spec = vllm_spec(speculation={"method": "eagle3", "dir": folder, "max_draft_len": 2})
        with pytest.raises(SpecError, match=why) as refused:
            check_draft_model(spec, DEMO)
        assert refused.value.facts["field"] == "engine.speculation.dir"
