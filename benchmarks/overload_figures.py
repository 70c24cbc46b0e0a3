# SPDX-License-Identifier: Apache-2.0
"""Figures from the records of `benchmarks.overload`: goodput, latencies and refusals, with intervals and a plot.

`python -m benchmarks.overload_figures RECORDS.jsonl.gz` computes them again from a committed file.
"""

import gzip
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.support.report import RESULTS, interval_90
from ensemble_configs.spec.admission_spec import SloSpec
from serving.engines.seam.scheduling import Priority
from trireme.base.sample_statistics import Sample, bootstrap, percentile

_WARM_UP_SHARE = 0.1  # of a load's time, at its beginning


class Header(msgspec.Struct, kw_only=True):
    """The facts that all records share, in the first line."""

    ttft_target_ms: float
    tpot_target_ms: float
    capacity_per_s: float
    engine: dict[str, object]
    admission: dict[str, object]
    seed: int
    environment: dict[str, object]

    def slo(self) -> SloSpec:
        """Return the targets as a deployment has them."""
        return SloSpec(ttft_ms=self.ttft_target_ms, tpot_ms=self.tpot_target_ms)


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request's times, in milliseconds from when the request was due."""

    priority: int
    num_prompt_tokens: int
    max_tokens: int
    kind: str = ""  # of the server: with admission, or none
    shape: str = ""  # of the arrivals
    load: float = 0.0  # of the capacity
    tenant: str = ""
    due_s: float = 0.0
    first_ms: float | None = None
    last_ms: float | None = None
    num_tokens: int = 0
    end: str = ""  # done, refused, or the code of an error: DEADLINE is a client without patience
    end_ms: float = 0.0

    @property
    def tpot_ms(self) -> float:
        """(last - first) / (tokens - 1); 0 below two tokens."""
        if self.num_tokens < 2 or self.first_ms is None or self.last_ms is None:
            return 0.0
        return (self.last_ms - self.first_ms) / (self.num_tokens - 1)

    def is_good(self, header: Header) -> bool:
        """Answered within both targets."""
        if self.end != "done" or self.first_ms is None or self.first_ms > header.ttft_target_ms:
            return False
        return self.tpot_ms <= header.tpot_target_ms


def read_records(path: Path) -> tuple[Header, list[Record]]:
    """Read a file of `benchmarks.overload`."""
    with gzip.open(path) as file:
        first, *lines = file.read().splitlines()
    return msgspec.json.decode(first, type=Header), [msgspec.json.decode(line, type=Record) for line in lines]


def with_interval(values: Sequence[float], figure: Callable[[Sample], float]) -> dict[str, float]:
    """Return a figure of a sample with its 90 % bootstrap interval (percentile method, 1,000 seeded resamples)."""
    sample = np.array(values)
    found = bootstrap(lambda chosen: [figure(drawn) for drawn in sample[chosen]], len(sample), num_resamples=1000)
    return {"value": figure(values), **interval_90(found)}


def p99(values: Sample) -> float:
    """Return the 99th percentile, a value that was measured."""
    return percentile(values, 99, method="higher")


def of_load(header: Header, records: list[Record]) -> dict[str, object]:
    """Return the figures of one server under one load."""
    last_s = max(record.due_s for record in records)
    counted = [record for record in records if record.due_s >= _WARM_UP_SHARE * last_s]
    counted_s = (1 - _WARM_UP_SHARE) * last_s
    good = [float(record.is_good(header)) for record in counted]
    refusals_ms = [record.end_ms for record in counted if record.end == "refused"]
    # What ends later is of no load any more.
    done_in_time = [
        record
        for record in records
        if record.end == "done" and _WARM_UP_SHARE * last_s <= record.due_s + record.end_ms / 1000 <= last_s
    ]
    lengths = statistics.quantiles([record.max_tokens for record in counted], n=4)
    classes: dict[str, object] = {}
    for priority in Priority:
        own = [record for record in counted if record.priority == priority]
        ttfts_ms = [record.first_ms for record in own if record.first_ms is not None]
        quartiles = [
            [float(record.is_good(header)) for record in own if low < record.max_tokens <= high]
            for low, high in zip((0.0, *lengths), (*lengths, float("inf")), strict=True)
        ]
        classes[priority.name.lower()] = {
            "requests": len(own),
            "good_share": statistics.fmean(record.is_good(header) for record in own),
            "good_share_by_length_quartile": [
                statistics.fmean(quartile) if quartile else None for quartile in quartiles
            ],
            "ttft_p50_ms": statistics.median(ttfts_ms) if ttfts_ms else None,
            "ttft_p99_ms": with_interval(ttfts_ms, p99) if ttfts_ms else None,
        }
    rate = with_interval(good, lambda values: float(np.mean(values)))
    return {
        "requests": len(counted),
        "goodput_per_s": {name: share * len(counted) / counted_s for name, share in rate.items()},
        "done_per_s": len(done_in_time) / counted_s,
        "refused_per_s": len(refusals_ms) / counted_s,
        "refusal_ms": None
        if not refusals_ms
        else {"p50": statistics.median(refusals_ms), "p99": p99(refusals_ms), "max": max(refusals_ms)},
        "ends": {end: sum(record.end == end for record in counted) for end in sorted({one.end for one in counted})},
        "classes": classes,
    }


