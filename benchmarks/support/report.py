# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found, with what it takes to judge it: machine, versions, date, intervals."""

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from trireme.base.sample_statistics import Floats, block_bootstrap, bootstrap, interval, percentile

RESULTS = Path(__file__).parents[1] / "results"
UNCOMMITTED_RESULTS = Path(__file__).parents[2] / "build" / "results"
_PACKAGES = ("openvino-genai", "tokenizers", "tritonclient", "grpcio", "numpy", "msgspec")


def median_with_interval(values: Sequence[float]) -> dict[str, float]:
    """Return the median and its 90 % bootstrap interval (percentile method, 10,000 seeded resamples)."""
    sample = np.array(values)
    medians = bootstrap(lambda chosen: np.median(sample[chosen], axis=1), len(sample), num_resamples=10_000)
    return {"median": float(np.median(sample)), **interval_90(medians)}


def interval_90(resampled: Floats) -> dict[str, float]:
    """Return the ends of the middle 90 % of resampled figures, `low` and `high`."""
    low, high = interval(resampled, confidence=0.90)
    return {"low": low, "high": high}


def ratio_of_quantiles(
    over: Sequence[Sequence[float]], under: Sequence[Sequence[float]], quantile: float
) -> dict[str, float]:
    """Return one quantile over another, with the 90 % bootstrap interval of their ratio.

    Whole windows are drawn again (1,000 times, seeded), for the values of one window are alike.

    Args:
        over: values of each window above the line.
        under: values of each window below it.
        quantile: 0 to 1.
    """

    def figure(pooled: Floats) -> float:
        return percentile(pooled, 100 * quantile)

    one, other = (
        block_bootstrap(figure, windows, num_resamples=1000, seed=seed) for seed, windows in enumerate((over, under))
    )
    return {"ratio": figure(np.concatenate(over)) / figure(np.concatenate(under)), **interval_90(one / other)}


def environment(*, triton_http: str | None = None) -> dict[str, object]:
    """Machine, versions, commit and date. Load tells whether the machine was quiet.

    Args:
        triton_http: ``host:port`` of the server that was measured; None: there was none.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "num_cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "triton": None if triton_http is None else triton_version(triton_http),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def commit() -> str:
    """Return the commit of this tree, with `-dirty` where a file is not as it says, results apart.

    A tree without a history has "unknown".
    """
    changed = _git("status", "--porcelain", "--", ":/", ":(exclude,top)benchmarks/results")
    return (_git("rev-parse", "HEAD") or "unknown") + ("-dirty" if changed else "")


def is_clean(name: str) -> bool:
    """Return whether a name that `commit` gave is of a commit, and of nothing beside it."""
    return re.fullmatch("[0-9a-f]{40}", name) is not None


def result_path(name: str, begun_at: str) -> Path:
    """Return `results/<name>_<date>.json`, one file a day and benchmark.

    What was found by code that no commit holds is nobody else's evidence: it goes to `build/results`.

    Args:
        begun_at: `commit` before anything was measured.
    """
    folder = RESULTS if is_clean(begun_at) and begun_at == commit() else UNCOMMITTED_RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}_{datetime.datetime.now(datetime.UTC):%Y-%m-%d}.json"


def write_result(name: str, result: Mapping[str, Any], path: Path | None = None) -> Path:
    """Write what a benchmark found today, with the `environment` of now where it names none, and return the path.

    Args:
        path: the file instead of `result_path`'s.
    """
    where: Any = result.get("environment") or environment()
    path = path or result_path(name, where["commit"])
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**result, "environment": where}, indent=1) + "\n")
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
