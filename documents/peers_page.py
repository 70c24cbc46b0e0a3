# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of peers in `docs/performance.md` from the latest results that are kept: `make docs`."""

from collections.abc import Iterable, Mapping

from benchmarks.peers.shown import cells
from documents.pages import DOCS, Document, latest, with_tables
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "performance.md"

_FIGURES = ("users", "side", "tokens/s", "TTFT p50 / p99 ms", "TPOT p50 ms", "client's CPU")
_RATIOS = ("ours over it: tokens/s", "TTFT p50", "TPOT p50")


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    (_, peers), (_, mocker) = latest("peers"), latest("dynamo_mocker")
    return with_tables(
        text,
        {
            "peers": _peers(peers),
            "what the peers were": _sides(peers["sides"]),
            "frontends": _frontends(mocker),
            "what the frontends were": _sides(mocker["sides"]),
        },
    )


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
