# SPDX-License-Identifier: Apache-2.0
"""A picture of a plan: throughput of a GPU against speed for one user, the front of each weight format.

Both axes are logarithmic, so that a factor of uncertainty is as high everywhere.
"""

from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from build_engines.planner.option import Plan
from build_engines.planner.pareto import Front, Point
from build_engines.planner.plan_words import load_in_words
from build_engines.planner.plot_labels import Label, place_labels
from trireme.base.errors import SpecError

# Fronts that are nowhere further apart, ends included, are one line: it is less than they are predicted within.
_SAME, _SAME_ENDS = 0.1, 0.2
_COLORS = ("#0b61a4", "#c2410c", "#2e7d32", "#7b3fa0")
_GRAY = "#444444"
_DPI = 140  # of the picture and of its labels' places: the width of small letters is rounded to pixels


def write_plot(plan: Plan, fronts: tuple[Front, ...], path: Path, *, name: str) -> None:
    """Write a PNG, SVG or PDF, by the file's ending.

    Args:
        plan: the plan, whose first option is marked.
        fronts: the fronts of its formats.
        path: where to.
        name: the model's name, for the title.

    Raises:
        SpecError: the file cannot be written.
    """
    figure = Figure(figsize=(11, 7.2), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)  # labels are placed by their size in pixels
    has_ttft = plan.question.targets.ttft_ms is not None
    upper, *lower = figure.subplots(2 if has_ttft else 1, 1, sharex=True, squeeze=False,
                                    height_ratios=[3, 1] if has_ttft else [1]).flat  # fmt: skip
    lines = drawn_lines(plan, fronts)
    labels: list[Label] = []
    for line, color in zip(lines, _COLORS, strict=False):
        labels += _draw(upper, line, color)
        for axes in lower:
            _draw_ttft(axes, line[0], color)
    _draw_first(upper, plan)
    _finish(plan, lines, upper, lower, name=name)
    figure.canvas.draw()
    figure.set_layout_engine("none")  # what is placed now stays
    best = plan.options[0]
    star = (1000 / best.estimate.tpot_ms, best.engine_tokens_per_s_per_gpu)
    labels.sort(key=lambda label: label.is_optional)
    place_labels(upper, labels, (star, *(xy for line in lines for xy in _dense(line[0].points))))
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as exc:
        raise SpecError(f"--plot {path}: {exc.strerror}", field="plot", value=str(path)) from exc


def drawn_lines(plan: Plan, fronts: tuple[Front, ...]) -> list[list[Front]]:
    """Return the lines of the picture, each of formats whose fronts cannot be told apart; the plan's best come first.

    The format of the checkpoint itself is always among them: it is what there is to gain from.
    """
    groups: list[list[Front]] = []
    for front in fronts:
        same = next((group for group in groups if _are_alike(group[0], front)), None)
        if same is None:
            groups.append([front])
        else:
            same.append(front)
    own = plan.question.quantized.weight_format if plan.question.quantized else plan.question.model.dtype
    own = {"float16": "fp16", "bfloat16": "bf16"}.get(str(own), own)
    later = [group for group in groups[len(_COLORS) :] if any(front.weight_format == own for front in group)]
    return groups[: len(_COLORS) - len(later)] + later


def _are_alike(one: Front, other: Front) -> bool:
    mine, theirs = _xy(one.points), _xy(other.points)
    mine, theirs = np.log(mine), np.log(theirs)
    if np.abs(mine[0, [0, -1]] - theirs[0, [0, -1]]).max() > _SAME_ENDS:
        return False
    grid = np.linspace(max(mine[0, 0], theirs[0, 0]), min(mine[0, -1], theirs[0, -1]), 50)
    return bool(np.abs(np.interp(grid, *mine) - np.interp(grid, *theirs)).max() < _SAME)


def _xy(points: tuple[Point, ...]) -> NDArray[np.float64]:
    """Return [2, points]: tokens/s of one user, growing, and of one GPU."""
    pairs = sorted((point.user_tokens_per_s, point.gpu_tokens_per_s) for point in points)
    return np.array(pairs).T


def _dense(points: tuple[Point, ...]) -> list[tuple[float, float]]:
    """Return points along a line, near enough to see whether a label is on it."""
    user, gpu = np.log(_xy(points))
    grid = np.linspace(0, len(user) - 1, 6 * len(user))
    along = (np.interp(grid, np.arange(len(user)), values) for values in (user, gpu))
    return list(zip(*(np.exp(values).tolist() for values in along), strict=True))


def _draw(axes: Axes, line: list[Front], color: str) -> list[Label]:
    """Draw a front, its band and its layouts; return the labels of its points."""
    front = line[0]
    for curve in front.curves:
        axes.plot(*_xy(curve), color=color, linewidth=0.8, alpha=0.35)
    [(usual_kv, _)] = Counter(point.option.candidate.engine.kv_format for point in front.points).most_common(1)
    same = ", ".join(each.weight_format for each in line[1:])
    names = front.weight_format + (f" (alike: {same})" if same else "")
    user, gpu = _xy(front.points)
    factors = np.array([point.option.uncertainty for point in front.points])
    axes.fill_between(user, gpu / factors, gpu * factors, color=color, alpha=0.08, linewidth=0)
    axes.plot(user, gpu, color=color, linewidth=2.4, label=f"{names}; KV {usual_kv}")
    _draw_points(axes, front.points, (user, gpu), color)
    main = _labelled(front.points)
    batches = [point for point in front.points[::3] if point not in main]
    return [
        *(Label(_place(point), _label(point, usual_kv), color) for point in main),
        *(Label(_place(point), f"{point.estimate.batch_size:.0f}", color, is_optional=True) for point in batches),
    ]


