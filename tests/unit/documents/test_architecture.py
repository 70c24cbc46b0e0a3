# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md names every room and nothing that is not there; README.md is a page."""

import re
from pathlib import Path

import pytest

from trireme.base.project_files import CODE_ROOT

PAGE = (CODE_ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = ("benchmarks", "build_engines", "clients", "ensemble_configs", "gateway", "serving", "trireme")


def rooms_of(package: str) -> list[str]:
    """Return the folders of a package that hold modules."""
    return sorted(file.parent.name for file in (CODE_ROOT / package).glob("*/__init__.py"))


def section_of(package: str) -> str:
    """Return the rows of the table that begin with a package's and end before the next package's."""
    rows = PAGE.split("## Rooms")[1].splitlines()
    first = next(number for number, row in enumerate(rows) if row.startswith(f"| `{package}/"))
    last = next(number for number, row in enumerate(rows[first + 1 :], first + 1) if not row.startswith("| ·"))
    return "\n".join(rows[first:last])


@pytest.mark.parametrize("package", PACKAGES)
def test_each_room_is_in_the_table(package: str) -> None:
    assert [room for room in rooms_of(package) if f"`{room}/`" not in section_of(package)] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:serving|clients)\.[a-z_.]+)`", PAGE))))
def test_each_module_that_it_names_is_there(name: str) -> None:
    path = CODE_ROOT / Path(*name.split("."))
    assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_the_readme_is_a_page() -> None:
    lines = (CODE_ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []


def test_no_document_holds_a_conflict_that_was_not_resolved() -> None:
    documents = [*CODE_ROOT.glob("*.md"), *CODE_ROOT.glob("docs/**/*.md")]
    assert len(documents) > 30
    assert [each.name for each in documents if re.search(r"^(<{7}|>{7}) ", each.read_text(), re.MULTILINE)] == []
