# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/admission.md` from the latest results of overload: `make docs`."""

from pathlib import Path

from documents.pages import with_tables
from documents.results import Document, latest, source
from trireme.base.text_tables import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "admission.md"
_CLASSES = ("premium", "standard", "batch")
_SIDES = (("admission", "with"), ("none", "without"))
_STUDIES = {
    "step_40_ms": "Poisson, within 15 ms",
    "step_40_ms_refuse_within_0_ms": "Poisson, when hopeless",
    "bursty_step_40_ms": "bursty, within 15 ms",
    "bursty_step_40_ms_refuse_within_0_ms": "bursty, when hopeless",
}


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    return with_tables(text, tables())


def tables() -> dict[str, str]:
    """Return the page's tables by name."""
    return {
        "virtual time": virtual_time(),
        "early refusals": early_refusals(),
        "overload": overload("poisson"),
        "bursts": overload("bursty"),
    }


def overload(shape: str = "poisson") -> str:
    """Return goodput, classes and refusals of the running server with admission and without, by load."""
    rows = []
    for how, title in _SIDES:
        for load, one in latest("overload")["loads"][shape][how].items():
            goodput, refusals = one["goodput_per_s"], one["refusal_ms"]
            rows.append([
                f"{load}x", title, f"{goodput['value']:.1f} ({goodput['low']:.1f} to {goodput['high']:.1f})",
                *(_class(one["classes"][name]) for name in _CLASSES),
                f"{refusals['p50']:.0f}, {refusals['p99']:.0f} ms" if refusals else "",
            ])  # fmt: skip
    header = ["load", "admission", "goodput/s", "premium: good, TTFT p99", "standard", "batch", "refusals p50, p99"]
    return f"{markdown_table(header, rows)}\n\nSimulated engine, 40 ms a step; from {source('overload')}"


def virtual_time() -> str:
    """Return goodput and classes in virtual time, by load."""
    rows = [
        [
            f"{float(load):g}x",
            title,
            f"{one['goodput_per_s']:.1f}",
            f"{one['done_per_s']:.1f}",
            *(_class(one["classes"][name]) for name in _CLASSES),
        ]
        for how, title in _SIDES
        for load, one in latest("overload_in_virtual_time")["loads"][how].items()
    ]
    header = ["load", "admission", "goodput/s", "done/s", "premium: good, TTFT p99", "standard", "batch"]
    return f"{markdown_table(header, rows)}\n\nFrom {source('overload_in_virtual_time')}"


def early_refusals() -> str:
    """Return what it costs to refuse early."""
    rows = []
    for name, title in _STUDIES.items():
        result = latest(f"overload_in_virtual_time_{name}")
        loads = result["loads"]["admission"]
        busiest = loads["3.0"]["classes"]
        rows.append([
            title, ", ".join(f"{loads[load]['goodput_per_s']:.1f}" for load in ("1.0", "2.0", "3.0")),
            f"{max(one['refusal_p99_ms'] for one in loads.values()):.0f} ms",
            f"{result['peak_goodput_over_throughput_without_admission']:.2f}",
            f"{busiest['premium']['good_share']:.0%}, {result['premium_ttft_p99_at_3x_over_half']:.2f}",
            f"{busiest['standard']['ttft_p99_ms']:.0f} ms",
        ])  # fmt: skip
    header = ["arrivals, refused", "goodput/s at 1x, 2x, 3x", "refusals p99", "peak over throughput"]
    header += ["premium good at 3x, its p99 over that at 0.5x", "standard's TTFT p99 at 3x"]
    return (
        f"{markdown_table(header, rows)}\n\nFrom {source(*(f'overload_in_virtual_time_{name}' for name in _STUDIES))}"
    )


def _class(found: Document) -> str:
    ttft = found["ttft_p99_ms"]
    if ttft is None:
        return f"{found['good_share']:.0%}"
    value = ttft if isinstance(ttft, float) else ttft["value"]
    return f"{found['good_share']:.0%}, " + (f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms")
