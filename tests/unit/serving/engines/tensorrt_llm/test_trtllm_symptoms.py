# SPDX-License-Identifier: Apache-2.0
"""Every behaviour of the fake `tensorrt_llm` shows to its caller, and is gone with its switch."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_tensorrt_llm import fake_tensorrt_llm
from trtllm_behaviour import Executor
from trtllm_switches import Behaviour, behaviours_of, without
from trtllm_symptoms import SYMPTOMS, Upstream

from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

BUILDS = r"^## E\. .*?(?=^At load)"  # the part of the page that is about the build tools' stand-ins
CASES = [
    pytest.param(behaviour, backend, id=f"{behaviour.name.lower()}-{backend}")
    for behaviour, (backends, _) in SYMPTOMS.items()
    for backend in backends
]


@pytest.fixture(autouse=True)
def _fake() -> Iterator[None]:
    num_before = len(Executor.created)
    with fake_tensorrt_llm():
        yield
    for executor in Executor.created[num_before:]:
        executor.shutdown()


@pytest.mark.parametrize(("behaviour", "backend"), CASES)
def test_a_behaviour_shows_and_is_gone_with_its_switch(behaviour: Behaviour, backend: str, tmp_path: Path) -> None:
    _, symptom = SYMPTOMS[behaviour]
    assert asyncio.run(symptom(Upstream(backend, tmp_path / "on")))  # type: ignore[arg-type]
    with without(behaviour):
        assert not asyncio.run(symptom(Upstream(backend, tmp_path / "off")))


def test_every_behaviour_has_a_symptom_on_each_backend_that_has_it() -> None:
    assert SYMPTOMS.keys() == set(Behaviour)
    for behaviour, (backends, _) in SYMPTOMS.items():
        assert all(behaviour in behaviours_of(backend, "1.2.1") for backend in backends)
    assert Behaviour.SPECULATION_DIES_OF_LOG_PROBS not in behaviours_of("pytorch", "1.3.0")


def test_the_fake_imports_nothing_of_the_project() -> None:
    ours = r"^\s*(from|import) (serving|ensemble_configs|build_engines|clients|trireme)\b"
    for file in (CODE_ROOT / "tests/fakes").glob("trtllm_*.py"):
        assert not re.search(ours, file.read_text(), re.MULTILINE), file.name


def rows_of_the_page() -> dict[str, list[str]]:
    """Return the cells of each row of docs/trtllm_behaviour.md by its first one."""
    text = (CODE_ROOT / "docs/trtllm_behaviour.md").read_text()
    builds = re.search(BUILDS, text, re.MULTILINE | re.DOTALL)
    lines = (text if builds is None else text.replace(builds[0], "")).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| [A-H]\d", line)]
    return {row[0]: row for row in cells}


@pytest.mark.parametrize("behaviour", Behaviour, ids=lambda one: one.value)
def test_the_page_has_a_row_for_each_behaviour(behaviour: Behaviour) -> None:
    assert behaviour.value in rows_of_the_page()


def test_every_row_of_the_page_names_its_source_and_tests_that_exist() -> None:
    rows = rows_of_the_page()
    assert len(rows) >= len(Behaviour)
    for name, row in rows.items():
        assert len(row) == 5, f"{name}: {row}"
        assert len(row[2]) > 10, f"{name} has no source"
        tests = re.findall(r"`(\w+\.py)::(\w+)`", row[4])
        assert tests, f"{name} names no test"
        for file, test in tests:
            (found,) = (CODE_ROOT / "tests").rglob(file)
            assert f"def {test}(" in found.read_text(), f"{name}: {file}::{test}"


def test_every_row_of_builds_names_its_source_and_the_file_of_its_tests() -> None:
    found = re.search(BUILDS, (CODE_ROOT / "docs/trtllm_behaviour.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in found[0].splitlines() if line[:3] == "| E"
    ]
    assert len(rows) > 15
    for row in rows:
        assert len(row) == 5, row
        assert re.search(r"\[[ST]\] .{5}", row[2]), f"{row[1]} has no source"
        tests = re.findall(r"`(test_\w+)`", row[4])
        assert tests or row[3].startswith("nothing: "), f"{row[1]} names no test"
        for test in tests:
            (file,) = (CODE_ROOT / "tests").rglob(f"{test}.py")
            assert file.is_relative_to(CODE_ROOT / "tests/unit")
