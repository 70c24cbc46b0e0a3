# SPDX-License-Identifier: Apache-2.0
"""Commands that messages name for a missing tool exist: a task of make, or a name that the set-up knows."""

import re
from pathlib import Path

import pytest

from clients.load.tools import aiperf, genai_perf, locust_command, perf_analyzer, tool_run
from scripts.bootstrap import PROGRAMS
from scripts.environments import ENVIRONMENTS
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

TASKS = set(re.findall(r"^([a-z-]+):", (CODE_ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("module", [aiperf, genai_perf, locust_command, perf_analyzer])
def test_what_installs_a_tool_can_be_typed(module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_run, "_TOOLS", tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: None)
    verb = next(name for name in ("locust", "genai_perf", "aiperf", "perf_analyzer") if hasattr(module, name))
    load = {"users": 1} if verb == "locust" else {"rate": 1.0, "tokenizer": tmp_path}
    with pytest.raises(SpecError, match="is not installed") as missing:
        getattr(module, verb)(out=tmp_path / "run", access=None, **load)
    typed = re.findall(r"`([^`]+)`", missing.value.message)
    assert typed
    for command in typed:
        task = re.match(r"make ([a-z-]+)", command)
        step = re.search(r"scripts/bootstrap\.py --only ([a-z-]+)", command)
        assert (
            (task and task[1] in TASKS)
            or (step and step[1] in {*ENVIRONMENTS, *PROGRAMS})
            or command.startswith("pip install")
        ), command
