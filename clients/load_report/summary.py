# SPDX-License-Identifier: Apache-2.0
"""A run in a few lines, for the terminal that started it; a report says more."""

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from clients.load_report.latency_percentiles import Spread
from clients.load_report.run_figures import RunFigures, figures_of
from clients.load_run.run_folder import Run
from trireme.base.errors import ServerError

_COLUMNS = ("mean", "50", "90", "95", "99")
TITLES = {"ttft": "TTFT ms", "itl": "ITL ms", "tpot": "TPOT ms", "e2e": "E2E ms"}


def print_summary(run: Run, *, is_json: bool) -> None:
    """Print a run's figures. Args: `is_json`: as one JSON object."""
    figures = figures_of(run)
    if is_json:
        typer.echo(msgspec.json.encode(figures).decode())
        _refuse_failure(run)
        return
    _refuse_failure(run)
    console = Console(highlight=False, soft_wrap=True)
    table = Table(title=None, box=None, pad_edge=False)
    for column in ("", "mean", "p50", "p90", "p95", "p99", "n"):
        table.add_column(column, justify="left" if not column else "right")
    for name, spread in figures.latencies.items():
        table.add_row(TITLES[name], *_cells(spread), str(spread.count))
    console.print(table)
    for line in summary_lines(run, figures):
        console.print(line, markup=False)
    console.print(f"kept in {run.path}; see it: trireme bench report {run.path} --out report.html", markup=False)


def _refuse_failure(run: Run) -> None:
    """Raise a ServerError where no request of a run ended well, which a script should notice."""
    if any(record.is_done for record in run.records):
        return
    first = run.records[0]
    alike = sum((record.end, record.error) == (first.end, first.error) for record in run.records)
    raise ServerError(
        f"no request ended well: {alike} of {len(run.records)} ended with {first.end} ({first.error}); all that was "
        f"said is in {run.path}"
    )


def summary_lines(run: Run, figures: RunFigures) -> list[str]:
    """Return the lines below the table."""
    window, client = figures.window, figures.client
    failed = next((record for record in run.records if not record.is_done and record.error), None)
    ends = ", ".join(f"{count} {end}" for end, count in sorted(figures.ends.items()))
    lines = [
        f"{figures.requests.per_s:.2f} requests/s, {figures.output_tokens.per_s:.1f} output tokens/s"
        + (f", {figures.input_tokens.per_s:.1f} input tokens/s" if figures.input_tokens else ""),
        f"{figures.num_requests} of {figures.num_all} requests measured ({ends}); {window.why}",
    ]
    if run.info.unended is not None:
        lines.append(f"STOPPED: {run.info.unended.warning}")
    if failed is not None:
        lines.append(f"failed, such as: {failed.error}")
    if run.metrics_gap:
        lines.append(run.metrics_gap)
    if client.cpu_share is not None:
        lines.append(f"client: {client.cpu_share:.0%} of a core in its busiest process of {client.num_processes}")
    if client.why_bound:
        lines.append(f"THE CLIENT WAS THE BOTTLENECK: {client.why_bound}")
    return lines


def _cells(spread: Spread) -> list[str]:
    return [f"{spread.mean:.1f}", *(f"{spread.percentiles[name]:.1f}" for name in _COLUMNS[1:])]
