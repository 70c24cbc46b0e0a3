# SPDX-License-Identifier: Apache-2.0
"""The results of an evaluation in a release: figures, an override with its author, and another address."""

import contextlib
import shutil
from pathlib import Path

import pytest
from demo_release import alter_a_byte, write_demo_release

from build_engines.cache.release_cache import ReleaseCache
from build_engines.evaluation import recording
from build_engines.evaluation.evaluation import Evaluation
from build_engines.evaluation.recording import record, refuse_unwritable
from build_engines.evaluation.verdict import Figure
from ensemble_configs.releases.promotion import check_evaluation
from ensemble_configs.releases.release_lock import in_use, lock_file, locked
from ensemble_configs.releases.release_manifest import ReleaseManifest, address, load_manifest, seal, verify
from ensemble_configs.releases.release_parts import Override
from trireme.base.errors import SpecError

OVERRIDE = Override(reason="a trial", who="A. Person")


def evaluation(release: Path, *, passed: bool | None, value: float = 0.25) -> Evaluation:
    figure = Figure(
        task="facts",
        group="en",
        metric="accuracy_drop",
        value=value,
        num_items=8,
        interval=(0.0, 0.5),
        candidate=0.75,
        baseline=1.0,
        limit=0.1,
        passed=passed,
    )
    return Evaluation(
        release="demo-int8",
        base="demo-fp16",
        release_address=address(release),
        base_address="b" * 64,
        tasks_sha256="c" * 64,
        num_items=8,
        num_too_long=0,
        seed=1,
        computed_in="f32",
        passed=passed,
        worst={"accuracy_drop": figure},
        figures=[figure],
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_release(tmp_path_factory.mktemp("original") / "demo")


@pytest.fixture
def release(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "demo"))


def test_both_sides_and_the_verdict_are_in_the_manifest(release: Path) -> None:
    before = address(release)
    recorded = record(release, evaluation(release, passed=True), None)
    assert (recorded.path, recorded.old_address, recorded.address) == (release, before, address(release))
    assert recorded.address != before
    manifest = verify(release)
    share, drop = manifest.evaluation
    assert (share.metric, share.value, share.baseline, share.passed) == ("accuracy", 0.75, 1.0, None)
    assert (drop.metric, drop.value, drop.interval, drop.passed) == ("accuracy_drop", 0.25, (0.0, 0.5), True)
    assert manifest.evaluated_against is not None
    assert (manifest.evaluated_against.address, manifest.evaluated_against.tasks_sha256) == ("b" * 64, "c" * 64)


def test_the_same_results_give_the_same_address(release: Path) -> None:
    first = record(release, evaluation(release, passed=True), None)
    second = record(release, evaluation(release, passed=True), None)
    assert second.address == second.old_address == first.address


@pytest.mark.parametrize("is_pulled", [False, True])
def test_a_folder_that_is_named_for_its_address_gets_its_new_name(release: Path, *, is_pulled: bool) -> None:
    old = address(release)
    folder = release.rename(release.with_name(old if is_pulled else f"demo-int8-{old[:12]}"))
    recorded = record(folder, evaluation(folder, passed=True), None)
    new = address(recorded.path)
    assert recorded.path.name == (new if is_pulled else f"demo-int8-{new[:12]}")
    assert not folder.exists()


def test_an_override_is_recorded_and_lasts_until_the_next_evaluation(release: Path) -> None:
    record(release, evaluation(release, passed=False), None)
    assert [finding.check for finding in check_evaluation(load_manifest(release))] == ["evaluation"]
    record(release, evaluation(release, passed=False), OVERRIDE)
    assert load_manifest(release).override == OVERRIDE
    assert check_evaluation(load_manifest(release)) == []
    record(release, evaluation(release, passed=False), None)
    assert load_manifest(release).override is None


@pytest.mark.parametrize("passed", [True, None])
def test_what_did_not_fail_cannot_be_overridden(release: Path, passed: bool | None) -> None:
    before = address(release)
    with pytest.raises(SpecError, match="nothing to override"):
        record(release, evaluation(release, passed=passed), OVERRIDE)
    assert address(release) == before


