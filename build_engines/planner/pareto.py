# SPDX-License-Identifier: Apache-2.0
"""The points of throughput and of speed for one user that no other layout or batch beats in both."""

from collections.abc import Iterable
from dataclasses import dataclass

from build_engines.planner.estimators.estimator import Estimator
from build_engines.planner.option import Option, Plan
from build_engines.planner.ranking import curve_of
from build_engines.planner.roofline.steady_state import Estimate

_STEPS = (1, 1.5)  # batches of 1, 2, 3, 4, 6, 8, 12 ...: between powers of two alone a front has steps


@dataclass(frozen=True, eq=False)
class Point:
    """A batch of a layout: clients that each wait for their answer, as many as run at once."""

    option: Option
    estimate: Estimate
    missed: str | None  # the target that it misses

    @property
    def user_tokens_per_s(self) -> float:
        """Return the tokens/s that one user reads."""
        return 1000 / self.estimate.tpot_ms

    @property
    def gpu_tokens_per_s(self) -> float:
        """Return the tokens/s that each GPU makes."""
        return self.estimate.output_tokens_per_s / self.option.candidate.layout.world_size


@dataclass(frozen=True)
class Front:
    """A weight format's points that none of its own beats, the most throughput first, and the layouts they are of.

    The curve of a layout has all of its batches.
    """

    weight_format: str
    points: tuple[Point, ...]
    curves: tuple[tuple[Point, ...], ...]


def fronts(plan: Plan, estimators: list[Estimator]) -> tuple[Front, ...]:
    """Return the front of each weight format, in the plan's order.

    Formats are kept apart, for what a format loses in quality is on neither axis.
    """
    curves: dict[str, list[tuple[Point, ...]]] = {}
    missed_by = plan.question.targets.missed_by
    for option in plan.options:
        curve = curve_of(plan.question, option, estimators, steps=_STEPS)
        points = tuple(Point(option, estimate, missed_by(estimate)) for estimate in curve)
        curves.setdefault(option.weight_format, []).append(points)
    return tuple(_front(name, found) for name, found in curves.items())


def not_beaten(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other is at least as good as in both and better in one, most throughput first."""
    found: list[Point] = []
    for point in sorted(points, key=lambda one: (-one.gpu_tokens_per_s, -one.user_tokens_per_s)):
        if not found or point.user_tokens_per_s > found[-1].user_tokens_per_s:
            found.append(point)
    return found


def _front(name: str, curves: list[tuple[Point, ...]]) -> Front:
    points = not_beaten(point for curve in curves for point in curve)
    on_front = {point.option for point in points}
    return Front(name, tuple(points), tuple(curve for curve in curves if curve and curve[0].option in on_front))


def fronts_as_data(found: Iterable[Front]) -> list[dict[str, object]]:
    """Return the points of all fronts as data; `is_best_of_all_formats`: no point of any format beats it."""
    points = [point for front in found for point in front.points]
    best = set(not_beaten(points))
    return [
        {
            "weight_format": point.option.weight_format,
            "kv_format": point.option.candidate.engine.kv_format,
            "layout": str(point.option.candidate.layout),
            "batch_size": point.estimate.batch_size,
            "concurrency": point.estimate.batch_size * point.option.candidate.num_replicas,
            "num_replicas": point.option.candidate.num_replicas,
            "ttft_ms": point.estimate.ttft_ms,
            "tpot_ms": point.estimate.tpot_ms,
            "tokens_per_s_of_a_user": point.user_tokens_per_s,
            "tokens_per_s_of_a_gpu": point.gpu_tokens_per_s,
            "uncertainty_factor": point.option.uncertainty,
            "needs_16_bit_checkpoint": point.option.needs_16_bit_checkpoint,
            "missed": point.missed,
            "is_best_of_all_formats": point in best,
        }
        for point in points
    ]
