# SPDX-License-Identifier: Apache-2.0
"""What an evaluation leaves in a release: results, who overrode them, and another address."""

import shutil
from pathlib import Path

import pytest
from demo_release import alter_a_byte, write_demo_release

from build_engines.evaluation.evaluation import Evaluation
from build_engines.evaluation.recording import record, refuse_unwritable
from build_engines.evaluation.verdict import Figure
from ensemble_configs.errors import SpecError
from ensemble_configs.promotion import check_evaluation
from ensemble_configs.release_manifest import address, load_manifest, verify
from ensemble_configs.release_parts import Override

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
    refuse_unwritable(tmp_path)
