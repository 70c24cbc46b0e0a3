# SPDX-License-Identifier: Apache-2.0
"""Parts of every page: its place, paragraphs, and tables between comments."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def paragraph(text: str) -> str:
    """Return the text in lines of one length."""
    return textwrap.fill(" ".join(text.split()), width=140, break_long_words=False, break_on_hyphens=False)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with its tables written anew; each stands between a pair of comments that name it.

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
