# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal, in Markdown and in one HTML file that needs no other."""

import base64
import html
import sys
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table

from build_engines.cost.report_tables import TextTable

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#111;"
    "background:#fff}table{border-collapse:collapse;margin:.5rem 0}"
    "th,td{border-bottom:1px solid #999;padding:.2rem .8rem;text-align:right}"
    "th:first-child,td:first-child,.left{text-align:left}img{max-width:100%}"
)


def print_tables(found: Iterable[TextTable], *, title: str) -> None:
    """Print the tables to standard output, as wide as the terminal."""
    console = Console(file=sys.stdout, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 170)
    console.print(title, highlight=False, markup=False)
    for one in found:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=one.title, title_justify="left")
        for header in one.headers:
            is_left = header in one.left or header == one.headers[0]
            table.add_column(header, justify="left" if is_left else "right", overflow="fold")
        for row in one.rows:
            table.add_row(*row)
        console.print()
        console.print(table, highlight=False, markup=False)
        for note in one.notes:
            console.print(note, highlight=False, markup=False)


def markdown(one: TextTable, *, level: int = 2) -> str:
    """Return a table as Markdown: heading, table, notes."""
    align = [":---" if header in one.left or not number else "---:" for number, header in enumerate(one.headers)]
    lines = [one.headers, tuple(align), *one.rows]
    # A tenant's or a model's name may have a bar, which would begin a column.
    table = "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
    return "\n\n".join([f"{'#' * level} {one.title}", table, *one.notes])


def html_page(found: Iterable[TextTable], *, title: str, pictures: Mapping[str, bytes]) -> str:
    """Return the whole report as HTML; `pictures` are PNGs by what they show."""
    parts = [f"<h1>{html.escape(title)}</h1>", *map(_html_table, found)]
    for shown, png in pictures.items():
        data = base64.b64encode(png).decode()
        parts.append(
            f'<h2>{html.escape(shown)}</h2><img alt="{html.escape(shown)}" src="data:image/png;base64,{data}">'
        )
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _html_table(one: TextTable) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        marks = [' class="left"' if header in one.left else "" for header in one.headers]
        return "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in one.rows)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in one.notes)
    return f"<h2>{html.escape(one.title)}</h2><table><tr>{row(one.headers, 'th')}</tr>{body}</table>{notes}"