def _draw_points(
    axes: Axes, points: tuple[Point, ...], xy: tuple[NDArray[np.float64], NDArray[np.float64]], color: str
) -> None:
    """Draw points full where they meet the targets, else hollow."""
    missed = np.array([point.missed is not None for point in points])
    for is_missed in (False, True):
        some = missed == is_missed
        fill = "white" if is_missed else color
        axes.plot(xy[0][some], xy[1][some], "o", markersize=5, markeredgecolor=color, markerfacecolor=fill, zorder=3)


def _labelled(points: tuple[Point, ...]) -> list[Point]:
    """Return the points where a layout or KV format begins, from the largest batch on, and the last."""
    kinds = [(str(point.option.candidate.layout), point.option.candidate.engine.kv_format) for point in points]
    begins = [points[number] for number in range(1, len(points)) if kinds[number] != kinds[number - 1]]
    return [points[0], points[-1], *begins]


def _place(point: Point) -> tuple[float, float]:
    return point.user_tokens_per_s, point.gpu_tokens_per_s


def _label(point: Point, usual_kv: str) -> str:
    candidate = point.option.candidate
    kv = "" if candidate.engine.kv_format == usual_kv else f" kv-{candidate.engine.kv_format}"
    return f"{candidate.layout}{kv} · {point.estimate.batch_size:.0f}"


def _draw_ttft(axes: Axes, front: Front, color: str) -> None:
    user = np.array([point.user_tokens_per_s for point in front.points])
    ttft = np.array([point.estimate.ttft_ms for point in front.points])
    axes.plot(user, ttft, color=color, linewidth=1.4)
    _draw_points(axes, front.points, (user, ttft), color)


def _draw_first(axes: Axes, plan: Plan) -> None:
    """Mark the plan's first option at the load that was asked about."""
    best = plan.options[0]
    label = f"first of the plan: {best.candidate.name}, {best.num_gpus} GPU{'s' if best.num_gpus > 1 else ''}"
    axes.plot(1000 / best.estimate.tpot_ms, best.engine_tokens_per_s_per_gpu, "*", markersize=17, zorder=4,
              color="black", markeredgecolor="white", label=label)  # fmt: skip


def _finish(plan: Plan, lines: list[list[Front]], upper: Axes, lower: list[Axes], *, name: str) -> None:
    question, targets = plan.question, plan.question.targets
    upper.set(xscale="log", yscale="log")
    for axis in (upper.xaxis, upper.yaxis):
        _number(axis)
    upper.set_ylabel("tokens/s of one GPU")
    bottom = lower[-1] if lower else upper
    bottom.set_xlabel("tokens/s of one user (1 / TPOT)")
    for axes in (upper, *lower):
        axes.grid(which="both", alpha=0.2)
        if targets.tpot_ms:
            axes.axvline(1000 / targets.tpot_ms, color="black", linestyle="--", linewidth=1)
    if targets.tpot_ms:
        upper.annotate(f"TPOT {targets.tpot_ms:g} ms", (1000 / targets.tpot_ms, 0.02), rotation=90, fontsize=8,
                       xycoords=("data", "axes fraction"), xytext=(-9, 0), textcoords="offset points")  # fmt: skip
    least = min(line.points[-1].gpu_tokens_per_s for [line, *_] in lines)
    upper.set_ylim(bottom=least / 2)
    for axes in lower:
        axes.set_yscale("log")
        _number(axes.yaxis)
        axes.set_ylabel("TTFT, ms")
        assert targets.ttft_ms is not None
        axes.axhline(targets.ttft_ms, color="black", linestyle="--", linewidth=1)
        axes.set_ylim(top=max(axes.get_ylim()[1], 2 * targets.ttft_ms))
        axes.annotate(f"TTFT {targets.ttft_ms:g} ms", (0.995, targets.ttft_ms), fontsize=8, ha="right",
                      xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points")  # fmt: skip
    if targets.is_set:
        upper.plot([], [], "o", color="gray", markerfacecolor="white", label="misses a target")
    top = upper.secondary_xaxis("top", functions=(_inverse, _inverse))
    _number(top.xaxis)
    top.set_xlabel("TPOT, ms", fontsize=9)
    machines, workload = question.machines, question.workload
    by = " and ".join(sorted({option.estimator for option in plan.options}))
    upper.set_title(
        f"{name} on {'up to ' if machines.num_gpus > 1 else ''}{machines.num_gpus} x {machines.gpu.title}: "
        f"{workload.isl:,} tokens in, {workload.osl:,} out\npredicted by {by}, not measured; {load_in_words(question)}",
        fontsize=11,
    )
    upper.legend(fontsize=8, loc="lower left")
    upper.figure.supxlabel(
        "Thick: what no layout of a format beats in both; points are batches, labels are layout · batch of a "
        "replica, or the batch. Thin: the same layouts at all batches.\nShaded: 9 of 10 are expected within. "
        "What the engines make; the serving host is not in it.",
        fontsize=7.5, x=0.01, ha="left", color=_GRAY,
    )  # fmt: skip


def _inverse(values: ArrayLike) -> NDArray[np.float64]:
    """Return milliseconds of tokens a second, and the other way round."""
    return 1000 / np.maximum(np.asarray(values, dtype=float), 1e-9)


def _number(axis: Axis) -> None:
    """Write the ticks of a logarithmic axis as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
