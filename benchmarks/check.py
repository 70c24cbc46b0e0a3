# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that are run again, their ratios beside those that are committed: what got worse. `make bench-check`.

Ratios are of two sides measured in one run on one machine. With a small model they depend on its processor all the
same, so they are held against committed ones of the same processor, or with `--against` against those of another
revision, measured here and now. A ratio got worse when its new interval lies on the bad side of the old one, by more
than 3 %, and does so twice: from one start of a server to the next it moves more than its interval says (one request
of the demo model: 0.52, 0.70 and 0.87 within half an hour).
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.support.report import RESULTS
from trireme.base.provenance import cpu_model

ROOT = Path(__file__).parent.parent
SLACK = 0.03
UNSTEADY = "unsteady"  # worse once, and not again
OTHER_CPU = "other CPU"
_WITHOUT_INTERVAL = 0.1  # either way, of a ratio that has none

Result = Mapping[str, Any]


class Ratio(NamedTuple):
    """A figure and its interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, found: Mapping[str, float]) -> "Ratio":
        """Return the ratio of `median`, `low` and `high`."""
        return cls(found["median"], found["low"], found["high"])


class Check(NamedTuple):
    """A benchmark that is run again.

    Attributes:
        module: in `benchmarks`.
        arguments: that make it shorter than the committed one.
        committed: its results' files, as a pattern; the newest by its date counts.
        ratios: of a result, by name.
        is_more_better: whether more is better.
    """

    module: str
    arguments: tuple[str, ...]
    committed: str
    ratios: Callable[[Result], dict[str, Ratio]]
    is_more_better: bool


def _overhead(result: Result) -> dict[str, Ratio]:
    return {
        f"{row['requests']} requests: tokens/s over in-process": Ratio.of(row["ensemble_ratio"])
        for row in result["rows"]
    }


def _chunked(result: Result) -> dict[str, Ratio]:
    return {
        f"{row['path']}: p99 ITL beside a long prompt": Ratio.of(row["chunked_p99_itl_ratio"]) for row in result["rows"]
    }


def _drafted(result: Result) -> dict[str, Ratio]:
    return {
        f"{row['text']}, {row['side']}, {row['how']}, {row['requests']}: tokens/s with drafts": Ratio.of(row["ratio"])
        for row in result["rows"]
    }


def _detokenized(result: Result) -> dict[str, Ratio]:
    found = {}
    for name, row in result["ns_per_token"].items():
        length = max(set(row["ours"]) & set(row["DecodeStream"]), key=int)
        ratio = row["ours"][length] / row["DecodeStream"][length]
        found[f"{name}: time of a token over the library's"] = Ratio(
            ratio, ratio * (1 - _WITHOUT_INTERVAL), ratio * (1 + _WITHOUT_INTERVAL)
        )
    return found


CHECKS = (
    Check("ensemble_overhead", ("--pairs", "7"), "ensemble_overhead_demo_cpu_*.json", _overhead, is_more_better=True),
    Check("chunked_prefill", ("--rounds", "7"), "chunked_prefill_demo_cpu_*.json", _chunked, is_more_better=False),
    Check(
        "speculation", ("--pairs", "7", "--output-tokens", "64"), "speculation_*.json", _drafted, is_more_better=True
    ),
    Check("detokenizer", ("--rounds", "5"), "detokenizer_*.json", _detokenized, is_more_better=False),
)


def verdict(new: Ratio, old: Ratio, *, is_more_better: bool) -> str:
    """Return ``worse``, ``better`` or ``same``."""
    is_above, is_below = new.low > old.high * (1 + SLACK), new.high < old.low * (1 - SLACK)
    if not (is_above or is_below):
        return "same"
    return "better" if is_above == is_more_better else "worse"


class Row(NamedTuple):
    """A ratio beside what it is held against.

    Attributes:
        then_from: the committed file, or the revision.
        word: the verdict, `UNSTEADY` or `OTHER_CPU`.
    """

    benchmark: str
    then_from: str
    name: str
    now: Ratio
    then: Ratio
    word: str


class Reference(NamedTuple):
    """A result that another is held against; `is_same_cpu`: whether the two can be compared."""

    name: str
    result: Result
    is_same_cpu: bool


def compared(check: Check, new: Result, old: Reference) -> list[Row]:
    """Return the ratios that both results have."""
    now, then = check.ratios(new), check.ratios(old.result)
    rows = []
    for name in now:
        if name in then:
            word = verdict(now[name], then[name], is_more_better=check.is_more_better)
            shown = word if old.is_same_cpu else OTHER_CPU
            rows.append(Row(check.module, old.name, name, now[name], then[name], shown))
    return rows


def checked(check: Check, measure: Callable[[], Result], reference: Callable[[], Reference]) -> list[Row]:
    """Measure once, and once more where something got worse, which has to do so twice; return the ratios."""
    rows = compared(check, measure(), reference())
    if all(row.word != "worse" for row in rows):
        return rows
    again = {row.name: row for row in compared(check, measure(), reference())}
    return [row if row.word != "worse" else again[row.name]._replace(word=_twice(again[row.name].word)) for row in rows]


def _twice(second: str) -> str:
    return second if second == "worse" else UNSTEADY


def committed_reference(check: Check, cpu: str, results: Path = RESULTS) -> Reference:
    """Return the newest committed result of this processor; else of any."""
    found = [(path.name, json.loads(path.read_text())) for path in results.glob(check.committed)]
    return max(
        (Reference(name, result, result["environment"]["cpu"] == cpu) for name, result in found),
        key=lambda one: (one.is_same_cpu, one.result["environment"]["date"]),
    )


def measured(check: Check, root: Path) -> Result:
    """Measure by the code below `root`, and return the result.

    Raises:
        SystemExit: the measurement fails; the status is 2.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{check.module}.json"
        command = [sys.executable, "-m", f"benchmarks.{check.module}", *check.arguments, "--out", str(path)]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=root).returncode:
            typer.echo(f"benchmarks.{check.module} in {root} failed, as it says above; run it by itself", err=True)
            raise typer.Exit(2)
        result: Result = json.loads(path.read_text())
        return result


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Yield a folder with the project as it was at a revision, and the tools that are installed now."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "trireme"
        added = _git("worktree", "add", "--detach", str(root), revision)
        if added.returncode:
            raise typer.BadParameter(f"--against {revision}: {added.stderr.strip().splitlines()[-1]}")
        try:
            (root / ".tools").symlink_to(ROOT / ".tools")
            yield root
        finally:
            _git("worktree", "remove", "--force", str(root))


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, cwd=ROOT)


