# SPDX-License-Identifier: Apache-2.0
"""The sums of figures of requests by arm, by block of time and by key; nothing is known here of what the figures are.

One object holds one rollout, or thousands that are simulated side by side: arrays have any leading dimensions, and
blocks end for all of them at once.
"""

from dataclasses import dataclass

import numpy as np

from clients.rollout_gate.statistics.clusters import Clusters, Spread
from clients.rollout_gate.statistics.fading import Differences
from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import Rows, by_arm
from clients.rollout_gate.sums.block_list import Block, BlockList

_LEAST_FREEDOM = 20  # of each arm: a variance from less is none


@dataclass
class OpenBlock:
    """The sums over the open block's requests, by arm: [..., 2], work [..., 2, features]."""

    num: Floats
    total: Floats
    squares: Floats
    predicted: Floats
    work: Floats

    @classmethod
    def empty(cls, shape: tuple[int, ...], num_features: int) -> "OpenBlock":
        """Return the sums of no requests. Args: `shape`: leading dimensions."""
        num, total, squares, predicted = (np.zeros((*shape, 2)) for _ in range(4))
        return cls(num, total, squares, predicted, np.zeros((*shape, 2, num_features)))


class BlockSums:
    """The sums of one figure.

    Args:
        shape: leading dimensions.
        num_features: number of features of the work.
    """

    def __init__(self, shape: tuple[int, ...] = (), num_features: int = 0) -> None:
        self._shape, self._num_features = shape, num_features
        self.clusters = Clusters(shape)
        self.blocks = BlockList()
        self.open = OpenBlock.empty(shape, num_features)
        arms = (*shape, 2)
        self.num: Floats = np.zeros(arms)  # of all requests, with those of the open block
        self.freedom: Floats = np.zeros(arms)  # of closed blocks: requests less one of each block
        self.within: Floats = np.zeros(arms)  # squared distances from a block's own mean
        self.in_variance: Floats = np.zeros(arms)  # weight of a request's variance in that of the weighted sum

    def add(self, rows: Rows, figures: Floats, predicted: Floats | None = None) -> None:
        """Add figures of requests to the open block: [..., rows], nan for none.

        Args:
            predicted: [..., rows] what the work explained and the figures have lost; None: nothing.
        """
        known = np.isfinite(figures)
        self.open.num += (num := by_arm(rows, np.where(known, 1.0, np.nan)))
        self.open.total += by_arm(rows, figures)
        self.open.squares += by_arm(rows, figures**2)
        if predicted is not None:
            self.open.predicted += by_arm(rows, np.where(known, predicted, np.nan))
            for feature in range(self._num_features):
                self.open.work[..., feature] += by_arm(rows, np.where(known, rows.work[..., feature], np.nan))
        self.num += num
        self.clusters.add(rows, figures)

    def close(self) -> None:
        """Close the open block, and begin the next one."""
        found = self.open
        num = np.maximum(found.num, 1.0)
        mean, predicted, work = found.total / num, found.predicted / num, found.work / num[..., np.newaxis]
        weight = found.num.prod(axis=-1) / np.maximum(found.num.sum(axis=-1), 1.0)
        differences = (each[..., 0] - each[..., 1] for each in (mean, predicted))
        difference, of_prediction = differences
        self.blocks.add(Block(difference, weight, of_prediction, work[..., 0, :] - work[..., 1, :]))
        self.freedom += np.maximum(found.num - 1, 0.0)
        self.within += np.maximum(found.squares - found.num * mean**2, 0.0)
        self.in_variance += weight[..., np.newaxis] ** 2 / num
        self.open = OpenBlock.empty(self._shape, self._num_features)

    def differences(self, coefficients: Floats | None = None, slope: Floats | None = None) -> Differences:
        """Return the arms' difference over the closed blocks, and what they say of correlation in time.

        Args:
            coefficients: [..., 1 + features + 1] of the work, as they are known now; None: no work was taken out.
            slope: [...] by how much a mean moves when all figures move by 1; None: by 1.
        """
        if not (self.blocks.blocks or self.blocks.open):
            nothing, no_scales = np.zeros(self._shape), np.zeros((*self._shape, 0))
            return Differences(nothing, nothing, no_scales, no_scales)
        slope = np.ones(self._shape) if slope is None else slope
        difference, weight = self.blocks.differences(coefficients, slope)
        whole = weight.sum(axis=-1)
        some = np.where(whole > 0, whole, 1.0)
        # The variance of an arm is what is seen there and one value more, of the variance over both.
        pooled = (self.within.sum(axis=-1) / np.maximum(self.freedom.sum(axis=-1), 1.0))[..., np.newaxis]
        own = (self.in_variance * (self.within + pooled) / (self.freedom + 1)).sum(axis=-1)
        # Values that are alike to the last bit are no proof that all are: a floor keeps the information finite.
        own = np.maximum(own, 1e-12 * np.maximum(whole, 1.0) ** 2)
        is_known = self.freedom.min(axis=-1) >= _LEAST_FREEDOM
        pairs = self.blocks.pairs(difference, weight)
        return Differences(
            (difference * weight).sum(axis=-1) / some / slope,
            np.where(is_known, whole**2 / own * slope**2, 0.0),
            pairs.num,
            pairs.squares * (whole / own)[..., np.newaxis],
        )

    def spread(self) -> Spread:
        """Return the spread of the difference over keys."""
        return self.clusters.spread(self.within / np.maximum(self.freedom, 1.0), self.num)
