# SPDX-License-Identifier: Apache-2.0
"""Results of peers, as data for a file, as a table, and as a picture that needs no colour."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.peers.figures import medians, ratios
from benchmarks.peers.peer import Peer
from benchmarks.peers.rounds import Side

_WIDTH = 170  # columns
_STYLES = ("o-", "s--", "^:", "D-.", "v--")


def rows(sides: Mapping[str, Side], peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return a row for each side and number of users."""
    found = []
    for peer in peers:
        side = sides[peer.name]
        beside = sides.get(peer.beside or "")
        for num_users, measured in side.rounds.items():
            row = {"side": side.name, "users": num_users, **medians(measured)}
            if beside is not None:
                row["ours_over_it"] = ratios(beside.rounds[num_users], measured)
            found.append(row)
    return found


def described(sides: Mapping[str, Side]) -> list[dict[str, str]]:
    """Return a description of each side: precision, version and settings."""
    return [
        {"side": side.name, "precision": side.precision, "version": side.version, "settings": side.settings}
        for side in sides.values()
    ]


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return the table for the terminal."""
    shown = Table(title=title)
    for column in ("users", "side", "tokens/s", "TTFT p50 / p99 ms", "TPOT p50 ms", "client"):
        shown.add_column(column, justify="left" if column == "side" else "right")
    for column in ("ours over it: tokens/s", "TTFT p50", "TPOT p50"):
        shown.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: row["users"]):
        shown.add_row(*cells(row))
    return shown


def wide_console() -> Console:
    """Return a console on which the tables have room, whatever the terminal's width."""
    return Console(width=max(_WIDTH, Console().width))


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one row, medians over the rounds."""
    share, ratio = row["client_cpu_share"], row.get("ours_over_it")
    return [
        str(row["users"]),
        row["side"],
        f"{row['tokens_per_s']['median']:.0f}",
        f"{row['ttft_p50_ms']['median']:.1f} / {row['ttft_p99_ms']['median']:.1f}",
        f"{row['tpot_p50_ms']['median']:.2f}",
        "none" if share is None else f"{share['median']:.0%}",
        *([with_interval(one) for one in ratio.values()] if ratio else [""] * 3),
    ]


def with_interval(ratio: Mapping[str, float]) -> str:
    """Return a ratio with its 90 % interval, as text."""
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def draw(
    rows: Sequence[Mapping[str, Any]], panels: Mapping[str, Sequence[str]], measures: Mapping[str, str], path: Path
) -> None:
    """Draw a column of pictures for each panel, with a line for each of its sides, and a row for each measure.

    Args:
        panels: names of sides by title.
        measures: what an axis says, by the figure's name.
    """
    figure = Figure(figsize=(4.8 * len(panels), 3.2 * len(measures)), layout="constrained")
    grid = figure.subplots(len(measures), len(panels), squeeze=False)
    users = sorted({row["users"] for row in rows})
    for column, (title, names) in enumerate(panels.items()):
        for line, (measure, label) in enumerate(measures.items()):
            axis = grid[line][column]
            for number, name in enumerate(names):
                points = [row for row in rows if row["side"] == name and row.get(measure)]
                places = [users.index(row["users"]) for row in points]
                middle = [row[measure]["median"] for row in points]
                low = [row[measure]["median"] - row[measure]["low"] for row in points]
                high = [row[measure]["high"] - row[measure]["median"] for row in points]
                axis.errorbar(
                    places, middle, yerr=[low, high], fmt=_STYLES[number], color=str(0.25 * (number % 3)),
                    fillstyle="none", capsize=3, label=name,
                )  # fmt: skip
            axis.set_title(title if line == 0 else "")
            axis.set_ylabel(label)
            axis.set_xticks(range(len(users)), map(str, users))
            axis.set_xlabel("users")
            axis.set_ylim(bottom=0)
        grid[0][column].legend(fontsize="small")
    figure.savefig(path, dpi=120)
