# SPDX-License-Identifier: Apache-2.0
"""The writer of the table of `docs/gateway.md` from the latest result of the gateway's cost: `make docs`."""

from documents.pages import DOCS, with_tables
from documents.results import Document, latest, source
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "gateway.md"


def page(text: str) -> str:
    """Return the page with its table written anew."""
    tables = {"cost": cost_table(latest("gateway_cost")), "origin of the cost": source("gateway_cost")}
    return with_tables(text, tables)


def cost_table(result: Document) -> str:
    """Return the table of what the gateway adds, over gRPC and over Envoy alone."""

    def ratio(one: Document) -> str:
        return f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})"

    return markdown_table(
        ["streams", "TTFT added, ms", "tokens/s over gRPC", "chunks/s over Envoy's", "us of a core a chunk"],
        (
            [
                str(row["streams"]),
                ratio(row["ttft_added_ms"]),
                ratio(row["throughput_over_grpc"]),
                ratio(row["chunks_over_envoy"]),
                f"{row['gateway_us_per_chunk']['median']:.0f}",
            ]
            for row in result["rows"]
        ),
    )
