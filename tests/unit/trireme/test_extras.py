# SPDX-License-Identifier: Apache-2.0
"""The cure of a missing optional package names this project's own files, and never a name on a public index."""

import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement

from trireme.base import extras
from trireme.base.extras import how_to_install
from trireme.base.project_files import CODE_ROOT

EXTRAS = tomllib.loads((CODE_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_checkout_is_named_by_its_path() -> None:
    assert how_to_install("plot") == f"pip install '{CODE_ROOT}[plot]'"


def test_an_installation_without_its_checkout_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "IS_CHECKOUT", False)
    for extra in ("plot", "tracing", "kubernetes"):
        told = {str(Requirement(each)) for each in how_to_install(extra).split("'")[1::2]}
        assert told == {str(Requirement(each)) for each in EXTRAS[extra]}
    assert how_to_install("").startswith("pip install '")
    assert "openvino-genai" in how_to_install("")


def test_nothing_tells_anybody_to_install_the_name_which_on_pypi_is_another_projects() -> None:
    # trireme 1.3.1 of 2017, a migration tool for Cassandra: its package of the same name would come before ours.
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.yaml"], cwd=CODE_ROOT, capture_output=True, text=True, check=True
    )
    told = []
    for name in tracked.stdout.split():
        text = (CODE_ROOT / name).read_text(encoding="utf-8")
        told += [f"{name}: {found}" for found in re.findall(r"\btrireme\[\w+|pip install '?trireme\b", text)]
    assert [line for line in told if not line.startswith(("tests/", "CHANGELOG.md"))] == []


def test_every_extra_that_is_told_is_there() -> None:
    sources = [path.read_text() for room in ("serving", "clients", "build_engines", "ensemble_configs", "gateway",
               "observability")
               for path in (CODE_ROOT / room).rglob("*.py")]  # fmt: skip
    told = set(re.findall(r"how_to_install\([\"']([\w-]+)[\"']\)", "\n".join(sources)))
    assert told >= {"plot", "bench", "tracing", "kubernetes", "dev", "gateway"}
    assert told <= EXTRAS.keys()
