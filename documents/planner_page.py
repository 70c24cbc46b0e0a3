# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/planner.md` from the latest comparison of the estimators: `make docs`."""

from pathlib import Path

from build_engines.planner.estimators.strata import STRATA
from documents.pages import with_tables
from documents.results import Document, latest, source
from trireme.base.text_tables import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "planner.md"
_FIT, _ESTIMATORS = "planner_fit", "planner_estimators"
_LEFT_OUT = ("fitted", "gpu_left_out", "model_left_out")


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    return with_tables(text, tables())


def tables() -> dict[str, str]:
    """Return the page's tables by name."""
    return {
        "errors": _errors(),
        "within": _within(),
        "by model": _by("model"),
        "by GPU": _by("gpu"),
        "estimators": _estimators(),
    }


def _errors() -> str:
    result = latest(_FIT)
    rows = [
        [
            name,
            str(of["fitted"]["num_cells"]),
            *(_error(of[how]) for how in _LEFT_OUT),
        ]
        for name, of in result["summary"].items()
    ]
    header = ["stratum", "cells", "all fitted", "the GPU left out", "the model left out"]
    words = f"{result['fitted_to']:,} of {result['measurements']:,} figures were fitted, some of each cell."
    return f"{markdown_table(header, rows)}\n\nMedian and 90 % within, factors. {words} From {source(_FIT)}"


def _within() -> str:
    result = latest(_FIT)["summary"]
    rows = [
        [name, *(f"{result[name][how]['counted_apart']:.0%}, {result[name][how]['within']:.2f}" for how in _LEFT_OUT)]
        for name in STRATA
    ]
    return markdown_table(["stratum", "another source", "a GPU left out", "a model left out"], rows)


def _by(kind: str) -> str:
    found = latest(_FIT)[f"by_{kind}_left_out"]
    rows = [[name, *(_cells(of.get(part)) for part in ("speed", "first tokens"))] for name, of in found.items()]
    return markdown_table([f"{kind.replace('gpu', 'GPU')} left out", "speed", "first tokens"], rows)


def _cells(one: Document | None) -> str:
    return "" if one is None else f"{_error(one)} ({one['num_cells']})"


def _estimators() -> str:
    result = latest(_ESTIMATORS)
    rows = [
        [name, str(of["aisimulate"]["num_cells"]), _error(of["roofline"]), _error(of["aisimulate"])]
        for name, of in (result["shared"] | result["by"]["gpu"]).items()
    ]
    header = ["stratum or GPU", "cells", "roofline, GPU left out", "AISimulate"]
    return f"{markdown_table(header, rows)}\n\nFrom {source(_ESTIMATORS)}"


def _error(one: Document) -> str:
    return f"{one['median']:.2f}, {one['p90']:.2f}"
