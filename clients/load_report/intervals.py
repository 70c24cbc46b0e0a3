# SPDX-License-Identifier: Apache-2.0
"""How sure a figure is: requests that are near in time are alike, so stretches of a run are drawn again."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
NUM_BLOCKS = 20
NUM_RESAMPLES = 400
_LEVEL = 0.95
MIN_REQUESTS = 2 * NUM_BLOCKS  # below it no interval is stated


class Interval(msgspec.Struct, frozen=True):
    """95 %: of a latency by the block bootstrap, of a rate by its stretches (`rates`)."""

    low: float
    high: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of one latency, in milliseconds.

    Attributes:
        count: values, of `num_requests` requests.
        percentiles: by number: "50", "90", "95", "99"; linear between the nearest values.
        intervals: of the mean and each percentile; none where there are fewer than 40 requests.
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
    """Args: `values_ms` of each request, in the order in which they were sent; None: there is no value."""
    kept = [values for values in values_ms if values]
    if not kept:
        return None
    blocks = Blocks(kept)
    pooled = blocks.values
    figures = blocks.figures(np.ones(blocks.count, dtype=np.int64))
    intervals = {}
    if len(kept) >= MIN_REQUESTS:
        low, high = bounds(blocks.resampled(seed))
        intervals = {
            name: Interval(float(one), float(other)) for name, one, other in zip(NAMES, low, high, strict=True)
        }
    return Spread(
        count=len(pooled),
        num_requests=len(kept),
        mean=float(figures[0]),
        stddev=float(np.std(pooled)),
        min=float(pooled[0]),
        max=float(pooled[-1]),
        percentiles={name: float(value) for name, value in zip(NAMES[1:], figures[1:], strict=True)},
        intervals=intervals,
    )


NAMES = ("mean", *(f"{percentile:g}" for percentile in PERCENTILES))


class Blocks:
    """Values of requests, sorted, each with the stretch of the run that it is of."""

    def __init__(self, values_ms: Sequence[Sequence[float]]) -> None:
        """Args: `values_ms` of each request in order; no request without any."""
        self.count = min(NUM_BLOCKS, len(values_ms))
        lengths = np.array([len(values) for values in values_ms])
        of_request = np.arange(len(values_ms)) * self.count // len(values_ms)
        pooled = np.concatenate([np.asarray(values, dtype=np.float64) for values in values_ms])
        order = np.argsort(pooled, kind="stable")
        self.values: Values = pooled[order]
        self._block: Counts = np.repeat(of_request, lengths)[order].astype(np.int64)

    def figures(self, weights: Counts) -> Values:
        """Mean and percentiles, as `NAMES`, where each block stands so often."""
        weight = weights[self._block]
        passed = np.cumsum(weight)
        total = passed[-1]
        mean = float(np.dot(self.values, weight) / total)
        # The k-th of so many values, repeated as they are, and linear between two: numpy's own definition.
        ranks = np.array(PERCENTILES) / 100 * (total - 1)
        below = self.values[np.searchsorted(passed, np.floor(ranks), side="right")]
        above = self.values[np.searchsorted(passed, np.ceil(ranks), side="right")]
        return np.array([mean, *(below + (above - below) * (ranks - np.floor(ranks)))])

    def resampled(self, seed: int) -> Values:
        """`figures` of so many draws of blocks, ``[NUM_RESAMPLES, len(NAMES)]``."""
        rng = np.random.default_rng(seed)
        even = np.full(self.count, 1 / self.count)
        return np.array([self.figures(rng.multinomial(self.count, even)) for _ in range(NUM_RESAMPLES)])


def bounds(resampled: Values) -> tuple[Values, Values]:
    """The 95 % percentile interval of each column."""
    tail = 100 * (1 - _LEVEL) / 2
    low, high = np.percentile(resampled, [tail, 100 - tail], axis=0)
    return low, high
