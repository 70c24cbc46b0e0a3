# SPDX-License-Identifier: Apache-2.0
"""A run in a few lines, for the terminal that started it; a report says more."""

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from clients.load_report.document import document_of
from clients.load_report.tables import latencies
from clients.load_run.run_folder import Run
from trireme.base.errors import ServerError


def print_summary(run: Run, *, is_json: bool) -> None:
    """Print a run's figures, in words or as one JSON object.

    Raises:
        ServerError: no request of the run ended well, which a script should notice.
    """
    [part] = document_of([run], title="", targets=(), num_gpus=None).runs
    figures, client = part.figures, part.figures.client
    if is_json:
        typer.echo(msgspec.json.encode(figures).decode())
    if not any(record.is_done for record in run.records):
        first = run.records[0]
        alike = sum((record.end, record.error) == (first.end, first.error) for record in run.records)
        raise ServerError(
            f"no request ended well: {alike} of {len(run.records)} ended with {first.end} ({first.error}); all that "
            f"was said is in {run.path}"
        )
    if is_json:
        return
    console = Console(highlight=False, soft_wrap=True)
    shown = latencies(part)
    table = Table(box=None, pad_edge=False)
    for column in shown.header:
        table.add_column(column, justify="right" if table.columns else "left")
    for row in shown.rows:
        table.add_row(*row)
    console.print(table)
    ends = ", ".join(f"{count} {end}" for end, count in sorted(figures.ends.items()))
    lines = [
        f"{figures.requests.per_s:.2f} requests/s, {figures.output_tokens.per_s:.1f} output tokens/s"
        + (f", {figures.input_tokens.per_s:.1f} input tokens/s" if figures.input_tokens else ""),
        f"{figures.num_requests} of {figures.num_all} requests measured ({ends})"
        + (f"; {figures.window.why}" if figures.window.is_steady else ""),  # otherwise it is a warning
        *part.warnings,
        f"kept in {run.path}; see it: trireme bench report {run.path} --out report.html",
    ]
    if client.cpu_share is not None:
        lines.insert(2, f"client: {client.cpu_share:.0%} of a core in its busiest process of {client.num_processes}")
    for line in lines:
        console.print(line, markup=False)
