# SPDX-License-Identifier: Apache-2.0
"""The table of `benchmarks.studies.front_doors`, for the terminal and for the documents."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.peers.cpu_parts import ENGINE, FRONT_DOOR
from benchmarks.peers.shown import with_interval

GATEWAY_RATIOS, GRPC_RATIOS = "gateway_over_it", "grpc_over_it"
COLUMNS = (
    *("users", "side", "tokens/s", "TTFT p50 / p99 ms", "TPOT p50 ms"),
    *("core s / 1,000 tokens: all", "front door", "engine", "tokens/s a core", "client's CPU"),
    *("gateway over it: tokens/s", "TTFT p50", "tokens/s a core", "gRPC over it: tokens/s a core"),
)


def cells(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of the table: medians over the rounds, and ratios within a round with their 90 % intervals."""
    return [_cells(row) for row in sorted(rows, key=lambda row: row["users"])]


def table(rows: Iterable[Mapping[str, Any]], left_out: Sequence[Mapping[str, str]]) -> Table:
    """Return the table for the terminal. Args: `left_out` are the sides that were not run, and why."""
    shown = Table(title="front doors before simulated engines; medians over the rounds, ratios within a round")
    for column in COLUMNS:
        shown.add_column(column, justify="left" if column == "side" else "right")
    for row in cells(rows):
        shown.add_row(*row)
    for one in left_out:
        shown.caption = f"{one['side']} was not run: {one['because']}"
    return shown


def _cells(row: Mapping[str, Any]) -> list[str]:
    parts = row["cpu_parts_s_per_1000_tokens"]
    gateway, grpc = row.get(GATEWAY_RATIOS), row.get(GRPC_RATIOS)
    return [
        str(row["users"]),
        row["side"],
        f"{row['tokens_per_s']['median']:.0f}",
        f"{row['ttft_p50_ms']['median']:.1f} / {row['ttft_p99_ms']['median']:.1f}",
        f"{row['tpot_p50_ms']['median']:.2f}",
        f"{row['server_cpu_s_per_1000_tokens']['median']:.3f}",
        *(f"{parts[part]['median']:.3f}" for part in (FRONT_DOOR, ENGINE)),
        f"{row['tokens_per_core_s']['median']:.0f}",
        f"{row['client_cpu_share']['median']:.0%}",
        *(
            with_interval(gateway[name]) if gateway else ""
            for name in ("tokens_per_s", "ttft_p50_ms", "tokens_per_core_s")
        ),
        with_interval(grpc["tokens_per_core_s"]) if grpc else "",
    ]
