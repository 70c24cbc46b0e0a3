# SPDX-License-Identifier: Apache-2.0
"""Throughput against latency, a line for each of the best options, from one client to a full batch."""

from pathlib import Path

from matplotlib.figure import Figure

from build_engines.planner.plan import Plan
from ensemble_configs.errors import SpecError


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
    for option in plan.options:
        if not option.curve:
            continue
        world_size = option.candidate.layout.world_size
        axes.plot(
            [1000 / one.tpot_ms for one in option.curve],
            [one.output_tokens_per_s / world_size for one in option.curve],
            marker="o",
            markersize=3,
            label=option.candidate.name,
        )
    if question.targets.tpot_ms is not None:
        axes.axvline(1000 / question.targets.tpot_ms, color="black", linestyle=":", label="TPOT target")
    axes.set_xlabel("tokens/s of one user (1 / TPOT)")
    axes.set_ylabel("tokens/s of one GPU")
    axes.set_ylim(bottom=0)
    machines = question.machines
    axes.set_title(f"{machines.gpu.title}, {question.workload.isl} tokens in, {question.workload.osl} out (predicted)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except OSError as exc:
        raise SpecError(f"--plot {path}: {exc.strerror}", field="plot", value=str(path)) from exc
