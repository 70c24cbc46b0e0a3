# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/decisions/*.md`, from committed results and the planner: `make docs`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.shown import with_interval
from build_engines.cost.cost_spec import CostSpec, load_document
from build_engines.cost.findings import find
from build_engines.cost.managed_prices import EXAMPLE, ManagedPrices
from build_engines.cost.report_tables import levers_table, tables, usd
from documents import admission_page, measured_tables, planned_tables
from documents.pages import with_tables
from documents.results import latest, source
from trireme.base.text_tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "decisions"
_EXAMPLES = ROOT / "examples" / "cost"


def quantization() -> str:
    """Return size, speed and worst quality of each recipe of the demo model."""
    result = latest("quantization_demo_cpu")
    base, rows = result["releases"][0], []
    for row, speed in zip(result["releases"], result["speed"]["releases"], strict=True):
        worst = row["quality"]["worst"] if row is not base else None
        rows.append([
            f"`{row['name']}`", f"{base['bytes'] / row['bytes']:.2f}",
            *(with_interval(speed[n]["ratio"]) for n in ("1", "16")),
            f"{worst['perplexity_ratio']['value']:.4f}" if worst else "",
            f"{worst['agreement']['value']:.0%}" if worst else "",
            f"{worst['accuracy_drop']['value']:.1%}" if worst else "",
        ])  # fmt: skip
    header = [
        "recipe",
        "times smaller",
        "tokens/s, 1 request",
        "16 requests",
        "perplexity over the base's, worst group",
    ]
    header += ["greedy tokens that agree, worst", "right answers lost, worst"]
    return f"{markdown_table(header, rows)}\n\nFrom {source('quantization_demo_cpu')}"


def managed() -> str:
    """Return a fleet of 1,000 requests/s against managed prices."""
    found = find(
        load_document(CostSpec, _EXAMPLES / "thousand_requests_70b.yaml"),
        load_document(ManagedPrices, EXAMPLE),
        sensitivity_fraction=None,
    )
    table = next(one for one in tables(found) if one.title == "Against managed prices")
    command = "```console\n$ trireme cost examples/cost/thousand_requests_70b.yaml\n```"
    fleet = f"The fleet costs {usd(found.bill.total_usd)} a month, throughput predicted by the planner, not measured:"
    return "\n\n".join([table.markdown().partition("\n\n")[2], fleet, command])


def levers() -> str:
    """Return what each lever saves of a bill of half a million dollars a month."""
    found = find(
        load_document(CostSpec, _EXAMPLES / "halve_500k.yaml"),
        load_document(ManagedPrices, EXAMPLE),
        sensitivity_fraction=None,
    )
    assert found.levers is not None
    table = levers_table(found.levers)
    rows = [[row[0], row[1], row[2], row[4]] for row in table.rows]
    command = "```console\n$ trireme cost examples/cost/halve_500k.yaml\n```"
    shown = markdown_table(["lever", "alone saves a month", "of the bill", "share of the joint saving"], rows)
    return "\n\n".join([shown, f"Of {usd(found.bill.total_usd)} a month, predicted:", command])


def peers() -> str:
    """Return our figures over those of other servers."""
    rows = [
        [row["side"], f"{row['users']}", *(with_interval(ratio) for ratio in row["ours_over_it"].values())]
        for row in latest("peers")["rows"]
        if row.get("ours_over_it")
    ]
    rows += [
        [f"{row['side']}, {row['step_ms']:g} ms a step", f"{row['users']}",
         *(with_interval(ratio) for ratio in row["ours_over_it"].values())]
        for row in latest("dynamo_mocker")["rows"]
        if row.get("ours_over_it") and row["side"].startswith("Dynamo")
    ]  # fmt: skip
    rows.sort(key=lambda row: row[0])
    header = ["beside", "users", "tokens/s, ours over it", "TTFT p50", "TPOT p50"]
    return f"{markdown_table(header, rows)}\n\nFrom {source('peers', 'dynamo_mocker')}"


_PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "batching": {
        "static batching": measured_tables.static_batching,
        "paged memory": measured_tables.paged_memory,
        "chunked prefill": measured_tables.chunked_prefill,
    },
    "parallelism": {"layouts": planned_tables.parallelism, "published": planned_tables.published},
    "disaggregation": {
        "split": planned_tables.split,
        "chunked prefill": measured_tables.chunked_prefill,
        "prefill apart": measured_tables.prefill_apart,
    },
    "latency_or_throughput": {"trade": planned_tables.trade, "overload": admission_page.overload},
    "quantization": {"measured": quantization, "planned": planned_tables.formats},
    "self_hosted_or_managed": {"managed": managed, "levers": levers},
    "trireme_beside_others": {"peers": peers},
}


def _writer(writers: Mapping[str, Callable[[], str]]) -> Callable[[str], str]:
    return lambda text: with_tables(text, {table: write() for table, write in writers.items()})


WRITERS: Mapping[Path, Callable[[str], str]] = {FOLDER / f"{name}.md": _writer(pages) for name, pages in _PAGES.items()}
