# SPDX-License-Identifier: Apache-2.0
"""Committed results name the commit that they are of; one of code that no commit holds is not put beside them."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.support import report
from benchmarks.support.report import RESULTS, commit, is_clean, write_result
from documents.results import parts_of, read
from trireme.base import provenance
from trireme.base.project_files import CODE_ROOT

# Results from before this was tested. No name is ever added here; a result that is measured anew goes.
OF_A_DIRTY_TREE = {
    "batch_beside_interactive_2026-11-22.json",
    "dynamo_mocker_2026-11-23.json",
    "engine_turns_demo_cpu_slower_machine_2026-11-22.json",
    "ensemble_overhead_random_125m_2026-11-21.json",
    "overload_2026-11-22.json",
    "quantization_demo_cpu_2026-11-21.json",
}
OF_A_LOST_COMMIT: set[str] = set()


def named_commits() -> dict[str, set[str]]:
    return {
        path.name: {str(part["commit"]) for part in parts_of(read(path)) if isinstance(part.get("commit"), str)}
        for path in sorted(RESULTS.glob("*.json"))
    }


def git(folder: Path, *args: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *args], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_committed_results_name_a_commit() -> None:
    assert [name for name, commits in named_commits().items() if not commits] == []


def test_committed_results_are_of_a_clean_tree() -> None:
    named = named_commits()
    assert {name for name, commits in named.items() if not all(map(is_clean, commits))} == OF_A_DIRTY_TREE
    for commits in named.values():
        assert all(is_clean(one.removesuffix("-dirty")) for one in commits)


def test_the_commits_of_results_are_in_the_history() -> None:
    try:
        if git(RESULTS, "rev-parse", "--is-shallow-repository") != "false":
            pytest.skip("a shallow clone has no history to look in")
        history = set(git(RESULTS, "rev-list", "HEAD").split())
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no git repository")
    lost = {
        name
        for name, commits in named_commits().items()
        if not {one.removesuffix("-dirty") for one in commits} <= history
    }
    assert lost == OF_A_LOST_COMMIT


def test_documents_say_which_results_no_commit_stands_for() -> None:
    unsaid = []
    for page in sorted([*CODE_ROOT.glob("*.md"), *CODE_ROOT.glob("docs/**/*.md")]):
        # Rows of a table say it each for itself.
        parts = re.split(r"\n\n|\n(?=\|)", page.read_text(encoding="utf-8"))
        for name in sorted(OF_A_DIRTY_TREE | OF_A_LOST_COMMIT):
            naming = [" ".join(part.split()) for part in parts if name.removesuffix(".json") in part]
            unsaid += [
                (page.name, part) for part in naming if not re.search("no clean commit|commit that is lost", part)
            ]
    assert unsaid == []


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of one commit, whose results `write_result` writes."""
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "x_2026-01-01.json").write_text("{}")
    (tmp_path / "code.py").write_text("1\n")
    (tmp_path / ".gitignore").write_text("build\n")
    for args in (("init",), ("add", "."), ("commit", "-m", "x")):
        git(tmp_path, *args)
    monkeypatch.setattr(report, "RESULTS", results)
    monkeypatch.setattr(report, "UNCOMMITTED_RESULTS", tmp_path / "build" / "results")
    monkeypatch.setattr(provenance, "CODE_ROOT", tmp_path)
    return tmp_path


def test_a_result_of_a_commit_goes_to_the_results_and_names_it(tree: Path) -> None:
    first = write_result("x", {"a": 1})
    assert first.parent == tree / "benchmarks" / "results"
    assert json.loads(first.read_text())["environment"]["commit"] == git(tree, "rev-parse", "HEAD")
    (tree / "benchmarks/results/x_2026-01-01.json").write_text("{1}")  # results are no code
    assert write_result("y", {"a": 1}).parent == first.parent


@pytest.mark.parametrize("name", ["code.py", "new.py"], ids=["changed", "untracked"])
def test_a_result_of_a_tree_that_is_no_commit_goes_elsewhere(tree: Path, name: str) -> None:
    (tree / name).write_text("2\n")
    assert commit() == git(tree, "rev-parse", "HEAD") + "-dirty"
    path = write_result("x", {"a": 1})
    assert path.parent == tree / "build" / "results"
    assert json.loads(path.read_text())["environment"]["commit"] == commit()


def test_a_result_is_not_of_the_commit_that_was_made_while_it_was_measured(tree: Path) -> None:
    begun = report.environment()
    (tree / "code.py").write_text("2\n")
    git(tree, "commit", "-am", "y")
    assert write_result("x", {"environment": begun}).parent == tree / "build" / "results"


def test_a_result_of_a_dirty_tree_does_not_become_clean_by_a_commit(tree: Path) -> None:
    (tree / "code.py").write_text("2\n")
    begun = report.environment()
    git(tree, "commit", "-am", "y")
    assert write_result("x", {"environment": begun}).parent == tree / "build" / "results"


def test_a_tree_without_history_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "CODE_ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() == "unknown"
    assert not is_clean(commit())
