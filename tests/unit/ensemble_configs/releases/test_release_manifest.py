# SPDX-License-Identifier: Apache-2.0
"""A release is what its manifest lists: addressed by content, and refused by name where a file is not what it was."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_release import alter_a_byte, copy_tokenizer, demo_manifest, write_demo_release, write_gpu_release

from ensemble_configs.releases.file_hashes import hash_file, hash_listing
from ensemble_configs.releases.release_manifest import address, find_release, hash_recipe, load_manifest, seal, verify
from ensemble_configs.releases.release_parts import DraftModel, EvaluationResult, ModelIdentity, Override
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError

MODEL = "engine/openvino_model.bin"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_demo_release(tmp_path / "release")


def test_a_sealed_release_lists_every_file_and_is_whole(release: Path) -> None:
    manifest = verify(release)
    on_disk = {path.relative_to(release).as_posix() for path in release.rglob("*") if path.is_file()}
    assert set(manifest.files) == on_disk - {"release.json"}
    assert manifest.files[MODEL].sha256 == hash_file(release / MODEL)
    assert manifest.files[MODEL].size == (release / MODEL).stat().st_size


def test_the_address_is_of_the_sorted_file_list(release: Path) -> None:
    files = {path.relative_to(release).as_posix(): hash_file(path) for path in release.rglob("*") if path.is_file()}
    assert address(release) == hash_listing(files)


def test_two_releases_of_the_same_content_have_one_address(release: Path, tmp_path: Path) -> None:
    other = write_demo_release(tmp_path / "other")
    write_atomically(other / "provenance.json", "{}")
    (other / "release.sig").write_bytes(b"signature")
    assert address(other) == address(release)
    verify(other)


def test_another_recipe_is_another_address(release: Path, tmp_path: Path) -> None:
    recipe = {"format": "int4"}
    other = write_demo_release(tmp_path / "other", recipe=recipe, recipe_sha256=hash_recipe(dict(recipe)))
    assert address(other) != address(release)


def test_evaluation_results_change_the_address_and_come_back_as_they_were(release: Path) -> None:
    before = address(release)
    results = (
        EvaluationResult(task="perplexity", group="de", metric="ppl", value=7.25, interval=(7.0, 7.5), passed=True),
        EvaluationResult(task="facts", metric="exact_match", value=1, baseline=0.99),
    )
    override = Override(reason="a canary only", who="the one on call")
    changed = load_manifest(release).model_copy(update={"evaluation": results, "override": override})
    assert seal(release, changed) == address(release) != before
    manifest = verify(release)
    assert (manifest.evaluation, manifest.override) == (results, override)


Damage = Callable[[Path], None]


@pytest.mark.parametrize(
    ("damage", "name", "found"),
    [
        pytest.param(lambda r: alter_a_byte(r / MODEL), MODEL, "SHA-256", id="altered"),
        pytest.param(lambda r: (r / MODEL).unlink(), MODEL, "no such file", id="missing"),
        pytest.param(lambda r: (r / MODEL).write_bytes(b"short"), MODEL, "5 bytes", id="cut"),
        pytest.param(lambda r: (r / "engine/x").touch(), "engine/x", "does not list", id="extra"),
        pytest.param(
            lambda r: (r / MODEL).rename(r / "engine/away") and (r / MODEL).symlink_to("away"),
            MODEL,
            "not a plain file",
            id="link",
        ),
    ],
)
def test_a_damaged_release_is_refused_with_the_file(release: Path, damage: Damage, name: str, found: str) -> None:
    damage(release)
    with pytest.raises(SpecError, match=rf"file {name}: found .*{found}.*, wanted .*; .*release") as caught:
        verify(release)
    assert str(release) in str(caught.value)


def test_a_quick_look_sees_sizes_only(release: Path) -> None:
    alter_a_byte(release / MODEL)
    verify(release, is_quick=True)
    with (release / MODEL).open("ab") as file:
        file.write(b"1")
    with pytest.raises(SpecError, match=f"file {MODEL}"):
        verify(release, is_quick=True)


def test_all_damage_is_told_at_once(release: Path) -> None:
    (release / MODEL).unlink()
    alter_a_byte(release / "tokenizer/tokenizer.json")
    with pytest.raises(SpecError, match=rf"(?s)file {MODEL}: .*file tokenizer/tokenizer.json: "):
        verify(release)


def test_a_folder_without_a_manifest_is_no_release(release: Path) -> None:
    (release / "release.json").unlink()
    for use in (load_manifest, verify, address):
        with pytest.raises(SpecError, match=r"no release.json: not a release, or one that was not finished; build"):
            use(release)
    with pytest.raises(SpecError, match="does not exist"):
        load_manifest(release / "nowhere")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        pytest.param({"manifest_version": 2}, "manifest_version", id="a later format"),
        pytest.param({"colour": "red"}, "colour: extra inputs", id="unknown key"),
        pytest.param({"world_size": 2}, r"world_size \(2\) is not tp_size \(1\)", id="ranks that do not multiply"),
        pytest.param({"recipe": {}}, "recipe_sha256 is not that of the recipe", id="another recipe"),
        pytest.param({"versions": {"nncf": "3.4.0"}}, "versions does not name openvino", id="no version of the engine"),
        pytest.param({"files": {}}, "does not list engine/openvino_model.xml", id="no files"),
        pytest.param({"files": {"../x": {"sha256": "0" * 64, "size": 1}}}, "not a plain relative path", id="outside"),
        pytest.param({"files": {"/x": {"sha256": "0" * 64, "size": 1}}}, "not a plain relative path", id="absolute"),
        pytest.param({"files": {"x\ny": {"sha256": "0" * 64, "size": 1}}}, "not a plain relative path", id="two lines"),
        pytest.param({"files": {"a//b": {"sha256": "0" * 64, "size": 1}}}, "not a plain relative path", id="two names"),
        pytest.param({"tokenizer_sha256": "x"}, "tokenizer_sha256: string should match", id="no hash"),
    ],
)
def test_a_manifest_that_is_not_valid_is_refused_by_field(
    release: Path, change: dict[str, object], finding: str
) -> None:
    path = release / "release.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SpecError, match=finding):
        load_manifest(release)


def test_a_manifest_that_is_cut_is_refused(release: Path) -> None:
    path = release / "release.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(SpecError, match=r"release.json is not JSON"):
        load_manifest(release)


def unsealed(folder: Path) -> Path:
    copy_tokenizer(folder)
    (folder / "engine").mkdir()
    return folder


def test_nothing_is_sealed_that_lacks_a_file_of_its_provider(tmp_path: Path) -> None:
    folder = unsealed(tmp_path / "release")
    with pytest.raises(SpecError, match=r"has no engine/openvino_model.xml, engine/openvino_model.bin"):
        seal(folder, demo_manifest())
    assert not (folder / "release.json").exists()


def test_an_engine_of_two_ranks_has_two_files(tmp_path: Path) -> None:
    release = write_gpu_release(tmp_path / "release", tp_size=2, world_size=2)
    manifest = load_manifest(release)
    (release / "release.json").unlink()
    (release / "engine/rank1.engine").unlink()
    with pytest.raises(SpecError, match=r"has no engine/rank1.engine, so"):
        seal(release, manifest)
    assert not (release / "release.json").exists()


def test_a_draft_model_must_be_there(tmp_path: Path) -> None:
    release = write_demo_release(tmp_path / "release")
    draft = DraftModel(
        model=ModelIdentity(architecture="LlamaForCausalLM", num_parameters=1000, source="x"),
        weights_sha256="0" * 64,
        weight_bytes_per_rank=1000,
        kv_bytes_per_token=10,
    )
    with pytest.raises(SpecError, match=r"has no draft/config.json"):
        seal(release, demo_manifest(draft=draft))


def test_a_release_is_not_sealed_with_another_tokenizer(release: Path) -> None:
    (release / "release.json").unlink()
    alter_a_byte(release / "tokenizer/tokenizer.json")
    with pytest.raises(SpecError, match=r"tokenizer_sha256 is .*, but tokenizer/tokenizer.json has"):
        seal(release, demo_manifest())


def test_what_is_not_a_plain_file_is_not_sealed(release: Path) -> None:
    (release / "engine/link").symlink_to("/etc/hostname")
    with pytest.raises(SpecError, match="engine/link is not a plain file"):
        seal(release, load_manifest(release))
    (release / "engine/link").unlink()
    os.mkfifo(release / "engine/pipe")
    with pytest.raises(SpecError, match="engine/pipe is not a plain file"):
        seal(release, load_manifest(release))


def test_what_was_left_of_an_interrupted_seal_does_no_harm(release: Path) -> None:
    (release / ".release.json.draft").write_text("half")
    verify(release)
    assert seal(release, load_manifest(release)) == address(release)
    assert not (release / ".release.json.draft").exists()


def test_the_release_of_an_engine_folder_is_its_parent(release: Path, tmp_path: Path) -> None:
    assert find_release(release / "engine") == release
    assert find_release(tmp_path / "engine") is None
    link = tmp_path / "current"
    link.symlink_to(release)
    assert find_release(link / "engine") == release


def test_the_release_json_of_a_model_repository_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "release.json").write_text('{"release": 1}')
    assert find_release(tmp_path / "engine") is None


def test_a_broken_manifest_beside_an_engine_is_refused(release: Path) -> None:
    (release / "release.json").write_text("{")
    with pytest.raises(SpecError, match="is not JSON"):
        find_release(release / "engine")