def figures_of(header: Header, records: list[Record]) -> dict[str, object]:
    """Return all figures; for each shape of arrivals the ratios that the goals are about."""
    loads: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
    for record in records:
        loads.setdefault(record.shape, {}).setdefault(record.kind, {})[f"{record.load:g}"] = {}
    for shape, kinds in loads.items():
        for kind, factors in kinds.items():
            for factor in factors:
                own = [one for one in records if (one.shape, one.kind, f"{one.load:g}") == (shape, kind, factor)]
                factors[factor] = of_load(header, own)
    found: dict[str, object] = {"benchmark": "overload", **msgspec.to_builtins(header), "loads": loads}
    for shape, kinds in loads.items():
        if {"0.5", "3"} <= kinds.get("admission", {}).keys() and "none" in kinds:
            found[f"ratios, {shape}"] = _ratios(kinds)
    if "ratios, poisson" in found:
        ratios = found["ratios, poisson"]
        assert isinstance(ratios, dict)
        found["goodput_at_3x_over_peak"] = ratios["goodput_at_3x_over_peak"]
    return found


def _ratios(kinds: dict[str, dict[str, dict[str, object]]]) -> dict[str, float]:
    def value(one: dict[str, object], *path: str) -> float:
        found: object = one
        for name in path:
            assert isinstance(found, dict)
            found = found[name]
        assert isinstance(found, float)
        return found

    goodput = {load: value(one, "goodput_per_s", "value") for load, one in kinds["admission"].items()}
    premium_p99 = {
        load: value(one, "classes", "premium", "ttft_p99_ms", "value") for load, one in kinds["admission"].items()
    }
    return {
        "goodput_at_3x_over_peak": goodput["3"] / max(goodput.values()),
        "peak_goodput_over_throughput_without_admission": max(goodput.values())
        / max(value(one, "done_per_s") for one in kinds["none"].values()),
        "premium_ttft_p99_at_3x_over_half": premium_p99["3"] / premium_p99["0.5"],
    }


def write_figures(path: Path) -> None:
    """Compute, write `<records>.json` and `.png` beside the records, and print."""
    header, records = read_records(path)
    found = figures_of(header, records)
    stem = path.name.removesuffix(".jsonl.gz")
    (path.parent / f"{stem}.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    plot(header, found, path.parent / f"{stem}.png")
    show(found)


def plot(header: Header, found: dict[str, object], path: Path) -> None:
    """Goodput against offered load, with admission and without."""
    import matplotlib  # noqa: PLC0415  it takes a second to load

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    loads = found["loads"]
    assert isinstance(loads, dict)
    figure, axes = plt.subplots(1, len(loads), figsize=(6 * len(loads), 4), squeeze=False, sharey=True)
    for axis, (shape, kinds) in zip(axes[0], loads.items(), strict=True):
        for kind, style in (("admission", "o-"), ("none", "s--")):
            factors = sorted(kinds.get(kind, {}), key=float)
            offered = [float(factor) * header.capacity_per_s for factor in factors]
            rates = [kinds[kind][factor]["goodput_per_s"] for factor in factors]
            errors = [
                [rate["value"] - rate["low"] for rate in rates],
                [rate["high"] - rate["value"] for rate in rates],
            ]
            label = "with admission" if kind == "admission" else "without"
            axis.errorbar(offered, [rate["value"] for rate in rates], yerr=errors, fmt=style, label=label, capsize=3)
        axis.axvline(header.capacity_per_s, color="grey", linewidth=0.8)
        axis.set_title(f"{shape} arrivals")
        axis.set_xlabel("offered requests/s (line: capacity)")
        axis.set_ylim(bottom=0)
        axis.legend()
    axes[0][0].set_ylabel(f"requests/s within {header.ttft_target_ms:.0f} ms TTFT, {header.tpot_target_ms:.0f} ms TPOT")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def show(found: dict[str, object]) -> None:
    """Print the figures as a table."""
    table = Table(title="requests/s within both targets; of each class: share within them, TTFT p99 ms")
    for column in (
        "arrivals",
        "load",
        "server",
        "goodput",
        "done",
        "refusal p99 ms",
        *(p.name.lower() for p in Priority),
    ):
        table.add_column(column, justify="right")
    loads = found["loads"]
    assert isinstance(loads, dict)
    for shape, kinds in loads.items():
        for kind, factors in kinds.items():
            for factor, one in factors.items():
                cells = [
                    f"{each['good_share']:.2f}, {each['ttft_p99_ms']['value'] if each['ttft_p99_ms'] else 0:.0f}"
                    for each in one["classes"].values()
                ]
                refusal = f"{one['refusal_ms']['p99']:.0f}" if one["refusal_ms"] else ""
                goodput = f"{one['goodput_per_s']['value']:.1f}"
                table.add_row(shape, f"{factor}x", kind, goodput, f"{one['done_per_s']:.1f}", refusal, *cells)
    console = Console()
    console.print(table)
    for name, value in found.items():
        if name.startswith("ratios"):
            console.print(name, value)


if __name__ == "__main__":
    write_figures(Path(sys.argv[1]) if len(sys.argv) > 1 else max(RESULTS.glob("overload_*.jsonl.gz")))
