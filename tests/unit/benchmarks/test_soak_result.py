# SPDX-License-Identifier: Apache-2.0
"""`make soak` writes one result of one run of one commit, in which a missed goal is called one."""

import json
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.support import report

TESTS = """
import pytest
from benchmarks.soak import Evidence

pytestmark = pytest.mark.soak

@pytest.mark.parametrize("ms", [89.0, 90.5])
def test_goal(request, ms):
    evidence = Evidence(request.node.user_properties)
    evidence.note(f"latency {ms:g}", {"clients": 3})
    evidence.hold(f"p99 {ms:g}", ms, at_most=90)
    evidence.hold("rss", 1.0, at_most=2)
    evidence.end()

@pytest.mark.quiet
def test_alone(request):
    request.node.user_properties.append(("tritonserver", "2.51 (/opt/x)"))
    Evidence(request.node.user_properties).note("drains", 20)

@pytest.mark.quiet
def test_skipped():
    pytest.skip("no server")

def test_setup_that_fails(missing):
    pass
"""
COMMIT = "0" * 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of long tests, beside a folder of results of a clean commit."""
    (tmp_path / "test_long.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\nmarkers =\n  soak\n  quiet\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/fuzz_2026-01-01.json").write_text("{}")
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(soak, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "UNCOMMITTED_RESULTS", tmp_path / "uncommitted")
    for module in (report, soak):
        monkeypatch.setattr(module, "commit", lambda: COMMIT)
    return tmp_path


def options(folder: Path) -> list[str]:
    return ["-c", str(folder / "pytest.ini"), str(folder), "-q", "-p", "no:cacheprovider"]


def test_a_run_is_one_result_that_says_how_each_test_ended_and_which_goals_were_missed(folder: Path) -> None:
    (folder / "results" / report.result_path("soak", COMMIT).name).write_text('{"figures": {"of an earlier run": 1}}')
    assert soak.run(options(folder), []) == 1
    [path] = (folder / "results").glob("soak_*.json")
    found = json.loads(path.read_text())
    assert found["environment"]["commit"] == COMMIT
    assert found["tests"] == {"passed": 2, "failed": 2, "skipped": 1}
    assert found["failed"] == ["test_long::test_goal[90.5]", "test_long::test_setup_that_fails"]
    assert found["skipped"] == ["test_long::test_skipped"]
    assert found["missed_goals"] == ["p99 90.5"]
    assert [goal["goal"] for goal in found["goals"]] == ["p99 89", "p99 90.5", "rss", "rss"]
    assert found["goals"][0] == {"goal": "p99 89", "at_most": 90, "found": 89.0, "is_met": True}
    assert found["figures"] == {"latency 89": {"clients": 3}, "latency 90.5": {"clients": 3}, "drains": 20}
    assert found["servers"] == {"2.51": 1}
    assert found["other_results"] == []


def test_a_part_of_the_tests_makes_no_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "PARTS", soak.PARTS[1:])
    assert soak.run(options(folder), ["-k", "alone"]) == 0
    assert not list((folder / "results").glob("soak_*.json"))


def test_a_part_with_a_name_makes_a_result_that_says_which_part(folder: Path) -> None:
    assert soak.run(options(folder), ["-k", "alone or 89"], keep="some") == 0
    [path] = (folder / "results").glob("soak_*.json")
    found = json.loads(path.read_text())
    assert path.name.startswith("soak_some_")
    assert found["part"] == ["-k", "alone or 89"]
    assert found["tests"] == {"passed": 2}


def test_a_tree_that_is_no_commit_is_refused_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "commit", lambda: f"{COMMIT}-dirty")
    assert soak.run(options(folder), []) == 2
    assert soak.run(options(folder), ["-k", "alone"], keep="some") == 2
    assert "commit first" in capsys.readouterr().out
    assert not list((folder / "results").glob("soak_*.json"))
