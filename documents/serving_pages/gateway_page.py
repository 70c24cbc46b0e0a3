# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/gateway.md` from the latest results about the gateway: `make docs`."""

from documents.pages import DOCS, with_tables
from documents.results import Document, latest, source
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "gateway.md"


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    tables = {
        "cost": cost_table(latest("gateway_cost")),
        "origin of the cost": source("gateway_cost"),
        "limits": limits_table(latest("gateway_limits")),
        "ledger": ledger_table(latest("gateway_ledger")),
        "affinity": affinity_table(latest("gateway_affinity")),
        "routing": routing_table(latest("routing_in_virtual_time")),
        "hits": hits_table(latest("answer_cache_hits")),
        "moved": moved_table(latest("gateway_moved_streams_openvino")),
        "requests of others": requests_table(latest("openai_requests")),
        "semantic cache": semantic_table(latest("semantic_cache")),
    }
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


def limits_table(found: Document) -> str:
    """Return the table of what several gateways let through of one limit, and the source of it."""
    rows = [
        ["gateways on one Redis", str(found["gateways"])],
        ["limit of the key, requests a minute", f"{found['requests_per_minute']:,}"],
        ["sent", f"{found['requests']:,} in {found['seconds']:.0f} s, {found['times_the_limit']:.1f} times the limit"],
        ["allowed in that time, with a minute's worth at first", f"{found['allowed']:,.0f}"],
        ["got through", f"{found['let_through']:,} ({found['off']:+.2%}; the goal was 1 % either way)"],
        ["of another key: tokens taken", f"{found['tokens_that_were_taken']:,}"],
        ["tokens charged", f"{found['settled_tokens']:,.3f}"],
    ]
    return markdown_table(["a scripted server answers", ""], rows) + "\n\n" + source("gateway_limits")


def ledger_table(found: Document) -> str:
    """Return the table of what the ledger has after kills, and the source of it."""
    quiet = found["without_kills"]
    by_metrics = ", ".join(f"{number:,.0f}" for number in quiet["tokens_by_metrics"])
    rows = [
        ["requests, and callers at a time", f"{found['requests']:,}, {found['callers']}"],
        ["killed at random moments", ", ".join(f"{name} {count}" for name, count in found["kills"].items())],
        ["answers that came whole to their callers", f"{found['finished']:,}"],
        ["of these once in the ledger, with their tokens", f"{found['finished_once_and_to_the_token']:,}"],
        *([f"other rows, `{finish}`", f"{count:,}"] for finish, count in found["others"].items()),
        [
            f"then {quiet['requests']:,} without kills: tokens of prompts and answers, by their callers",
            ", ".join(f"{number:,}" for number in quiet["tokens"]),
        ],
        ["by the gateway's metrics", by_metrics],
    ]
    return markdown_table(["an engine that is simulated", ""], rows) + "\n\n" + source("gateway_ledger")


def affinity_table(found: Document) -> str:
    """Return the table of what conversations find in the KV caches of several servers, and the source of it."""
    shares = found["cached_share"]
    titles = {
        "one server": "one server alone",
        "affinity": f"{found['servers']} servers, by the beginnings of prompts",
        "affinity and load": f"{found['servers']} servers, by the beginnings of prompts and by load",
        "fewest running": f"{found['servers']} servers, by the fewest running requests",
    }
    rows = [
        [title, f"{shares[name]:.3f}", f"{shares[name] / shares['one server']:.2f}"]
        for name, title in titles.items()
        if name in shares  # results from before load was seen have one less
    ]
    header = ["where requests go", "share of the prompts' tokens that was cached", "of one server's"]
    said = (
        f"{found['conversations']} conversations of {found['turns']} turns, {found['at_a_time']} at a time "
        f"({found['engine']}); the goal was 0.9 of one server's. "
    )
    return markdown_table(header, rows) + "\n\n" + said + source("gateway_affinity")


