# SPDX-License-Identifier: Apache-2.0
"""Differences of an engine from its recipe are found: those it cannot do without fail, the rest is kept."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from build_runs import build, built, write_recipe
from test_context_attention import build_arguments, checkpoint
from trtllm_builder import engine_config
from trtllm_tools import FakeTools, write_fake_tools

from build_engines.migration.compiled_engine import CompiledEngine
from build_engines.recipes.recipe import TensorRtRecipe
from build_engines.recipes.trtllm_versions import KV_QUANT_ALGOS, QUANT_ALGOS
from build_engines.tensorrt_llm.engine_differences import engine_differences
from build_engines.tensorrt_llm.trtllm_commands import trtllm_build_argv
from ensemble_configs.releases.release_manifest import load_manifest

RECIPE: dict[str, Any] = {
    "name": "x", "model": "m", "backend": "tensorrt", "gpu": "h100", "format": "bf16", "max_input_len": 2048,
    "max_seq_len": 4096, "max_batch_size": 64, "plugins": {"use_fp8_context_fmha": False},
}  # fmt: skip


def recipe_of(**changes: Any) -> TensorRtRecipe:
    return TensorRtRecipe.model_validate(RECIPE | changes)


def engine_of(recipe: TensorRtRecipe, *, off: tuple[str, ...] = (), **pretrained: Any) -> dict[str, Any]:
    """Return the config.json of the engine that the stand-in builds from a recipe."""
    args = build_arguments(*trtllm_build_argv(recipe, 1)[1:])
    mapping = {"world_size": recipe.world_size, "tp_size": recipe.tp_size, "pp_size": recipe.pp_size}
    found = checkpoint(QUANT_ALGOS[recipe.format][0], KV_QUANT_ALGOS[recipe.kv_format], mapping=mapping)
    return engine_config(args, found | pretrained, sm=90, off=off)


def differences(config: dict[str, Any], recipe: TensorRtRecipe) -> tuple[list[str], list[str]]:
    """Return the settings that are fatal, and those that are recorded."""
    engine = CompiledEngine(Path("config.json"), config["version"], config["pretrained_config"], config["build_config"])
    found = engine_differences(engine, recipe)
    fatal = [difference.setting for difference in found if difference.is_fatal]
    return fatal, [difference.setting for difference in found if not difference.is_fatal]


def test_a_plain_engine_is_what_was_asked() -> None:
    recipe = recipe_of()
    assert differences(engine_of(recipe), recipe) == ([], [])


LOOKAHEAD = {"method": "lookahead", "window_size": 4, "ngram_size": 4, "verification_set_size": 4}


@pytest.mark.parametrize(
    ("behaviour", "changes", "fatal", "recorded"),
    [
        ("int8_cache_not_paged", {"kv_format": "int8"}, ["plugin_config.use_paged_context_fmha"], []),
        (
            "fp8_cache_not_paged_beside_other_weights",
            {"format": "int4_awq", "kv_format": "fp8"},
            ["plugin_config.use_paged_context_fmha"],
            [],
        ),
        (
            "fp8_context_off_beside_other_weights",
            {"plugins": {}},
            [],
            ["plugin_config.use_fp8_context_fmha"],
        ),
        (
            "reduce_fusion_off",
            {"plugins": {"reduce_fusion": True, "use_fp8_context_fmha": False}},
            [],
            ["plugin_config.reduce_fusion"],
        ),
        ("max_num_tokens_lowered", {"max_batch_size": 1}, ["build_config.max_num_tokens"], []),
        ("drafts_lengthen_max_seq_len", {"speculation": LOOKAHEAD}, [], ["build_config.max_seq_len"]),
        (
            "drafts_raise_max_num_tokens",
            {"speculation": LOOKAHEAD, "max_num_tokens": 1024},
            [],
            ["build_config.max_num_tokens", "build_config.max_seq_len"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_builder_changes_silently_is_found(
    behaviour: str, changes: dict[str, Any], fatal: list[str], recorded: list[str]
) -> None:
    recipe = recipe_of(**changes)
    assert differences(engine_of(recipe), recipe) == (fatal, recorded)
    without = differences(engine_of(recipe, off=(behaviour,)), recipe)
    assert without != (fatal, recorded), "it is this behaviour that was seen"


LORA = {"lora": {"target_modules": ["attn_q", "attn_k"], "max_rank": 32}}


@pytest.mark.parametrize(
    ("changes", "place", "value", "is_fatal"),
    [
        ({}, "version", "1.2.0", True),
        ({}, "build_config.max_batch_size", 32, True),
        ({}, "build_config.max_batch_size", 128, False),
        ({}, "build_config.max_seq_len", 2048, True),
        ({}, "build_config.kv_cache_type", "CONTINUOUS", True),
        ({}, "build_config.plugin_config.tokens_per_block", 64, True),
        ({}, "build_config.plugin_config.gpt_attention_plugin", None, True),
        ({}, "build_config.plugin_config.remove_input_padding", False, True),
        ({}, "build_config.plugin_config.use_fused_mlp", False, False),
        ({}, "pretrained_config.quantization.kv_cache_quant_algo", "FP8", True),
        ({}, "pretrained_config.logits_dtype", "float16", False),
        ({"is_gathering_context_logits": True}, "build_config.gather_context_logits", False, True),
        ({"is_gathering_generation_logits": True}, "build_config.gather_generation_logits", False, False),
        ({"is_weight_streaming": True}, "build_config.weight_streaming", False, True),
        ({"opt_num_tokens": 128}, "build_config.opt_num_tokens", 64, False),
        ({"speculation": LOOKAHEAD}, "build_config.speculative_decoding_mode", 1, True),
        ({"speculation": LOOKAHEAD}, "build_config.max_draft_len", 3, True),
        (LORA, "build_config.plugin_config.lora_plugin", None, True),
        (LORA, "build_config.lora_config.max_lora_rank", 8, True),
        (LORA, "build_config.lora_config.lora_target_modules", ["attn_q"], True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_setting_that_was_built_otherwise_is_named(
    changes: dict[str, Any], place: str, value: object, is_fatal: bool
) -> None:
    recipe = recipe_of(**changes)
    config = copy.deepcopy(engine_of(recipe))
    *parents, last = place.split(".")
    part: Any = config
    for name in parents:
        part = part[name]
    assert last in part, "real engines write every field"
    setting = re.sub(r"^build_config\.(plugin|lora)", r"\1", place)
    assert setting not in [each for found in differences(config, recipe) for each in found]
    part[last] = value
    fatal, recorded = differences(config, recipe)
    assert setting in (fatal if is_fatal else recorded)


# Through `trireme build`


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> FakeTools:
    return write_fake_tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_what_does_no_harm_is_recorded_in_the_manifest(tools: FakeTools, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, format="bf16", kv_format=None, calibration=None)
    result = build(tools, recipe, tmp_path / "out")
    line = "  engine: plugin_config.use_fp8_context_fmha is false, and the recipe says true; recorded"
    assert line in result.stderr.splitlines()
    release = built(result)
    found = [each.model_dump() for each in load_manifest(release).engine_differences]
    assert found == [{"setting": "plugin_config.use_fp8_context_fmha", "asked": "true", "built": "false"}]


def test_an_engine_without_what_was_asked_is_no_release(
    tools: FakeTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rule that we do not know yet: upstream turns it off, and the recipe's own checks find nothing.
    monkeypatch.setattr("build_engines.recipes.engine_checks.why_not_paged", lambda *_: None)
    recipe = write_recipe(tmp_path, kv_format="int8")
    result = build(tools, recipe, tmp_path / "out")
    assert result.returncode == 2
    assert "plugin_config.use_paged_context_fmha False, and the recipe True" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")] == []
    kept = build(tools, recipe, tmp_path / "out2", FAKE_TOOL_WITHOUT="int8_cache_not_paged")
    assert kept.returncode == 0, "only that behaviour stood in the way"
