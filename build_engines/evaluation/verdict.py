# SPDX-License-Identifier: Apache-2.0
"""The figures of each task and group, computed from observations, and the verdict on them: the worst group decides.

A figure is held against the recipe's limit itself, not by a bound of its interval: a release does not pass because a
group is small, nor fail because it is. Where the limit lies within the interval, `is_certain` is false; more items
would tell.
"""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import msgspec
import numpy as np

from build_engines.evaluation.observations import Observation
from build_engines.recipes.recipe_parts import QualitySpec
from trireme.base.errors import SpecError
from trireme.base.sample_statistics import Floats, Indices, bootstrap, interval

_NUM_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Metric:
    """A kind of figure.

    Attributes:
        limit: the field of `QualitySpec` that bounds the figure; None: it is reported, and not judged.
        is_more_worse: whether a larger figure is a worse one.
        is_share: whether the figure is a share of items, so that an item is right or wrong.
        is_log: whether sums are of logarithms, and the figure is the exponential of their mean.
        compares: the names of its two sides, where it is a difference or a ratio.
    """

    title: str
    limit: str | None
    is_more_worse: bool = True
    is_share: bool = False
    is_log: bool = False
    compares: str | None = None


METRICS = {
    "perplexity_ratio": Metric(
        "perplexity over the base's", "perplexity_ratio_max", is_log=True, compares="perplexity"
    ),
    "kl": Metric("KL(base || release), nats a token", "kl_max"),
    "agreement": Metric("greedy tokens until the first difference", "agreement_min", is_more_worse=False),
    "exact_match": Metric("answers that are the base's", None, is_more_worse=False, is_share=True),
    "accuracy_drop": Metric("right answers lost", "accuracy_drop_max", is_share=True, compares="accuracy"),
}


class Figure(msgspec.Struct, frozen=True):
    """A figure of one group."""

    task: str
    group: str
    metric: str
    value: float
    num_items: int
    interval: tuple[float, float] | None = None  # None for a single item
    candidate: float | None = None
    baseline: float | None = None
    limit: float | None = None
    passed: bool | None = None  # None: there is no limit
    is_certain: bool | None = None  # the limit lies outside the interval


def figures_of(observations: Iterable[Observation], quality: QualitySpec, *, seed: int) -> list[Figure]:
    """Return a figure for each task, group and metric, in the order of their first observation.

    Raises:
        SpecError: the recipe limits something that no item measures.
    """
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for each in observations:
        groups.setdefault((each.task, each.group, each.metric), []).append(each)
    refuse_unmeasured({metric for _, _, metric in groups}, quality)
    return [_figure(where, each, quality, seed) for where, each in groups.items()]


def _figure(where: tuple[str, str, str], found: Sequence[Observation], quality: QualitySpec, seed: int) -> Figure:
    task, group, name = where
    metric = METRICS[name]
    amounts = np.array([each.amount for each in found], dtype=np.float64)
    weights = np.array([each.weight for each in found], dtype=np.float64)
    value = _unlog(metric, float(ratio_of_sums(amounts, weights)))
    between = _interval(metric, amounts, weights, seed)
    sides: list[float | None] = [None, None]
    if metric.compares is not None:
        columns = ([each.candidate or 0.0 for each in found], [each.baseline or 0.0 for each in found])
        sides = [_unlog(metric, float(ratio_of_sums(np.array(column), weights))) for column in columns]
    limit: float | None = getattr(quality, metric.limit) if metric.limit else None
    is_certain = None if limit is None or between is None else not between[0] <= limit <= between[1]
    return Figure(
        task=task,
        group=group,
        metric=name,
        value=value,
        num_items=len(found),
        interval=between,
        candidate=sides[0],
        baseline=sides[1],
        limit=limit,
        passed=None if limit is None else excess(metric, value, limit) <= 0,
        is_certain=is_certain,
    )


def ratio_of_sums(amounts: Floats, weights: Floats) -> Floats:
    """Return sum(amounts) / sum(weights) over the last axis: a mean per token, or a share where the weights are 1."""
    return np.asarray(amounts.sum(axis=-1) / weights.sum(axis=-1))


def interval_of_ratio(amounts: Floats, weights: Floats, *, seed: int) -> tuple[float, float]:
    """Return the middle 95 % of the ratio over resamples of the items; an item's two sides are drawn together."""

    def ratio(chosen: Indices) -> Floats:
        return ratio_of_sums(amounts[chosen], weights[chosen])

    resampled = bootstrap(ratio, len(amounts), num_resamples=_NUM_RESAMPLES, seed=seed)
    return interval(resampled, confidence=_CONFIDENCE)


def unseen_share(num_items: int) -> float:
    """Return the largest share of something that was seen in none of `num_items`: (1 - p)^n = 0.025.

    Resampling cannot tell: where no item differs, no resample does.
    """
    return float(1.0 - ((1 - _CONFIDENCE) / 2) ** (1 / num_items))


def _unlog(metric: Metric, value: float) -> float:
    return math.exp(value) if metric.is_log else value


def _interval(metric: Metric, amounts: Floats, weights: Floats, seed: int) -> tuple[float, float] | None:
    if len(amounts) < 2:
        return None
    if metric.is_share and np.ptp(amounts) == 0:
        # No item differs, which resampling takes for certain: widen by what may have been missed.
        value, missed = float(amounts[0]), unseen_share(len(amounts))
        lowest = 0.0 if metric.compares is None else -1.0
        return max(lowest, value - missed), min(1.0, value + missed)
    low, high = interval_of_ratio(amounts, weights, seed=seed)
    return _unlog(metric, low), _unlog(metric, high)


def excess(metric: Metric, value: float, limit: float) -> float:
    """Return how far a value is on the wrong side of a limit; at most 0: within. Rounding errors are forgiven."""
    difference = value - limit if metric.is_more_worse else limit - value
    return 0.0 if abs(difference) < 1e-9 else difference


def worst_of(figures: Iterable[Figure]) -> dict[str, Figure]:
    """Return the deciding figure of each metric."""
    worst: dict[str, Figure] = {}
    for figure in figures:
        known = worst.get(figure.metric)
        if known is None or excess(METRICS[figure.metric], figure.value, known.value) > 0:
            worst[figure.metric] = figure
    return worst


def verdict_of(figures: Iterable[Figure]) -> bool | None:
    """Return whether every figure that has a limit is within it; None: no figure has one."""
    judged = [figure.passed for figure in worst_of(figures).values() if figure.passed is not None]
    return all(judged) if judged else None


def refuse_unmeasured(measured: Set[str], quality: QualitySpec) -> None:
    """Refuse a verdict that would say nothing about one of its limits.

    Raises:
        SpecError: the recipe limits something that is not among the `measured` metrics.
    """
    for name, metric in METRICS.items():
        if metric.limit and getattr(quality, metric.limit) is not None and name not in measured:
            kinds = "text, and an engine that gives logits" if name in ("perplexity_ratio", "kl") else "exact or needle"
            raise SpecError(
                f"the recipe has {metric.limit}, and nothing was found about it: it takes items of kind {kinds}; name "
                "other --tasks, or leave the limit out",
                field=metric.limit,
            )
