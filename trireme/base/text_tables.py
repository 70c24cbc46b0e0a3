# SPDX-License-Identifier: Apache-2.0
"""Output of commands: tables of text, alike on a terminal and in Markdown, and JSON."""

import json
import sys
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

_WIDTH = 170  # columns, where standard output is a file or a pipe


class TextTable(NamedTuple):
    """A table of text: the first column and those in `left` are text, the others numbers."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def is_left(self) -> tuple[bool, ...]:
        """Return for each column whether it is text."""
        return tuple(header in self.left or not number for number, header in enumerate(self.headers))

    def markdown(self, *, level: int = 2) -> str:
        """Return heading, table and notes as Markdown."""
        # A tenant's or a model's name may have a bar, which would begin a column.
        lines = (tuple(cell.replace("|", "&#124;") for cell in line) for line in (self.headers, *self.rows))
        header, *rows = lines
        table = markdown_table(header, rows, align=[":---" if is_left else "---:" for is_left in self.is_left])
        return "\n\n".join([f"{'#' * level} {self.title}", table, *self.notes])


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]], *, align: Iterable[str] | None = None) -> str:
    """Return a table of cells that are Markdown already; `align` is the line below the header."""
    header = list(header)
    rule = f"|{'---|' * len(header)}" if align is None else f"| {' | '.join(align)} |"
    return "\n".join([f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


def console() -> Console:
    """Return standard output, as wide as the terminal; a file has room for all columns."""
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal else _WIDTH
    return Console(file=sys.stdout, soft_wrap=not is_terminal, width=width, highlight=False, markup=False)


def print_tables(found: Iterable[TextTable], *, title: str = "") -> None:
    """Print the tables with their notes to standard output."""
    out = console()
    if title:
        out.print(title)
    for one in found:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=one.title or None, title_justify="left")
        for header, is_left in zip(one.headers, one.is_left, strict=True):
            table.add_column(header, justify="left" if is_left else "right", no_wrap=not is_left, overflow="fold")
        for row in one.rows:
            table.add_row(*row)
        if one.title:
            out.print()
        out.print(table)
        for note in one.notes:
            out.print(note)


def json_text(data: object) -> str:
    """Return data as indented JSON for a file or a terminal.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
