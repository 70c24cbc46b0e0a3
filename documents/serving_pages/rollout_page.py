# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/rollouts.md` from the latest results of the rollouts' long tests: `make docs`."""

from documents.pages import DOCS, with_tables
from documents.results import Document, latest, source
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "rollouts.md"
# Results of 24 November and before name no gate; it was this one. Their kills were not counted.
WIDE_OPEN, NOT_COUNTED = "wide open", "not counted"
GATE = "gate (wide open: up to 90 % slower passes)"


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    rollouts, kills = latest("rollouts"), latest("rollout_kills")
    tables = {
        "rollouts": rollouts_table(rollouts),
        "shadow cost": _shadow_cost(rollouts),
        "kills": kills_table(kills),
        "outcomes": outcomes_table(latest("outcomes_under_kills")),
        "outcomes and metrics": metrics_table(latest("outcomes_and_metrics")),
        "split cost": _split_cost(latest("split_cost")),
        "clients": clients_table(latest("every_client")),
        "shares": shares_table(latest("every_client")),
        "origins": source("every_client", "outcomes_under_kills", "outcomes_and_metrics", "split_cost"),
    }
    return with_tables(text, tables)


def outcomes_table(result: Document) -> str:
    """Return the table of the kills, and of what clients had and the rollouts counted."""
    row = [
        ", ".join(f"{what} {count}" for what, count in result["kills"].items()),
        *(
            f"{result[name]:,}"
            for name in ("answers_of_the_candidate", "counted_of_the_candidate", "cut", "refused", "mixed")
        ),
    ]
    header = ["killed at random moments", "whole answers of the candidate", "counted", "cut", "refused", "mixed texts"]
    return markdown_table(header, [row])


def metrics_table(result: Document) -> str:
    """Return the table of the outcomes that rollouts counted, beside the requests of the server's metrics."""
    outcomes, metrics = result["outcomes"], result["metrics"]
    rows = [
        ["candidate", metrics["candidate"], metrics["not_ready"], outcomes["candidate"]],
        ["baseline", metrics["baseline"], 0, outcomes["baseline"]],
    ]
    header = ["arm", "`trireme_split_requests_total`", "for which it was not ready", "outcomes counted"]
    return markdown_table(header, ([name, *(f"{count:,}" for count in counts)] for name, *counts in rows))


def clients_table(result: Document) -> str:
    """Return the table of the releases that every client met, with how each rollout ended."""
    return markdown_table(
        ["release", "ended", "reason", "minutes", "answers", "failed"],
        (
            [
                one["name"],
                one["phase"].replace("_", " "),
                _first_words(one["reason"]),
                f"{one['seconds'] / 60:.1f}",
                f"{one['answers']:,}",
                str(one["failed"]),
            ]
            for one in result["rollouts"]
        ),
    )


def shares_table(result: Document) -> str:
    """Return the table of the answers that each client had of the good release, at each share."""
    [met] = (one["met"] for one in result["rollouts"] if "met" in one)
    shares = list(next(iter(met.values())))
    return markdown_table(
        ["client", "streams", *(f"at {float(share):.0%}" for share in shares)],
        (
            [
                client,
                str(result["streams"][client]),
                *(f"{found[share]['candidate']:,} of {found[share]['of']:,}" for share in shares),
            ]
            for client, found in met.items()
        ),
    )


def _first_words(reason: str) -> str:
    """Return what a reason begins with: the figures of single prompts and of other metrics follow."""
    return reason.partition(";")[0]


def _split_cost(result: Document) -> str:
    def ratio(one: Document) -> str:
        return f"{one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f})"

    return markdown_table(
        ["streams", "side", "over", "tokens/s", "TTFT", "ITL p99"],
        (
            [
                str(row["streams"]),
                found["side"],
                found["over"],
                *(ratio(found[name]) for name in ("throughput", "ttft", "itl_p99")),
            ]
            for row in result["rows"]
            for found in row["ratios"]
        ),
    )


def rollouts_table(result: Document) -> str:
    """Return the table of the rollouts, with the gate of each."""
    return markdown_table(
        ["32 streams, simulated engine", GATE, "seconds", "answers of release", "failed, cut or mixed", "refused"],
        (
            [
                one["name"],
                one.get("gate", WIDE_OPEN),
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


def kills_table(result: Document) -> str:
    """Return the table of the rollouts that were killed, with the kills that were counted."""
    return markdown_table(
        ["killed at random moments", GATE, "kills", "rollouts", "ended", "failed or cut", "refused", "mixed texts"],
        (
            [
                one["what"],
                result.get("gate", WIDE_OPEN),
                str(one.get("kills", NOT_COUNTED)),
                str(sum(one["ends"].values())),
                ", ".join(f"{phase.replace('_', ' ')} {count}" for phase, count in sorted(one["ends"].items())),
                str(one["failed"]),
                str(one.get("refused", NOT_COUNTED)),
                str(one.get("mixed", NOT_COUNTED)),
            ]
            for one in result["kills"]
        ),
    )
