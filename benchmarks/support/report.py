# SPDX-License-Identifier: Apache-2.0
"""A benchmark's findings, with what it takes to judge them: machine, versions, date, intervals."""

import datetime
import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clients.load_run import run_folder
from trireme.base import provenance
from trireme.base.sample_statistics import Floats, block_bootstrap, bootstrap, interval, percentile

RESULTS = Path(__file__).parents[1] / "results"
UNCOMMITTED_RESULTS = Path(__file__).parents[2] / "build" / "results"


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
    """Return machine, versions, commit and date; the load tells whether the machine was quiet.

    Args:
        triton_http: ``host:port`` of the server that was measured; None: there was none.
    """
    return {
        "date": run_folder.now(),
        "commit": commit(),
        **run_folder.environment(),
        "triton": None if triton_http is None else triton_version(triton_http),
    }


def commit() -> str:
    """Return the commit of this tree, with `-dirty` where a file is not as it says; "unknown" without a history."""
    return provenance.commit() or "unknown"


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


def triton_version(triton_http: str) -> str:
    """Return the version that a Triton at ``host:port`` tells."""
    with urllib.request.urlopen(f"http://{triton_http}/v2", timeout=5) as response:
        return str(json.load(response)["version"])
