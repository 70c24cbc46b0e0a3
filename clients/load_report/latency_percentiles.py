# SPDX-License-Identifier: Apache-2.0
"""The percentiles of latencies with their intervals: near requests are alike, so stretches of a run are drawn again."""

from collections.abc import Sequence

import msgspec
import numpy as np

from trireme.base.sample_statistics import Floats, Indices, bootstrap, interval

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
NAMES = ("mean", *(f"{percentile:g}" for percentile in PERCENTILES))
NUM_BLOCKS = 20
MIN_REQUESTS = 2 * NUM_BLOCKS  # below it no interval is stated
_NUM_RESAMPLES = 400
CONFIDENCE = 0.95


class Interval(msgspec.Struct, frozen=True):
    """The 95 % interval of a latency by the block bootstrap, or of a rate by its stretches (`rates`)."""

    low: float
    high: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of one latency, in milliseconds.

    Attributes:
        count: number of values, from `num_requests` requests.
        percentiles: by number: "50", "90", "95", "99"; linear between the nearest values.
        intervals: by name, for the mean and each percentile; none where there are fewer than 40 requests.
    """

    count: int
    num_requests: int
    mean: float
    stddev: float
    min: float
    max: float
    percentiles: dict[str, float]
    intervals: dict[str, Interval]


def spread_of(values_ms: Sequence[Sequence[float]], *, seed: int = 0) -> Spread | None:
    """Return the distribution of a latency; None: there is no value.

    Args:
        values_ms: the values of each request, in the order in which the requests were sent.
    """
    kept = [values for values in values_ms if values]
    if not kept:
        return None
    (mean, *percentiles), drawn = with_draws(kept, seed=seed)
    columns = dict(zip(NAMES, drawn.T, strict=True)) if len(kept) >= MIN_REQUESTS else {}
    pooled = np.concatenate(kept)
    return Spread(
        count=len(pooled),
        num_requests=len(kept),
        mean=float(mean),
        stddev=float(pooled.std()),
        min=float(pooled.min()),
        max=float(pooled.max()),
        percentiles={name: float(value) for name, value in zip(NAMES[1:], percentiles, strict=True)},
        intervals={name: interval_of(column) for name, column in columns.items()},
    )


def with_draws(values_ms: Sequence[Sequence[float]], *, seed: int) -> tuple[Floats, Floats]:
    """Return mean and percentiles in the order of `NAMES`, and their values in draws, ``[num_resamples, len(NAMES)]``.

    Args:
        values_ms: the values of each request, in order; every request has at least one.
    """
    # Not `block_bootstrap`: a million values that are sorted once take 3 s, and 7 s where each draw is pooled.
    pooled = np.concatenate(values_ms)
    order = np.argsort(pooled)
    values, num_blocks = pooled[order], min(NUM_BLOCKS, len(values_ms))
    of_request = np.arange(len(values_ms)) * num_blocks // len(values_ms)
    block_of = np.repeat(of_request, [len(each) for each in values_ms])[order]

    def of_draw(drawn: Indices) -> Floats:
        weights = np.bincount(drawn, minlength=num_blocks)[block_of]  # how often each value stands in the draw
        passed = np.cumsum(weights)
        ranks = np.array(PERCENTILES) / 100 * (passed[-1] - 1)
        below, above = (values[np.searchsorted(passed, end(ranks), side="right")] for end in (np.floor, np.ceil))
        return np.array([values @ weights / passed[-1], *(below + (above - below) * (ranks % 1))])

    def of_draws(chosen: Indices) -> Floats:
        return np.array([of_draw(drawn) for drawn in chosen])

    return of_draw(np.arange(num_blocks)), bootstrap(of_draws, num_blocks, num_resamples=_NUM_RESAMPLES, seed=seed)


def interval_of(figure_of_draws: Floats) -> Interval:
    """Return the 95 % interval of one figure, ``[num_resamples]``."""
    return Interval(*interval(figure_of_draws, confidence=CONFIDENCE))
