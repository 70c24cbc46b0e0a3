# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of peers in `docs/performance.md` from the latest results that are kept: `make docs`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.shown import cells
from benchmarks.support.report import RESULTS, markdown_table, with_tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"

Document = Mapping[str, Any]

_FIGURES = ("users", "side", "tokens/s", "TTFT p50 / p99 ms", "TPOT p50 ms", "client's CPU")
_RATIOS = ("ours over it: tokens/s", "TTFT p50", "TPOT p50")


def latest(name: str) -> Document | None:
    """Return the newest result of a name by its date; None: there is none."""
    paths = sorted(RESULTS.glob(f"{name}_[0-9]*.json"))
    return json.loads(paths[-1].read_text(encoding="utf-8")) if paths else None


def tables() -> dict[str, str]:
    """Return the page's tables of what has been measured, by name."""
    found: dict[str, str] = {}
    if (peers := latest("peers")) is not None:
        found |= {"peers": _peers(peers), "what the peers were": _sides(peers["sides"])}
    if (mocker := latest("dynamo_mocker")) is not None:
        found |= {"frontends": _frontends(mocker), "what the frontends were": _sides(mocker["sides"])}
    return found


def _peers(result: Document) -> str:
    rows = sorted(result["rows"], key=lambda row: row["users"])
    return markdown_table([*_FIGURES, *_RATIOS], map(cells, rows))


def _frontends(result: Document) -> str:
    rows = sorted(result["rows"], key=lambda row: (-row["step_ms"], row["users"]))
    header = ["step, ms", *_FIGURES, *_RATIOS, "server's CPU s / 1,000 tokens", "tokens a chunk"]
    return markdown_table(
        header,
        (
            [
                f"{row['step_ms']:g}",
                *cells(row),
                f"{row['server_cpu_s_per_1000_tokens']['median']:.3f}",
                f"{row['tokens_per_chunk']['median']:.2f}",
            ]
            for row in rows
        ),
    )


def _sides(sides: Iterable[Mapping[str, str]]) -> str:
    rows = ([side["side"], side["version"], side["precision"], f"`{side['settings']}`"] for side in sides)
    return markdown_table(["side", "version", "precision", "started as"], rows)


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