def routing_table(found: Document) -> str:
    """Return the table of the TTFT of requests that go by beginnings and by load, and the source of it."""
    rows = [
        [
            case if number == 0 else "",
            way,
            *(f"{figures[f'ttft_p{share}_ms']:,.0f}" for share in (50, 95, 99)),
            f"{figures['cached_share']:.2f}",
        ]
        for case, ways in found["found"].items()
        for number, (way, figures) in enumerate(ways.items())
    ]
    header = ["", "chosen by", "TTFT p50, ms", "p95", "p99", "share of prompts that was cached"]
    said = (
        f"Conversations of {found['turns']} turns by way of two gateways, or eight, to {found['servers']} simulated "
        "engines, in virtual time; in bursts others ask the first server alone, by way of neither. "
    )
    return markdown_table(header, rows) + "\n\n" + said + source("routing_in_virtual_time")


def moved_table(found: Document) -> str:
    """Return the table of streams whose server was killed, and the source of it."""
    gap_s = found["gap_s"]
    rows = [
        ["streams of up to so many tokens, greedy", f"{found['streams']:,}, {found['max_tokens']}"],
        ["kills of one of two servers, at a random token of 8 streams", f"{found['kills']:,}"],
        ["streams that went on at the other server", f"{found['moved']:,}"],
        ["streams whose text, tokens and end are those of an undisturbed run", f"{found['equal_to_undisturbed']:,}"],
        ["wait for the next token, of those that went on: median, p99, longest",
         ", ".join(f"{1000 * gap_s[name]:.0f} ms" for name in ("p50", "p99", "longest"))],
    ]  # fmt: skip
    said = (
        "In f32 (`execution_mode: accuracy`); with less, a prompt's numbers differ from those of the same tokens, one "
        "by one. "
    )
    where = source("gateway_moved_streams_openvino")
    return markdown_table(["the demo model on OpenVINO, real Tritons", ""], rows) + "\n\n" + said + where


def hits_table(found: Document) -> str:
    """Return the table of how often a kept answer is there, and the source of it."""
    rows = [
        [
            f"{row['skew']:g}",
            f"{row['ttl_s']:,.0f}",
            str(row["owners"]),
            f"{row['max_mib']:g}",
            f"{row['hit_share']:.0%}",
            f"{row['expected']:.0%}",
        ]
        for row in found["rows"]
    ]
    header = [
        "skew of the questions",
        "`ttl_s`",
        "tenants",
        "`max_mib`",
        "answers that were there",
        "by theory",
    ]
    said = (
        f"{found['questions']:,} questions by Zipf's law, {found['requests_per_s']:g} requests/s, all greedy, answers "
        f"of {found['answer_tokens']} words, in virtual time. "
    )
    return markdown_table(header, rows) + "\n\n" + said + source("answer_cache_hits")


def requests_table(found: Document) -> str:
    """Return the table of how requests of other servers' tests are answered, and the source of it."""
    rows = [
        [
            row["source"],
            row["outcome"],
            str(row["requests"]),
            "" if row["outcome"] == "as there" else "; ".join(row["about"]),
        ]
        for row in found["rows"]
    ]
    table = markdown_table(["whose tests", "here", "requests", "which"], rows)
    return table + f"\n\nWith the demo model on OpenVINO; {source('openai_requests')}"


def semantic_table(found: Document) -> str:
    """Return the table of the hits and the wrong hits of the committed pairs, and the source of it."""

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.0%}"

    rows = [
        [
            f"{level['least_similarity']:g}",
            f"{level['hits']}",
            f"{level['wrong_hits']}",
            share(level["wrong_share"]),
            " to ".join(map(share, level["wrong_share_interval"] or ())),
            share(level["found_share"]),
            share(level["wrong_share_of_different"]),
        ]
        for level in found["levels"]
    ]
    header = ["`least_similarity`", "hits", "wrong hits", "wrong, of hits", "95 %", "found, of the same",
              "taken, of different"]  # fmt: skip
    worst = "; ".join(
        f"{pair['question']} / {pair['other']} ({pair['similarity']:.3f})"
        for pair in found["most_alike_with_different_answers"][:2]
    )
    said = (
        f"{found['pairs']} pairs, {found['pairs_with_the_same_answer']} with the same answer; {found['encoder']} on "
        f"OpenVINO, a real Triton. The most alike with different answers: {worst}. "
    )
    return markdown_table(header, rows) + "\n\n" + said + source("semantic_cache")
