# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report as SVG within its page: lines differ by dashes and marks, not by colour alone."""

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from clients.load_report.document import Document
from clients.load_report.run_figures import LATENCIES, RunFigures, pooled, values_of
from clients.load_report.server_figures import Timeline
from clients.load_run.run_folder import Run
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install
from trireme.base.sample_statistics import percentile

_TITLES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}
_BINS = 40
_STYLES = {True: ("open loop", "o-", "s--"), False: ("closed loop", "^-", "v--")}  # by `RunInfo.is_open`


class Chart(NamedTuple):
    """A picture, and its content in words for readers who cannot see it."""

    svg: str
    text: str


def histograms(run: Run, figures: RunFigures) -> Chart | None:
    """Draw how frequent each latency is; the last bar holds all above the 99.5th percentile, and says so."""
    done = [record for record in run.records if record.is_done and figures.window.holds(record.due_ns)]
    found = {name: pooled(done, metric) for name, metric in LATENCIES.items()}
    shown = {name: values for name, values in found.items() if values}
    if not shown:
        return None

    def draw(axes: Sequence[Any]) -> None:
        for axis, (name, values) in zip(axes, shown.items(), strict=False):
            limit = _limit(values)
            axis.hist([min(value, limit) for value in values], bins=_BINS, color="0.55", edgecolor="0.2", linewidth=0.4)
            for percent, dashes in (("50", (1, 0)), ("99", (4, 3))):
                at = figures.latencies[name].percentiles[percent]
                axis.axvline(at, color="black", linewidth=1.2, dashes=dashes, label=f"p{percent} {at:.1f} ms")
            axis.set_title(f"{_TITLES[name]}, ms")
            axis.set_xlabel(_beyond(values, limit))
            axis.set_ylabel("values")
            axis.legend(fontsize="small", loc="upper right")  # "best" looks at each bar, and warns if that takes long

    text = "; ".join(
        f"{_TITLES[name]}: p50 {figures.latencies[name].percentiles['50']:.1f} ms, "
        f"p99 {figures.latencies[name].percentiles['99']:.1f} ms"
        + (f", {beyond}" if (beyond := _beyond(values, _limit(values))) else "")
        for name, values in shown.items()
    )
    return Chart(_svg(draw, count=len(shown)), f"Histograms of {text}")


def _limit(values: Sequence[float]) -> float:
    """Return where the axis ends, so that a few outliers do not press all others into one bar."""
    return percentile(values, 99.5, method="higher")


def _beyond(values: Sequence[float], limit: float) -> str:
    """Return how many values lie beyond the axis, in words; "": none."""
    count = sum(value > limit for value in values)
    return f"{count} in the last bar beyond {limit:.1f} ms, up to {max(values):.1f} ms" if count else ""


def over_time(run: Run, figures: RunFigures, lines: dict[str, Timeline]) -> Chart:
    """Draw TTFT of each request and tokens a second, with the server's batch, queue and KV cache below them."""

    def draw(axes: Sequence[Any]) -> None:
        firsts = [
            (record.due_ns / 1e9, value)
            for record in run.records
            if record.is_done
            for [value] in values_of([record], LATENCIES["ttft"])
        ]
        axes[0].plot([at for at, _ in firsts], [value for _, value in firsts], ".", color="0.3", markersize=3)
        axes[0].set_title("TTFT of each request, ms, by when it was due")
        seconds = max(record.end_ns for record in run.records) / 1e9
        width = max(seconds / 60, 1e-9)
        tokens = [0.0] * 61
        for record in run.records:
            for at_ns, count in zip(record.times_ns, record.tokens, strict=True):
                tokens[min(60, int(at_ns / 1e9 / width))] += count / width
        axes[1].step([width * number for number in range(61)], tokens, where="post", color="black")
        axes[1].set_title("output tokens/s")
        for axis, (title, line) in zip(axes[2:], lines.items(), strict=False):
            axis.plot(line.seconds, line.values, color="black", linewidth=1)
            axis.set_title(title)
        for axis in axes:
            axis.axvspan(
                figures.window.start_ns / 1e9, figures.window.end_ns / 1e9, facecolor="none", edgecolor="0.7",
                hatch="///", linewidth=0, label="measured",
            )  # fmt: skip
            axis.set_xlabel("s from the start")
            axis.set_xlim(0, seconds)
            axis.set_ylim(bottom=0)

    text = f"Over the run: TTFT of each request, output tokens a second{''.join(f', {title}' for title in lines)}"
    return Chart(_svg(draw, count=2 + len(lines)), f"{text}; the measured part is hatched")


def load_curve(document: Document) -> Chart | None:
    """Draw throughput against latency, a numbered mark for each run and a line for each kind of loop.

    The text below says whose number is whose. None: there are fewer than two runs.
    """
    shown = [part for part in document.runs if "ttft" in part.figures.latencies]
    if len(shown) < 2:
        return None
    metrics = [name for name in ("ttft", "tpot", "e2e") if any(name in part.figures.latencies for part in shown)]
    shown.sort(key=lambda part: part.figures.output_tokens.per_s)
    kinds = {
        is_open: [part.figures for part in shown if part.info.is_open == is_open]
        for is_open in (True, False)
        if any(part.info.is_open == is_open for part in shown)
    }

    def draw(axes: Sequence[Any]) -> None:
        for axis, name in zip(axes, metrics, strict=True):
            for is_open, runs in kinds.items():
                kind, *styles = _STYLES[is_open]
                there = [figures for figures in runs if name in figures.latencies]
                xs = [figures.output_tokens.per_s for figures in there]
                for percent, style in zip(("50", "99"), styles, strict=True):
                    ys = [figures.latencies[name].percentiles[percent] for figures in there]
                    axis.plot(xs, ys, style, color="black", fillstyle="none", label=f"p{percent}, {kind}", linewidth=1)
            axis.set_title(f"{_TITLES[name]}, ms")
            axis.set_xlabel("output tokens/s")
            axis.set_ylim(0, 1.15 * axis.dataLim.y1)  # room for a number above the highest point
            axis.legend(fontsize="x-small")
            for number, part in enumerate(shown, start=1):
                if name in part.figures.latencies:
                    at = part.figures.output_tokens.per_s, part.figures.latencies[name].percentiles["50"]
                    weight = "bold" if part.figures.name == document.knee else "normal"
                    axis.annotate(
                        str(number), at, fontsize="x-small", xytext=(3, 3), textcoords="offset points", weight=weight
                    )

    names = ", ".join(f"{number} {part.figures.name}" for number, part in enumerate(shown, start=1))
    knee = f"; the knee is {document.knee}" if document.knee else ""
    loops = " and ".join(_STYLES[is_open][0] for is_open in kinds)
    return Chart(
        _svg(draw, count=len(metrics)), f"Latency against throughput of {len(shown)} runs, {loops}: {names}{knee}"
    )


def _svg(draw: Callable[[Sequence[Any]], None], *, count: int) -> str:
    """Return diagrams as SVG, two in a row."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  only where pictures are asked for
    except ModuleNotFoundError as exc:
        raise SpecError(
            f"pictures need the Python package matplotlib ({how_to_install('plot')}); "
            "--no-plots writes the report without them",
            field="plots",
        ) from exc
    rows = -(-count // 2)
    figure = Figure(figsize=(9.6, 2.7 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False).flatten()
    for axis in axes[count:]:
        axis.set_visible(False)
    draw(list(axes[:count]))
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<!DOCTYPE")[2].partition(">")[2]  # what stands before is for a file of its own
