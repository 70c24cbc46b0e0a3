# SPDX-License-Identifier: Apache-2.0
"""The writers of tables that one study each measured, as in `docs/batch.md`: `make docs`."""

from documents.measured_tables import Document, latest, source
from documents.pages import DOCS, with_tables
from trireme.base.text_tables import markdown_table

_BATCH_SHARE = "batch_share_in_virtual_time"
_DEFAULT_SHARE = "0.75"


def batch_share() -> str:
    """Return what a batch job costs interactive requests, and what of the idle capacity the job fills, by its share."""
    runs = latest(_BATCH_SHARE)["runs"]
    usual, long, unbounded = (
        runs[name] for name in ("as it is", "the job's prompts 7 times as long", "7 times as long, not held back")
    )
    rows = []
    for share, one in usual.items():
        if not isinstance(one, dict) or share == "alone":
            continue
        cells = [
            share, f"{one['ttft_p50_ratio']:.2f}", f"{one['ttft_p99_ratio']:.2f}", f"{one['idle_capacity_filled']:.0%}",
            _of_long(long[share]), _of_long(unbounded[share]),
        ]  # fmt: skip
        rows.append([f"**{cell}**" for cell in cells] if share == _DEFAULT_SHARE else cells)
    header = ["batch share", "p50 TTFT", "p99 TTFT", "idle capacity filled"]
    header += ["7 times: p99 TTFT, filled, job tokens/s", "7 times, `batch_prefill_share: 1`"]
    return f"{markdown_table(header, rows)}\n\nFrom {source(_BATCH_SHARE)}"


WRITERS = {
    DOCS / "batch.md": lambda text: with_tables(text, {"batch share": batch_share()}),
}


def _of_long(one: Document) -> str:
    return f"{one['ttft_p99_ratio']:.2f}, {one['idle_capacity_filled']:.0%}, {one['batch_tokens_per_s']:.0f}"
