# SPDX-License-Identifier: Apache-2.0
"""The sums of one metric that is a mean of logarithms: what the gate keeps of requests, instead of the requests.

Each request's figure loses what its work explains (`equal_work`) and is bounded (`bounded`); what is left is summed
(`block_sums`). What a figure is compared with is always made of requests before it, but for the first `FIRST_ROWS`,
which wait for one another.
"""

from typing import NamedTuple

import numpy as np

from clients.rollout_gate.statistics.clusters import Spread
from clients.rollout_gate.statistics.equal_work import EqualWork
from clients.rollout_gate.statistics.fading import Differences
from clients.rollout_gate.statistics.groups import GroupDifferences, Groups
from clients.rollout_gate.statistics.mean_test import LEAST_SLOPE, Floats, Plain
from clients.rollout_gate.statistics.rows import Rows, by_arm, joined
from clients.rollout_gate.sums.block_sums import BlockSums
from clients.rollout_gate.sums.bounded import Likes

FIRST_ROWS = 100
GROUP_BOUND = 2.0  # standard deviations
# Times the effect size: bounded figures of a candidate that is far off must differ by more than that. In a group both
# arms lie on either side of the centre.
LEAST_BOUND, LEAST_OF_GROUP = 2.0, 1.0


class Figures(NamedTuple):
    """The requests that were summed, and [..., rows] by how much each figure is over what its like have."""

    rows: Rows
    over: Floats


class MeanSums:
    """The sums of one metric; arrays have any leading dimensions.

    Args:
        shape: leading dimensions.
        num_features: number of features of the work.
        effect: by which a candidate is too much worse, as a logarithm.
        effect_of_group: the same for groups of requests that are looked at by themselves; None: none are.
        bound: of what is left of a figure, in standard deviations.
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        num_features: int = 0,
        *,
        effect: float = 0.0,
        effect_of_group: float | None = None,
        bound: float = 1.5,
    ) -> None:
        self.work = EqualWork(shape, num_features)
        self.likes = Likes(shape, bound, LEAST_BOUND * effect)
        self.sums = BlockSums(shape, num_features)
        self.groups = None if effect_of_group is None else Groups(shape)
        self._least_of_group = LEAST_OF_GROUP * (effect_of_group or 0.0)
        self.inside: Floats = np.zeros((*shape, 2))  # requests with a figure that was not bounded
        self.left: Floats = np.zeros((*shape, 2))  # of what the work leaves, without bounds
        self.left_squares: Floats = np.zeros((*shape, 2))
        self.total: Floats = np.zeros((*shape, 2))  # of the metric itself, for its level
        self.first: list[Rows] = []  # that wait
        self.is_fitted = False

    def add(self, rows: Rows) -> Figures | None:
        """Add requests to the open block; return those that were summed, None while the first ones wait."""
        if self.is_fitted:
            found = self._sum(rows)
            self.work.add(rows)
            self._note_likes(rows)
            return found
        if np.isfinite(rows.value).any():
            self.first.append(rows)
        if sum(np.isfinite(each.value).sum(axis=-1).min() for each in self.first) < FIRST_ROWS:
            return None
        rows, self.first, self.is_fitted = joined(self.first), [], True
        self.work.add(rows)
        self.work.fit()
        self._note_likes(rows)
        self.likes.fit()
        return self._sum(rows)

    def close(self) -> None:
        """Close the open block; the next one is compared with all requests so far."""
        if self.is_fitted:
            self.sums.close()
            self.work.fit()
            self.likes.fit()

    def _sum(self, rows: Rows) -> Figures:
        left = self.work.left(rows)
        bounded, is_inside = self.likes.bounded(left)
        self.sums.add(rows, bounded, rows.value - left)
        if self.groups is not None:
            limit = np.maximum(GROUP_BOUND * self.likes.scale, self._least_of_group)
            self.groups.add(rows, left - self.likes.centre[..., np.newaxis], limit)
        self.left += by_arm(rows, left)
        self.left_squares += by_arm(rows, left**2)
        self.total += by_arm(rows, rows.value)
        self.inside += by_arm(rows, np.where(np.isfinite(bounded), is_inside.astype(np.float64), np.nan))
        return Figures(rows, left - self.likes.centre[..., np.newaxis])

    def _note_likes(self, rows: Rows) -> None:
        own = self.work.coefficients[..., -1:] * rows.is_candidate
        self.likes.add(self.work.left(rows) - own)

    @property
    def slope(self) -> Floats:
        """Return by how much an arm's mean of bounded figures moves when all its figures move by 1: [...].

        Of the arm that moves less: a release of which more requests are beyond the bounds must not seem to be less
        worse for that.
        """
        inside = self.inside / np.maximum(self.sums.num, 1.0)
        return np.asarray(np.maximum(inside.min(axis=-1), LEAST_SLOPE))

    def plain(self) -> Plain:
        """Return the arms' difference at equal work without bounds."""
        num = np.maximum(self.sums.num, 1.0)
        means = self.left / num
        variance = np.maximum(self.left_squares / num - means**2, 1e-12)
        has_both = self.sums.num.min(axis=-1) > 1
        return Plain(means[..., 0] - means[..., 1], np.where(has_both, 1 / (variance / num).sum(axis=-1), 0.0))

    def differences(self) -> Differences:
        """Return the arms' difference at equal work over the closed blocks."""
        found = self.sums.differences(self.work.fitted(), self.slope)
        return found._replace(change=self.changed(found.estimate, self.left, self.sums.num))

    def changed(self, estimate: Floats, left: Floats, num: Floats) -> Floats:
        """Return the change that people are told.

        Of a change within the bounds, the estimate; of a larger one, bounded figures tell that there is one and not how
        large, and the plain means do.

        Args:
            estimate: [..., any] of bounded figures.
            left: [..., any, 2] sums over each arm of what the work leaves, without bounds.
            num: [..., any, 2] number of requests.
        """
        means = left / np.maximum(num, 1.0)
        plain = means[..., 0] - means[..., 1]
        half = self.likes.limit / 2
        half = half.reshape(half.shape + (1,) * (estimate.ndim - half.ndim))
        is_large = (np.abs(plain) > half) & (np.abs(estimate) > half) & (np.sign(plain) == np.sign(estimate))
        return np.where(is_large, plain, estimate)

    def in_groups(self) -> GroupDifferences | None:
        """Return the arms' difference in each group, where groups are looked at."""
        if self.groups is None:
            return None
        found = self.groups.differences()
        return found._replace(change=self.changed(found.estimate, self.groups.left, self.groups.num))

    def spread(self) -> Spread:
        """Return the spread of the difference over keys."""
        return self.sums.spread()
