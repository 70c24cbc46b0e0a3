# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that needs no other."""

import base64
import html
from collections.abc import Iterable, Mapping

from trireme.base.text_tables import TextTable

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#111;"
    "background:#fff}table{border-collapse:collapse;margin:.5rem 0}"
    "th,td{border-bottom:1px solid #999;padding:.2rem .8rem;text-align:right}"
    "th:first-child,td:first-child,.left{text-align:left}img{max-width:100%}"
)


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
