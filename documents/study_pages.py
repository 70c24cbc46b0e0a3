# SPDX-License-Identifier: Apache-2.0
"""The writers of tables that single studies measured, in pages about something else."""

from documents.pages import DOCS, with_tables
from documents.results import Document, latest, source, with_interval
from trireme.base.text_tables import markdown_table

_BATCH_SHARE, _LOAD_TOOLS = "batch_share_in_virtual_time", "load_tools"
_CHART, _TRACING, _SHARED_DEVICE = "chart", "tracing_cost", "shared_device"
_SIDES = {
    "off again": "the same again, without tracing",
    "sampled 0 %": "on, 0 % sampled",
    "sampled 10 %": "10 %",
    "sampled 100 %": "100 %",
    "and Triton's own": "100 %, and Triton's own spans",
}
_DEFAULT_SHARE = "0.75"
_SEEN = {
    "ttft_p50_ms": ".1f",
    "tpot_p50_ms": ".2f",
    "e2e_p50_ms": ".1f",
    "requests_per_s": ".1f",
    "client_cores": ".2f",
}


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


def load_tools() -> str:
    """Return the medians that each load tool saw of the same load, both times."""
    rows = [
        [
            tool,
            *(_both(times, name, form) for name, form in _SEEN.items()),
        ]
        for tool, times in latest(_LOAD_TOOLS)["tools"].items()
    ]
    header = ["", "TTFT p50, ms", "TPOT p50, ms", "E2E p50, ms", "requests/s", "cores of the client's busiest process"]
    return f"{markdown_table(header, rows)}\n\nFrom {source(_LOAD_TOOLS)}"


def chart() -> str:
    """Return what the chart's Envoy and three servers did to streams under load."""
    found = latest(_CHART)
    split, hung, killed, replaced = (found[name] for name in ("split", "hung_mirror", "killed", "replaced"))
    ejected_s = killed["ejected_after_s"]
    rows = [
        [
            f"{replaced['servers']} servers replaced, one after the other, under load",
            f"of {replaced['answers']:,} streams {replaced['failed']} failed, {replaced['cut']} cut",
        ],
        [
            f"{split['requests']:,} requests, {split['wanted']:.0%} of them for the candidate",
            f"{split['to_candidate']:.1%} to the candidate, {split['failed']} failed",
        ],
        [
            "every request mirrored to a server that hangs (SIGSTOP): p50, p99 over those without",
            ", ".join(_over_without(hung[f"{name}_over_without"]) for name in ("p50", "p99")),
        ],
        [
            f"a server killed, {len(ejected_s)} times",
            f"ejected after {min(ejected_s):.2f} to {max(ejected_s):.2f} s; {killed['streams_cut']} begun streams cut, "
            f"{killed['failed_before_they_began']} other requests failed",
        ],
    ]
    return f"{markdown_table(['', 'found'], rows)}\n\nFrom {source(_CHART)}"


def tracing() -> str:
    """Return what tracing costs the server's processes and the throughput of an engine that costs nothing."""
    found = latest(_TRACING)
    by_side = {row["side"]: row for row in found["rows"]}
    off = by_side["off"]["cpu_us_per_request"]["median"] / 1000
    rows = [
        [title, *(with_interval(by_side[side][name]) for name in ("cpu_ratio", "throughput_ratio"))]
        for side, title in _SIDES.items()
    ]
    table = markdown_table(["", "CPU time, ratio", "tokens/s, ratio"], rows)
    return (
        f"{table}\n\nMedians of {found['rounds']} rounds, 90 % intervals; {off:.1f} ms a request without tracing. "
        f"From {source(_TRACING)}"
    )


def shared_device() -> str:
    """Return how two models share a device by their weights, and what a flood of one costs the other."""
    found = latest(_SHARED_DEVICE)
    rows = [
        [
            " and ".join(f"{weight:g}" for weight in one["weights"].values()),
            *(str(one[name]) for name in ("count", "high_water", "most_generations_at_once")),
            f"{one['mean_held']:.2f}",
            " and ".join(f"{seconds:.1f}" for seconds in one["held_s"].values()),
            f"{one['held_ratio']:.2f}",
        ]
        for one in found["shares"]
    ]
    header = ["weights", "units", "most ever held", "most generations at once, by the engines' clocks"]
    header += ["held on the mean", "stream-seconds of the two", "ratio"]
    return f"{markdown_table(header, rows)}\n\nFrom {source(_SHARED_DEVICE)}"


def apart() -> str:
    """Return the TTFT of a model beside another one that is flooded, where each has resources of its own."""
    found = latest(_SHARED_DEVICE)["apart"]
    rows = [
        [title, str(one["requests"]), f"{one['p50']:.1f} ms", f"{one['p99']:.1f} ms"]
        for title, one in (("alone", found["alone_ttft_ms"]), ("beside the flood", found["flooded_ttft_ms"]))
    ]
    over = found["p99_flooded_over_alone"]
    table = markdown_table(["", "requests", "p50", "p99"], rows)
    return f"{table}\n\nThe p99 is {over:.2f} times that alone; the goal is at most 1.2."


WRITERS = {
    DOCS / "batch.md": lambda text: with_tables(text, {"batch share": batch_share()}),
    DOCS / "kubernetes.md": lambda text: with_tables(text, {"chart": chart()}),
    DOCS / "benchmarks.md": lambda text: with_tables(text, {"load tools": load_tools()}),
    DOCS / "tracing.md": lambda text: with_tables(text, {"tracing": tracing()}),
    DOCS / "rate_limiting.md": lambda text: with_tables(text, {"shared device": shared_device(), "apart": apart()}),
}


def _over_without(found: Document) -> str:
    return f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _both(times: Document, name: str, form: str) -> str:
    return ", ".join(format(time[name], form) for time in times.values())


def _of_long(one: Document) -> str:
    return f"{one['ttft_p99_ratio']:.2f}, {one['idle_capacity_filled']:.0%}, {one['batch_tokens_per_s']:.0f}"
