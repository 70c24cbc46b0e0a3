# SPDX-License-Identifier: Apache-2.0
"""The requests of a portion by column, as one metric sees them: one rollout's, or those of thousands at once."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.rollout_gate.statistics.mean_test import Floats

NUM_UNIT_BUCKETS = 256  # keys beyond share a bucket, which counts as one key: never too few are taken for too many
NO_UNIT = -1
NO_GROUP = -1


class Rows(NamedTuple):
    """The requests of a portion; arrays have any leading dimensions.

    Attributes:
        value: [..., rows] the metric's figure; nan: the request says nothing about it.
        work: [..., rows, features] what is taken out of the figure.
        is_candidate: [..., rows] of the candidate's arm.
        unit: [..., rows] bucket of the request's key; `NO_UNIT`: it had none.
        groups: [..., rows, kinds] group of each kind (`clients.rollout_gate.statistics.groups`); `NO_GROUP`: none.
    """

    value: Floats
    work: Floats
    is_candidate: NDArray[np.bool_]
    unit: NDArray[np.int64]
    groups: NDArray[np.int64]

    @property
    def num(self) -> int:
        """Return the number of rows, with those that say nothing."""
        return int(self.value.shape[-1])


def unit_bucket(unit: str) -> int:
    """Return the bucket of a key's pseudonym; `NO_UNIT` of ""."""
    return zlib.crc32(unit.encode()) % NUM_UNIT_BUCKETS if unit else NO_UNIT


def joined(portions: Sequence[Rows]) -> Rows:
    """Return the rows of several portions as one."""
    return Rows(
        np.concatenate([each.value for each in portions], axis=-1),
        np.concatenate([each.work for each in portions], axis=-2),
        np.concatenate([each.is_candidate for each in portions], axis=-1),
        np.concatenate([each.unit for each in portions], axis=-1),
        np.concatenate([each.groups for each in portions], axis=-2),
    )


def add_at(sums: Floats, at: NDArray[np.int64], weights: Floats | None = None) -> None:
    """Add weights, or 1 each, to the sums at places: [n], of the sums as if these had one dimension."""
    np.add.at(sums.reshape(-1), at, 1.0 if weights is None else weights)  # a view: the sums are contiguous


def by_arm(rows: Rows, weights: Floats | None = None) -> Floats:
    """Return sums over each arm's rows: [..., 2], the candidate's first.

    Args:
        weights: [..., rows] what is summed, nan for nothing; None: rows with a value are counted.
    """
    known = np.isfinite(rows.value) if weights is None else np.isfinite(weights)
    summed = known.astype(np.float64) if weights is None else np.where(known, weights, 0.0)
    candidate = (summed * rows.is_candidate).sum(axis=-1)
    return np.stack([candidate, summed.sum(axis=-1) - candidate], axis=-1)
