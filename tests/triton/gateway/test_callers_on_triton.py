# SPDX-License-Identifier: Apache-2.0
"""Programs of OpenAI's API, unchanged, at a gateway before the real server: the official clients, LangChain, agents.

Each runs once and tells of each of its scenarios; each scenario is a test here.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from callers_site import PROGRAMS, callers_site, outcomes
from running_server import PROJECT

from scripts import javascript
from scripts.environments import ENVIRONMENTS, python_of

CALLERS_PYTHON = python_of(PROJECT, ENVIRONMENTS["callers"])
NODE = javascript.program(PROJECT)
needs_callers = pytest.mark.skipif(
    not CALLERS_PYTHON.is_file(), reason="no libraries of callers: python3 scripts/bootstrap.py --only callers"
)
needs_node = pytest.mark.skipif(
    not (NODE.is_file() and javascript.packages(PROJECT).is_dir()),
    reason="no Node.js: python3 scripts/bootstrap.py --only javascript",
)
Outcomes = Callable[[str, str], dict[str, str]]


def scenarios_of(program: str) -> list[str]:
    """Return the names of a program's scenarios, as its text has them."""
    text = (PROGRAMS / program).read_text(encoding="utf-8")
    if program.endswith(".mjs"):
        found = re.findall(r"^  async (\w+)\(\) \{$", text, re.MULTILINE)
    else:
        found = re.findall(r"^        (\w+),$", text.partition("run_all(\n")[2], re.MULTILINE)
    assert found
    return found


@pytest.fixture(scope="module")
def outcomes_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    folder = tmp_path_factory.mktemp("callers")
    with callers_site(folder / "site") as site:

        @functools.cache
        def run(interpreter: str, program: str) -> dict[str, str]:
            path = PROGRAMS / program
            if program.endswith(".mjs"):  # a module finds packages beside itself alone
                path = folder / program
                path.write_text((PROGRAMS / program).read_text(encoding="utf-8"), encoding="utf-8")
                (folder / "node_modules").symlink_to(javascript.packages(PROJECT))
            return outcomes([interpreter, path], site, folder=folder)

        yield run


def check(outcomes_of: Outcomes, interpreter: Path | str, program: str, scenario: str) -> None:
    found = outcomes_of(str(interpreter), program)
    assert list(found) == scenarios_of(program)
    assert found[scenario] == ""


@pytest.mark.parametrize("scenario", scenarios_of("official_client.py"))
def test_openai_2_for_python(outcomes_of: Outcomes, scenario: str) -> None:
    check(outcomes_of, sys.executable, "official_client.py", scenario)


@needs_callers
@pytest.mark.parametrize("scenario", scenarios_of("official_client.py"))
def test_openai_3_for_python(outcomes_of: Outcomes, scenario: str) -> None:
    check(outcomes_of, CALLERS_PYTHON, "official_client.py", scenario)


@needs_node
@pytest.mark.parametrize("scenario", scenarios_of("official_client.mjs"))
def test_openai_for_javascript(outcomes_of: Outcomes, scenario: str) -> None:
    check(outcomes_of, NODE, "official_client.mjs", scenario)


@needs_callers
@pytest.mark.parametrize("scenario", scenarios_of("langchain_caller.py"))
def test_langchain(outcomes_of: Outcomes, scenario: str) -> None:
    check(outcomes_of, CALLERS_PYTHON, "langchain_caller.py", scenario)


@needs_callers
@pytest.mark.parametrize("scenario", scenarios_of("agents_caller.py"))
def test_the_agents_sdk(outcomes_of: Outcomes, scenario: str) -> None:
    check(outcomes_of, CALLERS_PYTHON, "agents_caller.py", scenario)
