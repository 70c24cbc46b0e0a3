# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/performance.md` from the latest results that are kept: `make docs`."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.peers.shown import cells
from benchmarks.studies import front_door_table
from documents import measured_tables
from documents.pages import with_tables
from documents.results import Document, has_result, latest, source
from trireme.base.text_tables import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"

NOT_MEASURED = "No result is kept yet."
_FIGURES = ("users", "side", "tokens/s", "TTFT p50 / p99 ms", "TPOT p50 ms", "client's CPU")
_CANCELS = {
    "side": "side",
    "clients": "clients that left",
    "kv_free_p50_ms": "KV blocks free, p50 ms",
    "kv_free_p99_ms": "p99 ms",
    "kv_free_max_ms": "longest, ms",
}
_TEXTS = {
    "script": "script",
    "texts": "texts",
    "equal": "equal",
    "equal_but_for_a_cut_character": "equal but for a character that `max_tokens` cut",
    "stopped": "of them ended by a stop string",
}
_RATIOS = ("ours over it: tokens/s", "TTFT p50", "TPOT p50")


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    return with_tables(text, tables())


def tables() -> dict[str, str]:
    """Return the page's tables of what has been measured, by name."""
    peers, mocker = latest("peers"), latest("dynamo_mocker")
    return {
        "peers": _peers(peers),
        "what the peers were": _sides(peers["sides"]),
        "vllm engine": f"{_peers(latest('vllm_engine'))}\n\nFrom {source('vllm_engine')}",
        "what the vllm engines were": _sides(latest("vllm_engine")["sides"]),
        "vllm cancels": _vllm_rows("cancels", _CANCELS),
        "vllm texts": _vllm_rows("texts", _TEXTS),
        "frontends": _frontends(mocker),
        "what the frontends were": _sides(mocker["sides"]),
        "front doors": front_doors(latest("front_doors"), source("front_doors"))
        if has_result("front_doors")
        else NOT_MEASURED,
        "direct responses": measured_tables.direct_responses() if has_result("request_cost_ways") else NOT_MEASURED,
        "overhead": measured_tables.overhead(),
        "responses": measured_tables.responses(),
        "frontend cost": measured_tables.frontend_cost(),
        "chunked prefill": measured_tables.chunked_prefill(),
        "long texts": measured_tables.long_texts(),
        "prefix cache": measured_tables.prefix_cache(),
        "paged memory": measured_tables.paged_memory(),
        "static batching": measured_tables.static_batching(),
        "speculation": measured_tables.speculation(),
        "first request": measured_tables.first_request(),
        "release pull": measured_tables.release_pull(),
        "engine turns": measured_tables.engine_turns(),
        "stop strings": measured_tables.stop_strings(),
        "left clients": measured_tables.left_clients(),
        "memory": measured_tables.memory(),
    }


def _peers(result: Document) -> str:
    rows = sorted(result["rows"], key=lambda row: row["users"])
    return markdown_table([*_FIGURES, *_RATIOS], map(cells, rows))


def _vllm_rows(name: str, columns: Mapping[str, str]) -> str:
    """Return the rows of one kind that the study of vLLM's engine holds, by what each column of them is called here."""
    result = latest("vllm_engine")
    if name not in result:  # one that was measured before it held them
        return NOT_MEASURED
    shown = [[_figure(row[field]) for field in columns] for row in result[name]]
    return f"{markdown_table([*columns.values()], shown)}\n\nFrom {source('vllm_engine')}"


def _figure(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)


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


def front_doors(result: Document, origin: str) -> str:
    """Return the table of what applications call, with what each side was, and which sides were not run."""
    shown = markdown_table(list(front_door_table.COLUMNS), front_door_table.cells(result["rows"]))
    left_out = [f"{one['side']} was not run here: {one['because']}." for one in result["not_run"]]
    return "\n\n".join([shown, f"From {origin}", *left_out, _sides(result["sides"])])


def _sides(sides: Iterable[Mapping[str, str]]) -> str:
    first = {side["side"]: side for side in reversed(list(sides))}  # of each side; later ones differ in the step's time
    rows = ([name, one["version"], one["precision"], f"`{one['settings']}`"] for name, one in reversed(first.items()))
    return markdown_table(["side", "version", "precision", "started as"], rows)
