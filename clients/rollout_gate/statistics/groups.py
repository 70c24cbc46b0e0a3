# SPDX-License-Identifier: Apache-2.0
"""The sums of a figure by group of requests: a candidate can be slow for one tenant alone, or for long prompts.

A group is a prompt's length, by doublings, or a tenant. Each request is in one group of each kind.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clients.rollout_gate.statistics.clusters import Clusters, Spread
from clients.rollout_gate.statistics.mean_test import LEAST_SLOPE, Floats
from clients.rollout_gate.statistics.rows import NO_GROUP, Rows, add_at

NUM_STRATA = 11
MAX_TENANTS = 16  # the first that are seen; of more, none has many requests
NUM_GROUPS = NUM_STRATA + MAX_TENANTS
_LEAST_CENTRE = 10  # requests
_CENTRE_GAIN = 2.0  # a centre's step for what bounded figures are beside it, over their number so far
_KEY_BUCKETS = 32  # keys beyond share one


class GroupDifferences(NamedTuple):
    """The difference of the arms in each group.

    Attributes:
        num: [..., groups, 2] requests of each arm.
        estimate: [..., groups] candidate less baseline; 0 where an arm has none.
        information: [..., groups] reciprocal of its variance if requests were independent.
        spread: over keys, [..., groups] each.
        change: [..., groups] the difference as people are told.
    """

    num: Floats
    estimate: Floats
    information: Floats
    spread: Spread
    change: Floats


class Groups:
    """The sums by group; arrays have any leading dimensions.

    Args:
        shape: leading dimensions.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        arms = (*shape, NUM_GROUPS, 2)
        self.num: Floats = np.zeros(arms)
        self.total: Floats = np.zeros(arms)
        self.squares: Floats = np.zeros(arms)
        self.inside: Floats = np.zeros(arms)  # requests with a figure that was not bounded
        self.left: Floats = np.zeros(arms)
        self.centre: Floats = np.zeros((*shape, NUM_GROUPS))
        self.clusters = Clusters((*shape, NUM_GROUPS), _KEY_BUCKETS)

    def add(self, rows: Rows, left: Floats, limit: Floats) -> None:
        """Add what the work leaves of the figures of requests.

        A group may be far from all others by itself, and is to be seen to move there: so its figures are bounded about
        a centre of its own, of both arms. The centre moves by the mean of bounded figures, so that a tail does not take
        it away (Robbins and Monro, "A stochastic approximation method", Annals of Mathematical Statistics 22(3), 1951).

        Args:
            left: [..., rows], nan for none.
            limit: [...] by which figures are bounded.
        """
        centre = self.centre
        before, moved = self.num.sum(axis=-1), self.total.sum(axis=-1)
        for kind in range(rows.groups.shape[-1]):
            group = rows.groups[..., kind]
            known = np.isfinite(left) & (group != NO_GROUP)
            if not known.any():
                continue
            shape = self.num.shape[:-2]
            first = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)[..., np.newaxis] * NUM_GROUPS
            about = np.take_along_axis(centre, np.where(known, group, 0), axis=-1)
            limits = limit[..., np.newaxis]
            figures = np.clip(left - about, -limits, limits)
            at = ((first + group) * 2 + ~rows.is_candidate)[known]
            add_at(self.num, at)
            add_at(self.total, at, figures[known])
            add_at(self.squares, at, figures[known] ** 2)
            add_at(self.inside, at, (np.abs(left - about) < limits)[known].astype(np.float64))
            add_at(self.left, at, left[known])
            self.clusters.add_at(first + group, rows, np.where(known, figures, np.nan))
        self._move_centres(before, self.total.sum(axis=-1) - moved)

    def _move_centres(self, before: Floats, moved: Floats) -> None:
        """Move each group's centre by what new figures are beside it.

        Args:
            before: [..., groups] number of requests without the new ones.
            moved: [..., groups] sum of the new bounded figures.
        """
        num = np.maximum(self.num.sum(axis=-1), 1.0)
        first = self.left.sum(axis=-1) / num  # of the first few, their mean
        stepped = self.centre + _CENTRE_GAIN * moved / num
        self.centre = np.where(before < _LEAST_CENTRE, np.where(num >= _LEAST_CENTRE, first, 0.0), stepped)

    def differences(self) -> GroupDifferences:
        """Return the difference in each group."""
        some = np.maximum(self.num, 1.0)
        mean = self.total / some
        freedom, m2 = np.maximum(self.num - 1, 0.0), np.maximum(self.squares - self.num * mean**2, 0.0)
        # As in `BlockSums`: what is seen there and one value more, of the variance over all.
        pooled = m2.sum(axis=(-2, -1), keepdims=True) / np.maximum(freedom.sum(axis=(-2, -1), keepdims=True), 1.0)
        variance = np.maximum((m2 + pooled) / (freedom + 1), 1e-12)
        has_both = self.num.min(axis=-1) > 0
        slope = np.maximum(self.inside.sum(axis=-1) / np.maximum(self.num.sum(axis=-1), 1.0), LEAST_SLOPE)
        estimate = np.where(has_both, (mean[..., 0] - mean[..., 1]) / slope, 0.0)
        information = np.where(has_both, slope**2 / (variance / some).sum(axis=-1), 0.0)
        return GroupDifferences(self.num, estimate, information, self.clusters.spread(variance, self.num), estimate)


def group_of(stratum: int, tenant: str, tenants: list[str]) -> tuple[int, int]:
    """Return a request's groups, and note a tenant that is new.

    Args:
        tenants: names of the tenants that are known, in the order of their groups.
    """
    if tenant and tenant not in tenants and len(tenants) < MAX_TENANTS:
        tenants.append(tenant)
    return stratum, NUM_STRATA + tenants.index(tenant) if tenant in tenants else NO_GROUP


def group_name(group: int, tenants: Sequence[str]) -> str:
    """Return a group as a report names it."""
    if group >= NUM_STRATA:
        number = group - NUM_STRATA
        return f"tenant {tenants[number]!r}" if number < len(tenants) else f"tenant {number}"
    if group == 0:
        return "prompts of fewer than 64 characters"
    first = 32 * 2**group
    if group == NUM_STRATA - 1:
        return f"prompts of {first:,} characters and more"
    return f"prompts of {first:,} to {2 * first - 1:,} characters"
