# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found, with what it takes to judge it: machine, versions, date, intervals."""

import datetime
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

RESULTS = Path(__file__).parents[1] / "results"
_PACKAGES = ("openvino-genai", "tokenizers", "tritonclient", "grpcio", "numpy", "msgspec")
_RESAMPLES = 10_000


def median_with_interval(values: Sequence[float]) -> dict[str, float]:
    """Median and the 90 % bootstrap interval of the median (percentile method, 10,000 seeded resamples)."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    low, high = medians[int(0.05 * _RESAMPLES)], medians[int(0.95 * _RESAMPLES) - 1]
    return {"median": statistics.median(values), "low": low, "high": high}


def ratio_of_quantiles(
    over: Sequence[Sequence[float]], under: Sequence[Sequence[float]], quantile: float
) -> dict[str, float]:
    """One quantile over another, with the 90 % bootstrap interval of their ratio.

    Whole windows are drawn again (1,000 times, seeded), for the values of one window are alike.

    Args:
        over: values of each window above the line.
        under: values of each window below it.
        quantile: 0 to 1.
    """
    rng = random.Random(0)

    def ratio(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
        first, second = (sorted(value for window in windows for value in window) for windows in (one, other))
        return first[int(quantile * (len(first) - 1))] / second[int(quantile * (len(second) - 1))]

    drawn = sorted(ratio(rng.choices(over, k=len(over)), rng.choices(under, k=len(under))) for _ in range(1000))
    return {"ratio": ratio(over, under), "low": drawn[50], "high": drawn[949]}


def environment(*, triton_http: str | None = None) -> dict[str, object]:
    """Machine, versions, commit and date. Load tells whether the machine was quiet.

    Args:
        triton_http: ``host:port`` of the server that was measured; None: there was none.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD")
        + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else ""),
        "cpu": cpu_model(),
        "num_cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "triton": None if triton_http is None else triton_version(triton_http),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def result_path(name: str) -> Path:
    """`results/<name>_<date>.json`, one file a day and benchmark."""
    return RESULTS / f"{name}_{datetime.datetime.now(datetime.UTC):%Y-%m-%d}.json"


def write_result(name: str, result: dict[str, object], path: Path | None = None) -> Path:
    """Keep what a benchmark found today; returns where. Args: `path`: there instead."""
    path = path or result_path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Of cells that are Markdown already."""
    header = list(header)
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """A page with its tables written anew; each stands between a pair of comments that name it.

    Raises:
        ValueError: a pair is missing.
    """
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by make docs -->\n", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no place for {name}: it takes the lines {begin!r} and {end!r}")
        text = before + begin + table + "\n" + end + after
    return text


def triton_version(triton_http: str) -> str:
    """What a Triton says at ``host:port``."""
    with urllib.request.urlopen(f"http://{triton_http}/v2", timeout=5) as response:
        return str(json.load(response)["version"])


def cpu_model() -> str:
    """As Linux names the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _git(*args: str) -> str:
    found = subprocess.run(["git", *args], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return found.stdout.strip()
