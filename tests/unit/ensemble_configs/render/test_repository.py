# SPDX-License-Identifier: Apache-2.0
"""A folder becomes exactly the model repository of a deployment, and nothing that is somebody else's is lost."""

from pathlib import Path

import pytest
from simulated_release import TOKENIZER

from ensemble_configs.render.repository import (
    DEFAULT_DEPLOYMENT,
    DEFAULT_REPOSITORY,
    render_repository,
    write_repository,
)
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.model_names import MODELS, PYTHON_MODELS
from trireme.base.errors import SpecError
from trireme.render_command import render


@pytest.fixture(scope="module")
def spec() -> DeploymentSpec:
    return load_deployment(DEFAULT_DEPLOYMENT)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_every_model_has_its_config_and_its_version(spec: DeploymentSpec, tmp_path: Path) -> None:
    written = write_repository(spec, root=tmp_path, source="x.yaml")
    assert files(tmp_path) == {str(path) for path in written}
    assert {f"{model}/config.pbtxt" for model in MODELS} <= files(tmp_path)
    for model in PYTHON_MODELS:
        assert {f"{model}/1/model.py", f"{model}/1/release.json"} <= files(tmp_path)
        adapter = Path(model) / "1" / "model.py"
        assert (tmp_path / adapter).read_bytes() == (DEFAULT_REPOSITORY / adapter).read_bytes()
    assert (tmp_path / "ensemble" / "1").is_dir()


def test_a_release_is_the_version_of_every_model(spec: DeploymentSpec, tmp_path: Path) -> None:
    write_repository(spec.with_model(release=7), root=tmp_path, source="x.yaml")
    for model in MODELS:
        assert [path.name for path in (tmp_path / model).iterdir() if path.is_dir()] == ["7"]


def test_rendering_writes_nothing(spec: DeploymentSpec, tmp_path: Path) -> None:
    assert render_repository(spec, root=tmp_path / "new", source="x.yaml")
    assert not (tmp_path / "new").exists()


def test_a_repository_that_is_right_is_not_touched(spec: DeploymentSpec, tmp_path: Path) -> None:
    assert write_repository(spec, root=tmp_path, source="x") != []
    assert write_repository(spec, root=tmp_path, source="x") == []


def test_only_what_differs_is_written(spec: DeploymentSpec, tmp_path: Path) -> None:
    write_repository(spec, root=tmp_path, source="x")
    changed = tmp_path / "tensorrt_llm" / "config.pbtxt"
    changed.write_text("spoiled")
    (tmp_path / "preprocessing" / "1" / "model.py").unlink()
    written = write_repository(spec, root=tmp_path, source="x")
    assert set(written) == {Path("tensorrt_llm/config.pbtxt"), Path("preprocessing/1/model.py")}
    assert changed.read_text() != "spoiled"


def test_a_model_that_was_rendered_and_is_not_of_the_deployment_any_more_is_removed(
    spec: DeploymentSpec, tmp_path: Path
) -> None:
    write_repository(spec, root=tmp_path, source="x")
    (tmp_path / "ensemble").rename(tmp_path / "former")
    (tmp_path / "notes.txt").write_text("a file is no model")
    write_repository(spec, root=tmp_path, source="x")
    assert not (tmp_path / "former").exists()
    assert (tmp_path / "notes.txt").exists()


def test_a_folder_of_somebody_elses_is_neither_removed_nor_left_for_triton_to_load(
    spec: DeploymentSpec, tmp_path: Path
) -> None:
    # `trireme render --out .` must not empty the folder that it is run in.
    mine = tmp_path / "thesis" / "chapter.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    hand_made = tmp_path / "other_model" / "config.pbtxt"
    hand_made.parent.mkdir()
    hand_made.write_text('name: "other_model"\n')
    (tmp_path / "linked").symlink_to(DEFAULT_REPOSITORY / "ensemble")
    with pytest.raises(SpecError, match=rf"{tmp_path} holds linked, other_model, thesis; .* another folder") as caught:
        write_repository(spec, root=tmp_path, source="x")
    assert caught.value.facts == {"file": tmp_path}
    assert mine.read_text() == "years of work"
    assert hand_made.exists()
    assert (DEFAULT_REPOSITORY / "ensemble" / "config.pbtxt").exists()
    assert not (tmp_path / "ensemble").exists(), "nothing was written"


def test_render_writes_where_it_is_told_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render(DEFAULT_DEPLOYMENT, tmp_path)
    first = capsys.readouterr().out.splitlines()
    assert first[0] == f"{tmp_path}: {len(first) - 1} files written"
    assert "  tensorrt_llm/config.pbtxt" in first
    config = (tmp_path / "tensorrt_llm" / "config.pbtxt").read_text()
    assert config.startswith("# Generated from ensemble_configs/deployments/demo_cpu.yaml by make render\n")
    render(DEFAULT_DEPLOYMENT, tmp_path)
    assert capsys.readouterr().out == f"{tmp_path}: 0 files written\n"


def test_another_deployment_is_rendered_under_build_and_named_without_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"name: mine\ntokenizer: {{dir: {TOKENIZER}}}\nengine: {{provider: simulated}}\n")
    render(mine)
    config = tmp_path / "build" / "mine" / "model_repository" / "ensemble" / "config.pbtxt"
    assert config.read_text().startswith("# Generated from mine.yaml by make render\n")
