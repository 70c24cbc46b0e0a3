# SPDX-License-Identifier: Apache-2.0
"""The run of the long tests (`make soak`), and its one result.

The result says of which commit it is, how every test ended, which goals were missed, and what was measured. No figure
of another run is in it. A run of a part of the tests writes none, unless a name is given: then the result is of that
name and says which part.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.support.report import RESULTS, commit, environment, is_clean, write_result

# Those that measure run alone, after the others.
PARTS = (("-n", "2", "-m", "soak and not quiet"), ("-n", "0", "-m", "soak and quiet and not hour"))
NO_TESTS = 5  # pytest's exit status where it selected none
_FIGURE, _GOAL, _SERVER = "figure", "goal", "tritonserver"


class Evidence:
    """The evidence of one long test, for the result of the run.

    Args:
        properties: the test's `user_properties`, which are in pytest's JUnit report. `record_property` warns of them.
    """

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties
        self._missed: list[str] = []

    def note(self, name: str, figures: object) -> None:
        """Put figures into the result."""
        self._properties.append((_FIGURE, json.dumps({name: figures})))

    def hold(self, goal: str, found: float, *, at_most: float) -> None:
        """Hold a figure to a stated goal; a miss is in the result by its name, and fails the test at its `end`."""
        is_met = found <= at_most
        held = {"goal": goal, "at_most": at_most, "found": found, "is_met": is_met}
        self._properties.append((_GOAL, json.dumps(held)))
        if not is_met:
            self._missed.append(f"{goal}: {found:.4g}, at most {at_most:g}")

    def end(self) -> None:
        """Raise AssertionError where a goal was missed."""
        if self._missed:
            raise AssertionError(f"goals missed: {'; '.join(self._missed)}")


def result_of(reports: Sequence[Path]) -> dict[str, Any]:
    """Return what JUnit reports of the parts of a run say."""
    ends: Counter[str] = Counter()
    by_end: dict[str, list[str]] = {"failed": [], "skipped": []}
    figures: dict[str, Any] = {}
    goals: list[Mapping[str, Any]] = []
    servers: Counter[str] = Counter()
    for case in (case for report in reports for case in ElementTree.parse(report).iter("testcase")):
        found = {child.tag for child in case}
        end = "failed" if found & {"failure", "error"} else "skipped" if "skipped" in found else "passed"
        ends[end] += 1
        if end in by_end:
            by_end[end].append(f"{case.get('classname')}::{case.get('name')}")
        for each in case.iter("property"):
            name, value = each.get("name"), each.get("value") or ""
            if name == _FIGURE:
                figures |= json.loads(value)
            elif name == _GOAL:
                goals.append(json.loads(value))
            elif name == _SERVER:
                servers[value.partition(" (")[0]] += 1  # without its path here
    return {
        "tests": dict(ends),
        **{end: sorted(names) for end, names in by_end.items()},  # side by side they end in any order
        "missed_goals": sorted(goal["goal"] for goal in goals if not goal["is_met"]),
        "goals": sorted(goals, key=lambda goal: str(goal["goal"])),
        "figures": figures,
        "servers": dict(servers),
    }


def run(options: Sequence[str], narrowed: Sequence[str], *, keep: str | None = None) -> int:
    """Run the long tests and write their result; return 1 where one failed, 2 where the tree is no commit.

    Args:
        options: of pytest, in any run.
        narrowed: of pytest, for a part of the tests, which makes no result without `keep`.
        keep: the name of the part, for a result `soak_NAME`.
    """
    is_kept = keep is not None or not narrowed
    if is_kept and not is_clean(commit()):
        print(
            f"soak: its result would be of no commit ({commit()}); commit first, or run a part: make soak ARGS='-k x'"
        )
        return 2
    begun, before, status = environment(), _written(), 0
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / f"{number}.xml" for number in range(len(PARTS))]
        for part, report in zip(PARTS, reports, strict=True):
            command = [sys.executable, "-m", "pytest", *options, *part, "--junit-xml", str(report), *narrowed]
            ended = subprocess.run(command, check=False).returncode
            status = status if ended in {0, NO_TESTS} else 1
        if is_kept:
            others = sorted(name for name, when in _written().items() if before.get(name) != when)
            part_of = {"part": list(narrowed)} if narrowed else {}
            found = {
                "benchmark": "soak",
                "environment": begun,
                **part_of,
                **result_of(reports),
                "other_results": others,
            }
            print(f"written to {write_result(f'soak_{keep}' if keep else 'soak', found)}")
    return status


def _part_name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", text):  # such as a date, which would be the name of a whole run
        raise argparse.ArgumentTypeError(f"a name has a-z, 0-9 and _, and begins with a letter, got {text!r}")
    return text


def _written() -> dict[str, int]:
    """Return when each result was written."""
    return {path.name: path.stat().st_mtime_ns for path in RESULTS.iterdir()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the long tests; options before -- are of pytest in any run.")
    parser.add_argument(
        "--keep", metavar="NAME", type=_part_name, help="write the result of a part of the tests, as soak_NAME"
    )
    at = sys.argv.index("--")
    asked, options = parser.parse_known_args(sys.argv[1:at])
    sys.exit(run(options, sys.argv[at + 1 :], keep=asked.keep))