def main(
    only: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(check.module for check in CHECKS)}; without it, all are run.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="REVISION", help="Measure this revision, too, in place of what is committed.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run the benchmarks again, a minute each, and print what got worse; exit status 1 where something did.

    \b
    Examples:
      python -m benchmarks.check --only detokenizer
      python -m benchmarks.check --against v0.3
    """
    chosen = [check for check in CHECKS if only in (None, check.module)]
    if not chosen:
        raise typer.BadParameter(f"--only is one of {', '.join(check.module for check in CHECKS)}; got {only!r}")
    rows = []
    with contextlib.ExitStack() as held:
        root = None if against is None else held.enter_context(checked_out(against))
        for check in chosen:
            rows += checked(check, partial(measured, check, ROOT), partial(_reference, check, against, root))
    if is_json:
        typer.echo(json.dumps([row._asdict() for row in rows]))
    else:
        _print(rows)
    if any(row.word == "worse" for row in rows):
        raise typer.Exit(1)


def _reference(check: Check, revision: str | None, root: Path | None) -> Reference:
    if revision is None or root is None:
        return committed_reference(check, cpu_model())
    return Reference(revision, measured(check, root), is_same_cpu=True)


def _print(rows: list[Row]) -> None:
    table = Table(title="ratios now, and then, with their intervals")
    for column in ("benchmark", "ratio", "now", "then", ""):
        table.add_column(column)
    for row in rows:
        word = row.word.upper() if row.word == "worse" else row.word
        table.add_row(row.benchmark, row.name, _shown(row.now), _shown(row.then), word)
    Console().print(table)
    typer.echo("then: " + ", ".join(sorted({row.then_from for row in rows})))
    if any(row.word == OTHER_CPU for row in rows):
        typer.echo(
            f"{OTHER_CPU}: committed ratios are of another processor, and say nothing of the code here; "
            "`--against REVISION` measures that one on this machine"
        )
    worse = [f"{row.name} ({row.benchmark})" for row in rows if row.word == "worse"]
    num_judged = sum(row.word != OTHER_CPU for row in rows)
    typer.echo(f"worse: {'; '.join(worse)}" if worse else f"nothing of {num_judged} ratios got worse")


def _shown(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


if __name__ == "__main__":
    typer.run(main)
