# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/planner.md` from the latest comparison of the estimators: `make docs`."""

from pathlib import Path

from documents.pages import with_tables
from documents.results import Document, latest, source
from trireme.base.text_tables import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "planner.md"
_RESULT = "planner_estimators"
_GPUS = {"h100": "H100", "a100-80": "A100-80", "l40s": "L40S"}


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    return with_tables(text, tables())


def tables() -> dict[str, str]:
    """Return the page's tables by name."""
    return {"errors": _errors(), "estimators": _estimators()}


def _errors() -> str:
    result = latest(_RESULT)
    left_out = result["roofline_on_what_was_left_out_of_its_fit"]
    found = {
        "nothing": result["shared"]["roofline"],
        "the GPU": left_out["gpu_left_out"],
        "the model": left_out["model_left_out"],
    }
    rows = [
        [title, str(one["num_cells"]), f"x/÷ {one['median']:.2f}", f"x/÷ {one['p90']:.2f}"]
        for title, one in found.items()
    ]
    table = markdown_table(["left out", "cells", "median error", "90 % within"], rows)
    return f"{table}\n\nFrom {source(_RESULT)}"


def _estimators() -> str:
    result = latest(_RESULT)
    left_out, by = result["roofline_on_what_was_left_out_of_its_fit"], result["by"]["gpu"]
    shared, versions = result["shared"], result["versions"]["its tables, TensorRT-LLM by GPU"]
    rows = [
        [
            "all",
            str(shared["roofline"]["num_cells"]),
            _error(left_out["gpu_left_out"]),
            _error(shared["aisimulate"]),
            "",
        ]
    ]
    rows += [
        [
            title,
            str(by[gpu]["aisimulate"]["num_cells"]),
            _error(left_out["by_gpu"][gpu]),
            _error(by[gpu]["aisimulate"]),
            versions[gpu],
        ]
        for gpu, title in _GPUS.items()
    ]
    header = ["GPU", "cells", "roofline, GPU left out", "AISimulate", "its tables, TensorRT-LLM"]
    return f"{markdown_table(header, rows)}\n\nFrom {source(_RESULT)}"


def _error(one: Document) -> str:
    return f"{one['median']:.2f}, {one['p90']:.2f}"
