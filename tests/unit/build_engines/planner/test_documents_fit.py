# SPDX-License-Identifier: Apache-2.0
"""Every recipe and deployment of ours, in files and in documents, passes the checks that users' own must pass."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_trtllm_commands import model_of

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpus
from build_engines.checkpoint.known_models import known_models
from build_engines.recipes.recipe import OpenVinoRecipe, VllmRecipe, load_recipe, recipe_names
from build_engines.recipes.recipe_checks import check_recipe
from ensemble_configs.releases.engine_fit import fit_findings
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.model_spec import ModelSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from trireme.base.project_files import CODE_ROOT

DOCUMENTS = [
    CODE_ROOT / "README.md",
    CODE_ROOT / "ARCHITECTURE.md",
    CODE_ROOT / "CONTRIBUTING.md",
    *sorted((CODE_ROOT / "docs").rglob("*.md")),
]
_PARTS = {*DeploymentSpec.model_fields, *ModelSpec.model_fields, *ReleaseSpec.model_fields}
# What a fragment of a deployment leaves out.
_REST = {"name": "fragment", "tokenizer": {"dir": "tokenizer"}, "engine": {"provider": "simulated"}}


def blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each block of YAML in a document that is keys and values."""
    for document in DOCUMENTS:
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)):
            text = re.sub(r"^\s*\.\.\.$", "", block, flags=re.MULTILINE)
            for part in yaml.safe_load_all(text):
                if isinstance(part, dict):
                    yield f"{document.relative_to(CODE_ROOT)} block {number}", part


def is_deployment(data: dict[str, Any]) -> bool:
    """Return whether all keys are a deployment's; Helm values and Kubernetes objects have others."""
    return "backend" not in data and set(data) <= _PARTS


RECIPES = [(where, data) for where, data in blocks() if "backend" in data and "format" in data]
DEPLOYMENTS = [(where, data) for where, data in blocks() if is_deployment(data)]
FILES = sorted(
    [*(CODE_ROOT / "ensemble_configs/deployments").glob("*.yaml"), *(CODE_ROOT / "benchmarks").rglob("random_*.yaml")]
)


def test_there_are_as_many_as_were_seen() -> None:
    assert len(RECIPES) >= 1
    assert len(DEPLOYMENTS) >= 8
    assert len(FILES) >= 7


def check(path: Path, model: str | None) -> None:
    recipe = load_recipe(path)
    gpu = None if isinstance(recipe, OpenVinoRecipe | VllmRecipe) else gpus()[recipe.gpu]
    config = yaml.safe_load((CODE_ROOT / "examples/demo_model/target/config.json").read_text())
    shape = read_model_shape(config if model is None else known_models()[model].config)
    assert check_recipe(recipe, shape, gpu, {"tensorrt_llm": "1.2.1"}) == []


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_of_ours_has_nothing_against_it(name: str) -> None:
    check(Path(name), None if name.startswith("demo") else model_of(name))


@pytest.mark.parametrize("data", [data for _, data in RECIPES], ids=[where for where, _ in RECIPES])
def test_a_recipe_in_a_document_has_nothing_against_it(data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    check(tmp_path / "recipe.yaml", model_of(data["name"]))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_deployment_of_ours_is_one_and_fits_its_engine(path: Path) -> None:
    for release in load_deployment(path).releases:
        assert fit_findings(release.engine) == []


@pytest.mark.parametrize("data", [data for _, data in DEPLOYMENTS], ids=[where for where, _ in DEPLOYMENTS])
def test_a_deployment_in_a_document_is_one(data: dict[str, Any], tmp_path: Path) -> None:
    flat = data if "models" in data else {**_REST, **data}
    if "release_dir" in data:
        flat.pop("tokenizer", None)
    models = [{**{key: _REST[key] for key in ("tokenizer", "engine")}, **each} for each in data.get("models", ())]
    document = {"name": "fragment", **flat, "models": models} if models else flat
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(document))
    for release in load_deployment(tmp_path / "deployment.yaml").releases:
        assert fit_findings(release.engine) == []
