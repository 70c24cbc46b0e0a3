# SPDX-License-Identifier: Apache-2.0
"""The output that docs/build.md shows, and the record of a build that a deployment reads."""

import json
import re
from pathlib import Path

import pytest

from build_engines.checkpoint.known_models import known_models
from build_engines.recipes.recipe import PyTorchRecipe, load_recipe, recipe_names
from build_engines.tensorrt_llm.pytorch_build import launch_settings
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

DOCUMENT = CODE_ROOT / "docs/build.md"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}


def test_the_dry_run_in_the_document_is_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "trireme build llama-3-8b-gptq-a10g --checkpoint /models/llama-3-8b-gptq --out releases --dry-run"
    shown = DOCUMENT.read_text().split(f"$ {command}\n")[1].split("```")[0].strip().splitlines()
    config = known_models()["llama-3.1-8b"].config | {"max_position_embeddings": 8192, "quantization_config": GPTQ}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SystemExit) as ended:
        run_command("build", command.replace("/models/llama-3-8b-gptq", str(tmp_path)).split()[2:])
    assert not ended.value.code
    printed = capsys.readouterr().out.replace(str(tmp_path), "/models/llama-3-8b-gptq").strip().splitlines()
    assert len(printed) == len(shown)
    for line, wanted in zip(printed, shown, strict=True):
        assert line == wanted or line.startswith(wanted.removesuffix("...") if wanted.endswith(" ...") else "\0")


def test_the_recipe_in_the_document_is_one_of_ours(tmp_path: Path) -> None:
    block = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    (tmp_path / "recipe.yaml").write_text(block)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert recipe.model_dump(exclude={"calibration"}) == load_recipe(recipe.name).model_dump(exclude={"calibration"})


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).backend == "pytorch"])
def test_a_launch_file_is_the_engine_of_a_deployment(name: str) -> None:
    recipe = load_recipe(name)
    assert isinstance(recipe, PyTorchRecipe)
    engine = PyTorchEngineSpec.model_validate(launch_settings(recipe))
    assert engine.world_size == recipe.world_size
    assert engine.max_num_batched_tokens == recipe.max_num_tokens
    assert (engine.speculation is None) == (recipe.speculation is None)
