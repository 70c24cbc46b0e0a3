# SPDX-License-Identifier: Apache-2.0
"""Recipes are read with every mistake named, and hash the same on every machine."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from build_engines.checkpoint.gpus import gpus
from build_engines.checkpoint.weight_formats import WEIGHT_FORMATS
from build_engines.recipes.recipe import (
    RECIPES,
    OpenVinoRecipe,
    PyTorchRecipe,
    TensorRtRecipe,
    VllmRecipe,
    hash_recipe,
    load_recipe,
    recipe_document,
    recipe_names,
)
from trireme.base.errors import SpecError

MINIMAL = {"name": "x", "model": "m", "backend": "tensorrt", "gpu": "h100", "format": "fp8"}


def write(folder: Path, **values: object) -> Path:
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return path


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_ours_is_read_and_named_like_its_file(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    if not isinstance(recipe, OpenVinoRecipe | VllmRecipe):
        assert recipe.gpu in gpus()


def test_there_is_a_recipe_for_each_back_end_and_nearly_each_format() -> None:
    recipes = [load_recipe(name) for name in recipe_names()]
    assert {recipe.backend for recipe in recipes} == {"tensorrt", "pytorch", "openvino", "vllm"}
    formats = {recipe.format for recipe in recipes}
    assert formats >= set(WEIGHT_FORMATS) - {"fp16"} | {"fp16", "int8", "int4"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"backend": "onnx"}, "backend must be one of tensorrt, pytorch, openvino, vllm; got 'onnx'"),
        ({"format": "fp7"}, "format:"),
        ({"tp": 2}, "tp: extra inputs are not permitted (got 2); allowed here: backend, builder, calibration, "),
        ({"tp_sizes": 2}, "tp_sizes: extra inputs are not permitted (got 2); did you mean tp_size?"),
        (
            {"calibration": {"dataset": "x", "samples": 4}},
            "calibration.samples: extra inputs are not permitted (got 4); did you mean num_samples?",
        ),
        (
            {"speculation": {"method": "medusa", "dir": "heads", "window_size": 4}},
            "speculation.window_size: extra inputs are not permitted (got 4); allowed here: dir, hidden_act, "
            "is_head_quantized, max_draft_len, method, num_heads, num_layers",
        ),
        (
            {"backend": "openvino", "gpu": None, "format": "int8", "tp_size": 2},
            "tp_size: extra inputs are not permitted (got 2); allowed here: backend, calibration, draft, ",
        ),
        (
            {"name": "x" * 101},
            "name: must be 1 to 100 characters, small letters, digits, dots, hyphens and underscores",
        ),
        ({"name": "X"}, "the first a letter or digit, for it names the release's folder; it has 1 (got 'X')"),
        ({"name": ""}, "it has 0 (got '')"),
        ({"name": "x\n"}, "it has 2"),
        ({"max_seq_len": True}, "max_seq_len: input should be a valid integer (got True)"),
        ({"group_size": "128"}, "group_size: input should be a valid integer (got '128')"),
        ({"calibration": {"dataset": "x", "seed": "7"}}, "calibration.seed: input should be a valid integer (got '7')"),
        ({"smoothquant": {"alpha": True}}, "smoothquant.alpha: input should be a valid number, not true"),
        ({"gpu": None}, "gpu: field required"),
        ({"max_input_len": 8192}, "max_input_len (8192) must be less than max_seq_len (8192)"),
        ({"opt_num_tokens": 10_000}, "opt_num_tokens (10000) > max_num_tokens (8192)"),
        ({"calibration": {"num_samples": 5}}, "calibration: dataset or file must be set, and not both"),
        ({"calibration": {"file": "a.txt"}}, "calibration: file and sha256 go together"),
        ({"speculation": {"method": "magic"}}, "speculation:"),
        ({"plugins": {"gemm_plugin": "fp6"}}, "plugins.gemm_plugin:"),
        ({"lora": {"target_modules": []}}, "lora.target_modules:"),
        ({"backend": "openvino", "gpu": None, "format": "int8", "group_size": 64}, "group_size is for format int4"),
        ({"backend": "openvino", "gpu": None, "format": "int4", "is_awq": True}, "need calibration"),
        ({"backend": "pytorch", "plugins": {}}, "plugins: extra inputs are not permitted"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_named(tmp_path: Path, values: dict[str, object], named: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_recipe(write(tmp_path, **MINIMAL | values))
    assert named in caught.value.message


def test_a_recipe_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="demo-int8"):
        load_recipe(tmp_path / "demo-int9")


def test_what_is_no_plain_file_of_a_recipes_size_is_refused_unread(tmp_path: Path) -> None:
    pipe, large, binary = tmp_path / "pipe", tmp_path / "large", tmp_path / "binary"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(1 << 40)
    binary.write_bytes(b"name: \xff")
    for path, why in (
        (pipe, "is not a plain file; name a YAML file"),
        (Path("/dev/zero"), "is not a plain file; name a YAML file"),
        (tmp_path, "is not a plain file; name a YAML file"),
        (large, "has 1,099,511,627,776 bytes, and a recipe at most 1,048,576; name a YAML file"),
        (binary, "is not text in UTF-8; name a YAML file"),
    ):
        with pytest.raises(SpecError) as caught:
            load_recipe(path)
        assert caught.value.message == f"the recipe {path} {why}"


def test_the_hash_is_of_what_can_change_the_release(tmp_path: Path) -> None:
    sha256 = "0" * 64
    values = MINIMAL | {"calibration": {"file": "some.txt", "sha256": sha256}}
    (tmp_path / "elsewhere").mkdir()
    recipe = load_recipe(write(tmp_path, **values))
    assert isinstance(recipe, TensorRtRecipe)
    assert recipe.calibration is not None
    assert recipe.calibration.file == tmp_path / "some.txt"
    moved = load_recipe(write(tmp_path / "elsewhere", **values))
    assert hash_recipe(moved) == hash_recipe(recipe)
    assert "builder" not in recipe_document(recipe)
    assert hash_recipe(load_recipe(write(tmp_path, **values, builder={"num_workers": 2}))) == hash_recipe(recipe)
    assert hash_recipe(load_recipe(write(tmp_path, **values, max_batch_size=65))) != hash_recipe(recipe)


def test_comments_and_the_order_of_keys_do_not_change_the_hash(tmp_path: Path) -> None:
    name = "llama-3.1-8b-fp8-h100"
    values = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    again = write(tmp_path, **dict(reversed(values.items())))
    assert hash_recipe(load_recipe(again)) == hash_recipe(load_recipe(name))


def test_a_recipe_file_of_ones_own_may_have_the_name_of_ours(tmp_path: Path) -> None:
    own = tmp_path / "demo-int8.yaml"
    shutil.copy(RECIPES / "demo-int8.yaml", own)
    own.write_text(own.read_text().replace("max_batch_size: 64", "max_batch_size: 8"))
    assert load_recipe(own).max_batch_size == 8


def test_sizes_multiply() -> None:
    recipe = load_recipe("llama-3.1-70b-fp8-rowwise-tp4-pp2-h100")
    assert isinstance(recipe, TensorRtRecipe)
    assert recipe.world_size == 8
    assert isinstance(load_recipe("llama-3.1-70b-nvfp4-tp2-b200"), PyTorchRecipe)
