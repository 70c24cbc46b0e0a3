# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/rollouts.md` from the latest results of the rollouts' long tests: `make docs`."""

from documents.pages import DOCS, Document, latest, with_tables
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "rollouts.md"


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    (_, rollouts), (_, kills) = latest("rollouts"), latest("rollout_kills")
    tables = {"rollouts": _rollouts(rollouts), "shadow cost": _shadow_cost(rollouts), "kills": _kills(kills)}
    return with_tables(text, tables)


def _rollouts(result: Document) -> str:
    return markdown_table(
        ["32 streams, simulated engine", "seconds", "answers of release", "failed, cut or mixed", "refused"],
        (
            [
                one["name"],
                f"{one['seconds']:.0f}",
                ", ".join(f"{release}: {count:,}" for release, count in one["answers"].items()),
                str(one["failed_cut_or_mixed"]),
                str(one["refused"]),
            ]
            for one in result["rollouts"]
        ),
    )


def _shadow_cost(result: Document) -> str:
    def ratio(one: Document) -> str:
        return f"{one['ratio']:.2f} ({one['low']:.2f} to {one['high']:.2f})"

    return markdown_table(
        ["candidate", "copies", "users' TTFT p50, p99 without", "with", "ratio of p50", "ratio of p99"],
        (
            [
                one["candidate"],
                f"{one['pairs']:,}",
                *(
                    f"{one['ttft_ms'][name]['median']:.1f} ms, {one['ttft_ms'][name]['p99']:.1f} ms"
                    for name in ("without", "with copies")
                ),
                ratio(one["ratio_p50"]),
                ratio(one["ratio_p99"]),
            ]
            for one in result["shadow_cost"]
        ),
    )


def _kills(result: Document) -> str:
    return markdown_table(
        ["killed at random moments", "rollouts", "ended", "requests failed, cut or mixed"],
        (
            [
                one["what"],
                str(sum(one["ends"].values())),
                ", ".join(f"{phase.replace('_', ' ')} {count}" for phase, count in sorted(one["ends"].items())),
                one["failed"],
            ]
            for one in result["kills"]
        ),
    )
