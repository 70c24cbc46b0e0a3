# SPDX-License-Identifier: Apache-2.0
"""The files that GitHub and pre-commit read call targets and programs that exist."""

import re

import yaml

from trireme.base.project_files import CODE_ROOT

WORKFLOWS = sorted((CODE_ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (CODE_ROOT / "Makefile").read_text(), re.MULTILINE))


def commands() -> list[str]:
    """Return what each step of each workflow runs."""
    jobs = [job for file in WORKFLOWS for job in yaml.safe_load(file.read_text())["jobs"].values()]
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_workflows_call_targets_of_the_makefile() -> None:
    called = {target for line in commands() if line.startswith("make ") for target in line.split()[1:]}
    assert called >= {"lint", "unit", "test", "docs", "wheel"}
    assert called <= TARGETS


def test_hooks_are_programs_that_lint_runs() -> None:
    [local] = yaml.safe_load((CODE_ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    programs = {hook["entry"].split()[0].rpartition("/")[2] for hook in local["hooks"]}
    makefile = (CODE_ROOT / "Makefile").read_text()
    assert {program for program in programs if program not in makefile} == set()


def test_forms_of_issues_are_forms() -> None:
    for file in (CODE_ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(file.read_text())
        if file.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            assert all(part["type"] in {"textarea", "input", "markdown"} for part in form["body"])
