# SPDX-License-Identifier: Apache-2.0
"""Folders and files that cannot be written or read are refused in one line, before any work."""

import json
import os
import shutil
from pathlib import Path

import pytest
from bound_by_permissions import refusal, trireme
from demo_release import write_demo_release
from old_repositories import write_engine_config, write_old_repository
from test_migration import TOKENIZER

from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEMO = CODE_ROOT / "examples/demo_model/target"


def refused_paths(folder: Path) -> dict[str, tuple[Path, str]]:
    """Return folders that cannot be written to, each with the reason."""
    (folder / "file").touch()
    (folder / "read-only").mkdir(mode=0o555)
    return {
        "in /proc": (Path("/proc/foo"), "No such file or directory"),
        "below a device": (Path("/dev/null/x"), "/dev/null is not a folder"),
        "a file": (folder / "file", f"{folder / 'file'} is not a folder"),
        "below a file": (folder / "file" / "a" / "b", f"{folder / 'file'} is not a folder"),
        "read-only": (folder / "read-only", "Permission denied"),
        "below a read-only one": (folder / "read-only" / "a", "Permission denied"),
        "too long a name": (folder / ("x" * 300), "File name too long"),
    }


KINDS = [
    "in /proc", "below a device", "a file", "below a file", "read-only", "below a read-only one", "too long a name",
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_is_refused_a_place_that_cannot_be_written_before_anything_is_hashed(tmp_path: Path, kind: str) -> None:
    path, why = refused_paths(tmp_path)[kind]
    said = refusal("build", "demo-int8", "--checkpoint", DEMO, "--out", path)
    assert said.startswith(f"trireme: --out {path} cannot be written to: {why}; name a folder")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_pull_is_refused_a_place_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    path, why = refused_paths(tmp_path)[kind]
    release = write_demo_release(tmp_path / "release")
    said = refusal("pull", release, "--to", path)
    assert said == f"trireme: --to {path} cannot be written to: {why}; name a folder that you may write to"


@pytest.mark.parametrize("folder", [".locks", ".staging", "."])
def test_a_pull_is_refused_a_cache_that_another_user_has_made(tmp_path: Path, folder: str) -> None:
    cache = tmp_path / "cache"
    first = write_demo_release(tmp_path / "first")
    assert trireme("pull", first, "--to", cache).returncode == 0
    mine = (cache / folder).stat()
    (cache / folder).chmod(0o555)
    second = write_demo_release(tmp_path / "second", name="second")
    said = refusal("pull", second, "--to", cache)
    (cache / folder).chmod(0o755)
    assert "Permission denied" in said
    if folder == ".":
        assert said.startswith(f"trireme: --to {cache} cannot be written to")
    else:
        assert f"{cache / folder} belongs to user {mine.st_uid} and group {mine.st_gid} (dr-xr-xr-x)" in said
        assert f"this is user {os.geteuid()}; let all who share a cache run as one user" in said
    assert trireme("pull", second, "--to", cache).returncode == 0


def test_a_deployment_is_refused_a_file_that_cannot_be_written_before_anything_is_pulled(tmp_path: Path) -> None:
    release = write_demo_release(tmp_path / "release")
    (tmp_path / "d.yaml").write_text(f"{{name: d, release_dir: {release}, engine: {{provider: openvino}}}}\n")
    (tmp_path / "folder").mkdir()
    said = refusal("pull", "--deployment", tmp_path / "d.yaml", "--to", tmp_path / "to", "--out", tmp_path / "folder")
    assert f"--out {tmp_path / 'folder'} is a folder; name a file in it" in said
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_build_names_the_file_of_a_checkpoint_that_it_may_not_read(tmp_path: Path, name: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    (checkpoint / name).chmod(0)
    said = refusal("build", "demo-int8", "--checkpoint", checkpoint, "--out", tmp_path / "out")
    assert str(checkpoint / name) in said
    assert "Permission denied" in said


def test_an_import_is_refused_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    old = write_old_repository(tmp_path / "old")
    folder = tmp_path / "folder"
    folder.mkdir()
    assert f"--out {folder} is a folder; name a file in it" in refusal("import", old, "--out", folder, "--force")
    locked = tmp_path / "locked.yaml"
    locked.touch(mode=0o444)
    said = refusal("import", old, "--out", locked, "--force")
    assert f"--out {locked} cannot be written: Permission denied; name another file" in said
    folder.chmod(0o555)
    said = refusal("import", old, "--out", folder / "new.yaml")
    assert f"--out {folder} cannot be written to: Permission denied; name a folder that you may write to" in said
    assert "--out /proc/x cannot be written to" in refusal("import", old, "--out", "/proc/x/new.yaml")


def test_an_import_makes_no_release_in_what_it_is_made_of(tmp_path: Path) -> None:
    old, engine = write_old_repository(tmp_path / "old"), write_engine_config(tmp_path / "engine")
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(TOKENIZER, tokenizer)
    before = sorted(tmp_path.rglob("*"))
    given = [old, "--engine-dir", engine, "--tokenizer-dir", tokenizer, "--num-parameters", 1000]
    for folder in (old, engine, tokenizer):
        said = refusal("import", *given, "--out", tmp_path / "new.yaml", "--release-dir", folder / "release")
        assert f"--release-dir {folder / 'release'} lies in {folder}" in said
        assert "name a folder elsewhere" in said
    said = refusal("import", *given, "--out", tmp_path / "new.yaml", "--release-dir", "/proc/x")
    assert "--release-dir /proc/x cannot be written to: No such file or directory" in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "mode"), [("tensorrt_llm", 0), ("tensorrt_llm", 0o600), ("tensorrt_llm/config.pbtxt", 0)]
)
def test_an_import_names_a_model_that_it_may_not_read(tmp_path: Path, name: str, mode: int) -> None:
    old = write_old_repository(tmp_path / "old")
    (old / name).chmod(mode)
    said = refusal("import", old, "--out", tmp_path / "new.yaml")
    assert "tensorrt_llm/config.pbtxt: Permission denied" in said
    (old / name).chmod(0o700)


@pytest.mark.parametrize(("name", "mode"), [("engine", 0), ("engine", 0o600), ("engine/config.json", 0)])
def test_a_doctor_says_that_it_may_not_read_a_part_of_a_release(tmp_path: Path, name: str, mode: int) -> None:
    release = write_demo_release(tmp_path / "release")
    (release / name).chmod(mode)
    result = trireme("doctor", release, "--json")
    (release / name).chmod(0o700)
    assert result.returncode == 1, result
    (facts,) = json.loads(result.stdout)
    found = [(each["check"], each["found"], each["next_step"]) for each in facts["findings"]]
    assert found == [(f"file {name}", "Permission denied", "let this user read it")]
