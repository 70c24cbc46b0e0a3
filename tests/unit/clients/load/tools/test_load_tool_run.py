# SPDX-License-Identifier: Apache-2.0
"""The end of another project's load generator, with everything that it started."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from clients.access import NO_ACCESS
from clients.load.tools.perf_analyzer import whole_export
from clients.load.tools.tool_run import run_tool
from trireme.base.errors import ServerError

pytestmark = pytest.mark.slow

_START_S = 60.0  # on a busy machine
_OTHER = "import time; time.sleep(600)"
# Starts a process that goes on by itself, as genai-perf starts perf_analyzer, and notes both.
_TOOL = f"""
import os, signal, subprocess, sys, time
{{first}}
other = subprocess.Popen([sys.executable, "-c", {_OTHER!r}])
open("pids.part", "w").write(f"{{{{os.getpid()}}}} {{{{other.pid}}}}")
os.rename("pids.part", "pids")
{{then}}
"""
# Stands for `trireme bench genai-perf`.
_CALLER = """
import signal, sys
from pathlib import Path
from clients.load.tools.tool_run import run_tool
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # nohup ignores one
try:
    found = run_tool([sys.executable, "-c", sys.argv[2]], cwd=Path(sys.argv[1]), metrics=None, what="a tool",
                     keeps_what_it_has=sys.argv[3] == "keeps")
except KeyboardInterrupt:
    sys.exit(130)
print(found.output, found.was_interrupted)
"""


def tool(*, first: str = "", then: str = "time.sleep(600)") -> str:
    return _TOOL.format(first=first, then=then)


def interrupted(folder: Path, program: str, number: int, *, keeps: bool = False) -> tuple[int, str, float]:
    """Return exit status, output and how long the run took to end."""
    words = [sys.executable, "-c", _CALLER, str(folder), program, "keeps" if keeps else "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as caller:
        wait_for((folder / "pids").exists)
        caller.send_signal(number)
        begun_s = time.monotonic()
        output, _ = caller.communicate(timeout=_START_S)
    return caller.returncode, output, time.monotonic() - begun_s


def wait_for(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _START_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def still_run(folder: Path) -> list[int]:
    """Return which of the noted processes still run."""
    pids = [int(word) for word in (folder / "pids").read_text().split()]
    assert len(pids) == 2
    time.sleep(0.2)  # for init to take note of those that have ended
    return [pid for pid in pids if runs(pid)]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_signal_ends_a_tool_and_what_it_started(tmp_path: Path, number: signal.Signals) -> None:
    assert interrupted(tmp_path, tool(), number)[0] == 130
    assert still_run(tmp_path) == []


def test_a_tool_that_does_not_heed_sigterm_is_killed(tmp_path: Path) -> None:
    deaf = tool(first="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    status, _, took_s = interrupted(tmp_path, deaf, signal.SIGTERM)
    assert status == 130
    assert took_s < 30
    assert still_run(tmp_path) == []


def test_a_tool_that_keeps_what_it_has_may_say_it_and_leaves_no_process(tmp_path: Path) -> None:
    keeping = tool(first="signal.signal(signal.SIGTERM, lambda *_: (print('what it has'), sys.exit(0)))")
    status, output, _ = interrupted(tmp_path, keeping, signal.SIGTERM, keeps=True)
    assert (status, output.split("\n")) == (0, ["what it has", " True", ""])
    assert still_run(tmp_path) == []


def test_a_tool_that_fails_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="a tool ended with status 3"):
        run_tool([sys.executable, "-c", tool(then="sys.exit(3)")], cwd=tmp_path, metrics=None, what="a tool")
    assert still_run(tmp_path) == []


def test_a_tool_that_fails_is_quoted_with_its_first_lines_and_its_last(tmp_path: Path) -> None:
    many = "print('Error: no such option'); [print('option', index) for index in range(100)]; sys.exit(99)"
    with pytest.raises(ServerError) as failed:
        run_tool([sys.executable, "-c", f"import sys; {many}"], cwd=tmp_path, metrics=None, what="a tool")
    assert "Error: no such option\noption 0" in str(failed.value)
    assert "... 84 lines ..." in str(failed.value)
    assert str(failed.value).endswith("option 99")


# perf_analyzer 2.51: its export may lose its end, and it refuses to write over a file.
_CUTS_ITS_FIRST = """
import json, pathlib, sys
export = pathlib.Path("export.json")
if export.exists():
    sys.exit("Error: Failed to parse --profile-export-file. Path must not already exist.")
if pathlib.Path("again").exists():
    export.write_text(json.dumps({"experiments": []}))
else:
    pathlib.Path("again").touch()
    export.write_text(" " * 65536)
"""


def test_perf_analyzer_runs_again_where_its_export_is_cut(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CUTS_ITS_FIRST]
    _, exported = whole_export(command, tmp_path, metrics=None, access=NO_ACCESS)
    assert exported == {"experiments": []}
