# SPDX-License-Identifier: Apache-2.0
"""What got worse: benchmarks run again, their ratios beside those that are committed. `make bench-check`.

Ratios are of two sides measured in one run on one machine, so they may be compared between machines with care, and
times may not. A ratio got worse when its new interval lies on the bad side of the committed one, by more than 3 %.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.report import RESULTS

SLACK = 0.03
_WITHOUT_INTERVAL = 0.1  # either way, of a ratio that has none

Result = Mapping[str, Any]


class Ratio(NamedTuple):
    """A figure and its interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, found: Mapping[str, float]) -> "Ratio":
        """Of `median`, `low` and `high`."""
        return cls(found["median"], found["low"], found["high"])


class Check(NamedTuple):
    """A benchmark that is run again.

    Attributes:
        module: in `benchmarks`. arguments: that make it shorter than the committed one.
        committed: its results' files, as a pattern; the newest by its date counts.
        ratios: of a result, by name. is_more_better: which way is good.
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
    """``worse``, ``better`` or ``same``."""
    is_above, is_below = new.low > old.high * (1 + SLACK), new.high < old.low * (1 - SLACK)
    if not (is_above or is_below):
        return "same"
    return "better" if is_above == is_more_better else "worse"


def compared(check: Check, new: Result, old: Result) -> list[tuple[str, Ratio, Ratio, str]]:
    """Each ratio that both have: its name, now, then, and the verdict."""
    now, then = check.ratios(new), check.ratios(old)
    return [
        (name, now[name], then[name], verdict(now[name], then[name], is_more_better=check.is_more_better))
        for name in now
        if name in then
    ]


def main(
    only: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(check.module for check in CHECKS)}; otherwise all.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run the benchmarks again, some minutes each, and print what got worse; exit status 1 where something did."""
    chosen = [check for check in CHECKS if only in (None, check.module)]
    if not chosen:
        raise typer.BadParameter(f"--only is one of {', '.join(check.module for check in CHECKS)}; got {only!r}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for check in chosen:
            committed = max(RESULTS.glob(check.committed), key=lambda path: path.stem[-10:])
            path = Path(folder) / f"{check.module}.json"
            command = [sys.executable, "-m", f"benchmarks.{check.module}", *check.arguments, "--out", str(path)]
            if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
                typer.echo(f"benchmarks.{check.module} failed, as it says above; run it by itself", err=True)
                raise typer.Exit(2)
            rows += [
                (check.module, committed.name, *row)
                for row in compared(check, json.loads(path.read_text()), json.loads(committed.read_text()))
            ]
    if is_json:
        names = ("benchmark", "committed", "ratio", "now", "then", "verdict")
        typer.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
    else:
        _print(rows)
    if any(row[-1] == "worse" for row in rows):
        raise typer.Exit(1)


def _print(rows: list[tuple[str, str, str, Ratio, Ratio, str]]) -> None:
    table = Table(title="ratios now, and as committed, with their intervals")
    for column in ("benchmark", "ratio", "now", "committed", ""):
        table.add_column(column)
    for benchmark, _, name, now, then, word in rows:
        table.add_row(benchmark, name, _shown(now), _shown(then), word.upper() if word == "worse" else word)
    Console().print(table)
    worse = [f"{name} ({benchmark})" for benchmark, _, name, _, _, word in rows if word == "worse"]
    typer.echo(f"worse: {'; '.join(worse)}" if worse else f"nothing of {len(rows)} ratios got worse")


def _shown(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


if __name__ == "__main__":
    typer.run(main)
