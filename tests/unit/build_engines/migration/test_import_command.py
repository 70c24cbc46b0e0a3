# SPDX-License-Identifier: Apache-2.0
"""`trireme import` on the command line: the file, the report, the exit code."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from old_repositories import write_engine_config, write_old_repository
from test_migration import TOKENIZER

from build_engines.migration.import_report import Outcome
from build_engines.migration.importing import plan_import
from ensemble_configs.releases.release_manifest import address
from ensemble_configs.spec.deployment import load_deployment
from trireme.__main__ import main


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trireme", "import", *map(str, args)])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return write_old_repository(tmp_path / "old"), write_engine_config(tmp_path / "engine")


def test_a_deployment_is_written_and_every_setting_is_reported(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, engine = folders
    out = tmp_path / "new" / "llama.yaml"
    code, report, _ = run(
        capsys, monkeypatch, old, "--engine-dir", engine, "--tokenizer-dir", TOKENIZER, "--out", out, "--strict"
    )
    assert code == 0
    assert load_deployment(out).name == "llama"
    planned = plan_import(old, out=out, engine_dir=engine, tokenizer_dir=TOKENIZER)
    lines = report.splitlines()
    assert lines[0] == f"{old} (inflight_batcher_llm) -> {out}"
    assert [line[2:] for line in lines if line.startswith("  ")] == [
        str(entry) for outcome in Outcome for entry in planned.report.of(outcome)
    ]
    assert "CANNOT be carried (0)" in report


def test_strict_fails_when_something_cannot_be_carried_and_writes_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_old_repository(tmp_path / "old", values={"max_queue_size": "128"})
    out = tmp_path / "new.yaml"
    assert run(capsys, monkeypatch, old, "--out", out)[0] == 0
    assert run(capsys, monkeypatch, old, "--out", out, "--strict", "--force")[0] == 1
    assert yaml.safe_load(out.read_text())["name"] == "new"


def test_the_report_is_for_programs_too(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, engine = folders
    code, text, _ = run(capsys, monkeypatch, old, "--engine-dir", engine, "--out", tmp_path / "new.yaml", "--json")
    report = json.loads(text)
    assert (code, report["kind"], report["deployment"]) == (0, "inflight_batcher_llm", str(tmp_path / "new.yaml"))
    outcomes = [setting["outcome"] for setting in report["settings"]]
    assert report["counts"] == {outcome: outcomes.count(outcome) for outcome in ("carried", "implied", "lost")}
    [beams] = [row for row in report["settings"] if row["setting"] == "tensorrt_llm.max_beam_width"]
    assert beams == {
        "setting": "tensorrt_llm.max_beam_width",
        "value": "${max_beam_width}",
        "outcome": "carried",
        "where": "engine.max_beam_width",
        "why": "upstream's default, 1",
        "note": "not filled",
    }


def test_engine_and_tokenizer_become_a_release_where_that_is_asked_for(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, engine = folders
    out, release = tmp_path / "new.yaml", tmp_path / "release"
    options = ["--engine-dir", engine, "--tokenizer-dir", TOKENIZER, "--out", out, "--release-dir", release]
    code, _, error = run(capsys, monkeypatch, old, *options)
    assert (code, out.exists(), release.exists()) == (2, False, False)
    assert "--release-dir needs --num-parameters" in error
    code, report, _ = run(capsys, monkeypatch, old, *options, "--num-parameters", 1000, "--sm", 90, "--strict")
    assert code == 0
    assert load_deployment(out).model.release_dir == release
    assert "  tensorrt_llm.gpt_model_path = /old/engines/llama -> release_dir: a part of the release" in report
    assert f"  release = {address(release)} -> release_dir" in report.splitlines()


def test_a_file_that_is_there_is_not_replaced_unasked(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("by hand")
    code, _, error = run(capsys, monkeypatch, folders[0], "--out", out)
    assert (code, out.read_text()) == (2, "by hand")
    assert "is there already; name another file or add --force" in error


def test_what_is_no_repository_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = run(capsys, monkeypatch, tmp_path, "--out", tmp_path / "new.yaml")
    assert (code, error.count("\n")) == (2, 1)
    assert "has no tensorrt_llm/config.pbtxt" in error
    assert not (tmp_path / "new.yaml").exists()
