# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file that needs nothing else, and as Markdown."""

from collections.abc import Sequence
from pathlib import Path

import jinja2

from clients.load_report import tables
from clients.load_report.charts import Chart, histograms, load_curve, over_time
from clients.load_report.document import Document
from clients.load_report.tables import Table
from clients.load_run.run_folder import Run

_TEMPLATE = "page.html.j2"


def html_page(document: Document, runs: Sequence[Run], *, has_plots: bool) -> str:
    """Return a page with its styles and pictures in it, which asks no other host for anything.

    Raises:
        SpecError: pictures are wanted, and what draws them is not installed.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    charts: list[tuple[Chart | None, ...]] = [()] * len(runs)
    if has_plots:
        charts = [
            (histograms(run, part.figures), over_time(run, part.figures, part.timelines))
            for run, part in zip(runs, document.runs, strict=True)
        ]
    curve = load_curve(document) if has_plots else None
    return environment.get_template(_TEMPLATE).render(document=document, tables=tables, charts=charts, curve=curve)


def markdown_page(document: Document) -> str:
    """Return the tables as Markdown, without pictures."""
    lines = [f"# {document.title}", "", f"Written {document.date}. Latencies are in milliseconds.", ""]
    warnings = [f"- **{part.figures.name}: {warning}**" for part in document.runs for warning in part.warnings]
    lines += [*warnings, *([""] if warnings else []), _grid(tables.overview(document)), ""]
    if document.knee:
        lines += ["", f"The knee is **{document.knee}**."]
    for part in document.runs:
        lines += ["", f"## {part.figures.name}: {part.load}", ""]
        for title, table in (
            ("Failures", tables.failures(part)),
            ("Latency", tables.latencies(part)),
            ("Throughput", tables.throughput(part)),
            ("Requests", tables.requests(part)),
            (f"Against {document.runs[0].figures.name}", tables.against(part)),
            ("What the tool says", tables.tool_says(part)),
            ("Server", tables.server(part.figures.server)),
            ("Where", tables.environment(part)),
        ):
            if table.rows:
                lines += [f"### {title}", "", _grid(table), ""]
        lines += ["```", *part.info.commands, "```"]
    lines += ["", "## What the words mean", ""]
    lines += [f"- **{word}**: {meaning}" for word, meaning in document.definitions.items()]
    return "\n".join(lines) + "\n"


def _grid(table: Table) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([row(table.header), f"|{'---|' * len(table.header)}", *map(row, table.rows)])
