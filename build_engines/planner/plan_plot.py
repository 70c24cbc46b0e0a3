# SPDX-License-Identifier: Apache-2.0
"""Throughput against latency, a line for each of the best options, from one client to a full batch.

The full line is what the table says: no more than the serving host streams. Where the engine makes more, the line is
dotted.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from build_engines.planner.ranking import Option, Plan
from build_engines.planner.roofline.serving_limit import ServingLimit
from trireme.base.errors import SpecError

_SAME = 0.02  # curves that are nowhere further apart are one line with one label


def write_plot(plan: Plan, path: Path) -> None:
    """Write a PNG, SVG or PDF, by the file's ending.

    Raises:
        SpecError: another ending, or the file cannot be written.
    """
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise SpecError(f"--plot {path}: name a .png, .svg or .pdf", field="plot", value=str(path))
    question = plan.question
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.add_subplot()
    groups = alike([option for option in plan.options if option.curve])
    capped_sizes = [group[0].candidate.layout.world_size for group in groups if _draw(axes, group, question.serving)]
    if question.targets.tpot_ms:
        axes.axvline(1000 / question.targets.tpot_ms, color="black", linestyle=":", label="TPOT target")
    axes.set_ylim(bottom=0)
    axes.autoscale(enable=False)  # the limit goes as far as the picture does
    for world_size in sorted(set(capped_sizes)):
        _draw_limit(axes, question.serving, world_size)
    axes.set_xlabel("tokens/s of one user (1 / TPOT)")
    axes.set_ylabel("tokens/s of one GPU that leave the serving host")
    machines = question.machines
    axes.set_title(f"{machines.gpu.title}, {question.workload.isl} tokens in, {question.workload.osl} out (predicted)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except OSError as exc:
        raise SpecError(f"--plot {path}: {exc.strerror}", field="plot", value=str(path)) from exc


def alike(options: list[Option]) -> list[list[Option]]:
    """Return groups of options of one layout and KV format with curves that cannot be told apart."""
    groups: list[list[Option]] = []
    for option in options:
        same = next((group for group in groups if _are_alike(group[0], option)), None)
        if same is None:
            groups.append([option])
        else:
            same.append(option)
    return groups


def _are_alike(one: Option, other: Option) -> bool:
    if (one.candidate.layout, one.candidate.engine.kv_format) != (
        other.candidate.layout,
        other.candidate.engine.kv_format,
    ):
        return False
    mine, theirs = _engine_points(one), _engine_points(other)
    return mine.shape == theirs.shape and bool(np.allclose(mine, theirs, rtol=_SAME, atol=0))


def label_of(group: list[Option]) -> str:
    """Return a group's label: the weight formats, then what they have in common."""
    formats = ", ".join(option.candidate.engine.formats.linear.name for option in group)
    return f"{formats} kv-{group[0].candidate.engine.kv_format} {group[0].candidate.layout}"


def _engine_points(option: Option) -> NDArray[np.float64]:
    """Return [2, points]: tokens/s of one user, growing, and of one GPU as the engine makes them."""
    points = sorted((1000 / one.tpot_ms, one.output_tokens_per_s) for one in option.curve)
    user, replica = np.array(points).T
    return np.stack([user, replica / option.candidate.layout.world_size])


def _limit(serving: ServingLimit, world_size: int, user: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most tokens/s of one GPU of a replica that leave the host, for each user's tokens/s."""
    return np.array([serving.tokens_per_s(1000 / each) / world_size for each in user])


def line_of(option: Option, serving: ServingLimit) -> NDArray[np.float64]:
    """Return [3, points] of tokens/s.

    The rows: one user's, growing; one GPU's as the engine makes them; what of a GPU's leaves the host.
    """
    user, engine = _engine_points(option)
    dense = np.union1d(user, np.linspace(user[0], user[-1], 400))  # the limit cuts the line between two points
    made = np.interp(dense, user, engine)
    return np.stack([dense, made, np.minimum(made, _limit(serving, option.candidate.layout.world_size, dense))])


def _draw(axes: Axes, group: list[Option], serving: ServingLimit) -> bool:
    """Draw one line; return True if the serving host binds anywhere on it."""
    user, made, served = line_of(group[0], serving)
    is_point = np.isin(user, _engine_points(group[0])[0])
    (line,) = axes.plot(user, served, label=label_of(group))
    axes.plot(user[is_point], served[is_point], "o", markersize=3, color=line.get_color())
    is_capped = served < made
    axes.plot(user, np.where(is_capped, made, np.nan), ":", linewidth=1, color=line.get_color())
    return bool(is_capped.any())


def _draw_limit(axes: Axes, serving: ServingLimit, world_size: int) -> None:
    low, high = axes.get_xlim()
    user = np.linspace(max(low, high / 1000), high, 400)
    of_each = f" for {world_size} GPUs" if world_size > 1 else ""
    label = f"serving host's limit: {serving.responses_per_s:,.0f} responses/s{of_each} (dotted: the engine alone)"
    dashes = (0, (6, 2 * world_size))
    axes.plot(user, _limit(serving, world_size, user), linestyle=dashes, linewidth=1, color="gray", label=label)
