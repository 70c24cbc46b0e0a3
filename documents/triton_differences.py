# SPDX-License-Identifier: Apache-2.0
"""The table of differences between two Triton servers, what each means here, and which tests show it, from data."""

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from ensemble_configs.spec.base import Spec
from ensemble_configs.spec.validation import validate
from trireme.base.text_tables import markdown_table

_DATA = Path(__file__).with_name("triton_differences.yaml")


class Difference(Spec):
    """A thing that the servers do differently, or are often believed to do differently.

    Attributes:
        source: O: observed on both servers; S: the newer one's is read in upstream's source.
        tests: node ids of pytest, or files.
    """

    what: str
    older: str
    newer: str
    here: str
    source: Literal["O", "S"]
    tests: Annotated[tuple[str, ...], Field(min_length=1)]


class Differences(Spec):
    """The rows, the servers, and the day that they were compared."""

    date: date
    older: str
    newer: str
    rows: Annotated[tuple[Difference, ...], Field(min_length=1)]


def differences() -> Differences:
    """Return the data file's content."""
    return validate(Differences, yaml.safe_load(_DATA.read_text(encoding="utf-8")), source=_DATA)


def difference_table() -> str:
    """Return the table as Markdown, with the day and the meaning of its marks."""
    found = differences()
    rows = []
    for row in found.rows:
        tests = "<br>".join(f"`{test.partition('::')[2] or test}`" for test in row.tests)
        rows.append((row.what, row.older, row.newer, row.here, row.source, tests))
    header = ("what", f"Triton {found.older}", f"Triton {found.newer}", "here", "", "tests")
    read = f"As of {found.date}. O: observed on both; S: the newer one's is read in its source."
    return f"{read}\n\n{markdown_table(header, rows)}"
