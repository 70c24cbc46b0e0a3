# SPDX-License-Identifier: Apache-2.0
"""The spread of a mean over keys: where a split goes by key, keys are what chance has given to the arms, not requests.

The variance of a mean over keys is the sum over keys of the square of what each key's requests add to it (Liang and
Zeger, "Longitudinal data analysis using generalized linear models", Biometrika 73(1), 1986), with n / (n - 1) for n
keys. With few keys it is itself uncertain, as Student's t allows for; a few large keys count as few (Kish, "Survey
Sampling", 1965: the square of the sum of sizes over the sum of squares, here of squares of sizes).
"""

from typing import NamedTuple

import numpy as np

from clients.rollout_gate.mean_test import Floats
from clients.rollout_gate.rows import NUM_UNIT_BUCKETS, Rows


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
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.num: Floats = np.zeros((*shape, NUM_UNIT_BUCKETS, 2))
        self.total: Floats = np.zeros((*shape, NUM_UNIT_BUCKETS, 2))

    def add(self, rows: Rows, figures: Floats) -> None:
        """Add figures of rows that have a key: [..., rows], nan for none."""
        known = np.isfinite(figures) & (rows.unit >= 0)
        if not known.any():
            return
        shape = self.num.shape[:-2]
        first = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape) * NUM_UNIT_BUCKETS
        at = ((first[..., np.newaxis] + rows.unit) * 2 + ~rows.is_candidate)[known]
        for sums, weights in ((self.num, None), (self.total, figures[known])):
            sums += np.bincount(at, weights, sums.size).reshape(sums.shape)

    def spread(self, variance: Floats) -> Spread:
        """Return the spread over keys; without keys that of independent requests.

        Args:
            variance: [..., 2] of a single request's figure, by arm.
        """
        num = self.num.sum(axis=-2)
        some = np.maximum(num, 1.0)
        mean = self.total.sum(axis=-2) / some
        left = self.total - self.num * mean[..., np.newaxis, :]
        num_keys = (self.num > 0).sum(axis=-2).astype(np.float64)
        clustered = ((left**2).sum(axis=-2) * num_keys / np.maximum(num_keys - 1, 1.0) / some**2).sum(axis=-1)
        independent = (variance / some).sum(axis=-1)
        is_keyed = num.min(axis=-1) > 0
        inflation = np.where(is_keyed, clustered / np.maximum(independent, 1e-12), 1.0)
        squares = self.num**2
        effective = squares.sum(axis=-2) ** 2 / np.maximum((squares**2).sum(axis=-2), 1.0)
        freedom = np.where(is_keyed, np.maximum(effective.min(axis=-1) - 1, 1.0), np.inf)
        return Spread(np.maximum(inflation, 1.0), freedom)
