# SPDX-License-Identifier: Apache-2.0
"""The spread of a mean over keys: where a split goes by key, keys are what chance has given to the arms, not requests.

The variance of a mean over keys is the sum over keys of the square of what each key's requests add to it (Liang and
Zeger, "Longitudinal data analysis using generalized linear models", Biometrika 73(1), 1986), with n / (n - 1) for n
keys. With few keys it is itself uncertain, as Student's t allows for; a few large keys count as few (Kish, "Survey
Sampling", 1965: the square of the sum of sizes over the sum of squares, here of squares of sizes).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import NUM_UNIT_BUCKETS, Rows, add_at


class Spread(NamedTuple):
    """The spread over keys of a difference of two arms' means.

    Attributes:
        inflation: [...] its variance over that of independent requests, 1 at least.
        freedom: [...] degrees of freedom of that.
    """

    inflation: Floats
    freedom: Floats


class Clusters:
    """The sums of a figure by key and arm: [..., buckets, 2].

    Args:
        shape: leading dimensions.
        num_buckets: keys beyond share a bucket.
    """

    def __init__(self, shape: tuple[int, ...], num_buckets: int = NUM_UNIT_BUCKETS) -> None:
        self.num: Floats = np.zeros((*shape, num_buckets, 2))
        self.total: Floats = np.zeros((*shape, num_buckets, 2))

    def add(self, rows: Rows, figures: Floats) -> None:
        """Add figures of rows that have a key: [..., rows], nan for none."""
        shape = self.num.shape[:-2]
        self.add_at(np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)[..., np.newaxis], rows, figures)

    def add_at(self, place: NDArray[np.int64], rows: Rows, figures: Floats) -> None:
        """Add figures of rows that have a key, each to the sums at one place.

        Args:
            place: [..., rows] index into the leading dimensions, as if these were one.
        """
        known = np.isfinite(figures) & (rows.unit >= 0)
        if not known.any():
            return
        num_buckets = self.num.shape[-2]
        at = ((place * num_buckets + rows.unit % num_buckets) * 2 + ~rows.is_candidate)[known]
        add_at(self.num, at)
        add_at(self.total, at, figures[known])

    def spread(self, variance: Floats, num: Floats) -> Spread:
        """Return the spread over keys; a request without a key is a key of its own.

        Args:
            variance: [..., 2] of a single request's figure, by arm.
            num: [..., 2] number of all requests, with those that have no key.
        """
        if not self.num.any():
            ones = np.ones(self.num.shape[:-2])
            return Spread(ones, ones * np.inf)
        keyed, some = self.num.sum(axis=-2), np.maximum(num, 1.0)
        alone = num - keyed
        mean = self.total.sum(axis=-2) / np.maximum(keyed, 1.0)
        left = self.total - self.num * mean[..., np.newaxis, :]
        num_keys = (self.num > 0).sum(axis=-2) + alone
        squares = (left**2).sum(axis=-2) * num_keys / np.maximum(num_keys - 1, 1.0) + alone * variance
        clustered, independent = (squares / some**2).sum(axis=-1), (variance / some).sum(axis=-1)
        inflation = np.maximum(clustered / np.maximum(independent, 1e-12), 1.0)
        is_keyed = keyed.sum(axis=-1) > 0
        # One key says nothing of how keys differ.
        inflation = np.where(is_keyed & (num_keys.min(axis=-1) < 2), np.inf, np.where(is_keyed, inflation, 1.0))
        sizes = self.num**2
        effective = (sizes.sum(axis=-2) + alone) ** 2 / np.maximum((sizes**2).sum(axis=-2) + alone, 1.0)
        freedom = np.where(is_keyed, np.maximum(effective.min(axis=-1) - 1, 1.0), np.inf)
        return Spread(inflation, freedom)