def test_what_changed_meanwhile_is_not_recorded(release: Path) -> None:
    found = evaluation(release, passed=True)
    record(release, evaluation(release, passed=True, value=0.0), None)
    with pytest.raises(SpecError, match="was changed while it was evaluated"):
        record(release, found, None)
    alter_a_byte(release / "engine" / "openvino_model.bin")
    with pytest.raises(SpecError, match=r"engine/openvino_model\.bin"):
        record(release, evaluation(release, passed=True), None)


def test_the_number_format_that_was_computed_in_is_kept(tmp_path: Path) -> None:
    release = write_demo_release(tmp_path / "release")
    recorded = record(release, evaluation(release, passed=True), None)
    assert load_manifest(recorded.path).evaluated_against.computed_in == "f32"  # type: ignore[union-attr]


def test_a_release_that_cannot_be_written_to_is_refused_before_it_is_asked_anything(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the results cannot be recorded in it; use --no-record"):
        refuse_unwritable(tmp_path / "not there")
    refuse_unwritable(write_demo_release(tmp_path / "release"))


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes()) for path in files}


@pytest.mark.parametrize("passed", [True, None, False])
@pytest.mark.parametrize("name", ["built", "pulled", "of its own"])
def test_a_release_that_is_in_use_stays_and_another_beside_it_has_the_results(
    release: Path, name: str, passed: bool | None
) -> None:
    old = address(release)
    (release / "provenance.json").write_text("{}")
    (release / "release.sig").write_bytes(b"of the old address")
    folder = release.rename(
        release.with_name({"built": f"demo-int8-{old[:12]}", "pulled": old, "of its own": "mine"}[name])
    )
    before = content(folder)
    with in_use(folder):
        recorded = record(folder, evaluation(folder, passed=passed), None)
    assert content(folder) == before
    assert recorded.was_in_use
    new = recorded.address
    place = {"built": f"demo-int8-{new[:12]}", "pulled": new, "of its own": f"mine-{new[:12]}"}[name]
    assert recorded.path == folder.with_name(place)
    assert verify(recorded.path).evaluation[-1].passed is passed
    shared = content(recorded.path)
    assert {path for path in before if shared.get(path) != before[path]} == {"release.json", "release.sig"}
    assert "release.sig" not in shared  # it would not hold
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted([folder.name, place])


def test_results_that_are_recorded_twice_of_a_release_in_use_have_one_place(release: Path) -> None:
    with in_use(release):
        first = record(release, evaluation(release, passed=True), None)
        assert record(release, evaluation(release, passed=True), None) == first
        (first.path / "release.json").unlink()
        with pytest.raises(SpecError, match=r"release\.json"):
            record(release, evaluation(release, passed=True), None)
    with in_use(first.path):
        pass
    assert sorted(path.name for path in release.parent.iterdir()) == sorted([release.name, first.path.name])


def test_nobody_uses_a_release_while_results_are_written_into_it(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def sealing(folder: Path, manifest: ReleaseManifest) -> str:
        with locked(folder, is_shared=True) as could_be_used:
            seen.append(could_be_used)
        return seal(folder, manifest)

    monkeypatch.setattr(recording, "seal", sealing)
    record(release, evaluation(release, passed=True), None)
    assert seen == [False]


@pytest.mark.parametrize("is_used", [False, True])
def test_a_cache_knows_the_release_with_the_results_too(release: Path, tmp_path: Path, *, is_used: bool) -> None:
    cache = ReleaseCache(tmp_path / "cache", max_bytes=10**9, tell=print)
    folder = cache.pull(release, num_jobs=1, on_bytes=id).folder
    old_lock = lock_file(folder)
    with in_use(folder) if is_used else contextlib.nullcontext():
        recorded = record(folder, evaluation(folder, passed=True), None)
    assert recorded.was_in_use is is_used
    assert folder.exists() is is_used
    assert lock_file(recorded.path).read_text() == old_lock.read_text()


def test_a_folder_that_could_not_get_its_name_is_refused_before_it_is_asked_anything(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_unwritable(release)
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != release.parent)  # root may write anywhere
    refuse_unwritable(release)  # its name stays
    with in_use(release), pytest.raises(SpecError, match=f"{release.parent} cannot be written to"):
        refuse_unwritable(release)
    folder = release.rename(release.with_name(f"demo-int8-{address(release)[:12]}"))
    with pytest.raises(SpecError, match=f"{folder.parent} cannot be written to"):
        refuse_unwritable(folder)
