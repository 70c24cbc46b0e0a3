# SPDX-License-Identifier: Apache-2.0
"""Pages with measured figures, `docs/decisions/` among them, say what committed results and the planner say."""

import re
from pathlib import Path

import pytest

from documents import admission_page, performance_page, planner_page
from documents.decision_pages import FOLDER, WRITERS
from trireme.base.project_files import CODE_ROOT

RESULTS = CODE_ROOT / "benchmarks" / "results"
GENERATED = re.compile(r"<!-- (.+?): written by make docs -->\n.*?<!-- end of \1 -->", re.DOTALL)
# A number that is alone in its cell, has a point or a unit; not that of a name (FP8), a width (16 bits) or a year.
FIGURE = re.compile(r"\|\s*[\d.,]+\s*(?=\|)|\d\.\d|\d\s?(?:%|x|ns|µs|ms|s|min|[kMG]i?B|tokens\S*|\$)(?!\w)")
MEASURED = [*(one.PAGE for one in (admission_page, performance_page, planner_page)), *sorted(FOLDER.glob("*.md"))]


def unsourced(text: str) -> list[str]:
    """Return the rows with figures that are not generated, in sections that name no result that is there."""
    found = []
    for section in re.split(r"^## ", GENERATED.sub("", text), flags=re.MULTILINE):
        rows = [line for line in section.splitlines() if line.startswith("|") and FIGURE.search(line)]
        named = re.findall(r"benchmarks/results/(\w[\w.-]+\.json)", section)
        if not (named and all((RESULTS / name).is_file() for name in named)):
            found += rows
    return found


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.name)
def test_each_table_with_figures_is_generated_or_names_its_result(page: Path) -> None:
    assert unsourced(page.read_text(encoding="utf-8")) == []


def test_a_table_with_figures_and_without_a_result_is_found() -> None:
    assert unsourced("| 16 bits | FP8, since 2025 |\n") == []
    assert unsourced("| 12 |\n| 1.5 |\n| 3 % |\n") == ["| 12 |", "| 1.5 |", "| 3 % |"]
    table = "## Speed\n\n| a | 12 ms |\n"
    assert unsourced(table) == ["| a | 12 ms |"]
    assert unsourced(table + "\nFrom `benchmarks/results/no_such_result.json`.\n") == ["| a | 12 ms |"]
    assert unsourced(table + "\nFrom `benchmarks/results/peers_2026-11-23.json`.\n") == []


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.name)
def test_each_result_that_is_named_is_there(page: Path) -> None:
    named = set(re.findall(r"\w+_\d{4}-\d\d-\d\d\.(?:jsonl\.gz|json|png)", page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not (RESULTS / name).is_file()] == []


@pytest.mark.parametrize("path", WRITERS, ids=lambda path: path.stem)
def test_a_decision_page_is_short_and_says_when_the_other_choice_is_right(path: Path) -> None:
    text = GENERATED.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[-2:] == ["When the other choice is right", "How to measure this on your own machine"]
    assert text.split("\n\n")[1].startswith("|"), "a table comes first"
    assert len(text.split()) <= 550
    assert f"({path.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")
