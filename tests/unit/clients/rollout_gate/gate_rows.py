# SPDX-License-Identifier: Apache-2.0
"""Rows for tests of the gate's sums, made of plain lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import NO_GROUP, NO_UNIT, Rows


def rows_of(
    values: Sequence[float] | Floats,
    is_candidate: Sequence[bool] | NDArray[np.bool_],
    *,
    work: Floats | None = None,
    unit: Sequence[int] | NDArray[Any] | None = None,
    group: Sequence[int] | NDArray[Any] | None = None,
) -> Rows:
    """Return rows without leading dimensions. Args: `work`: [rows, features]; `unit`, `group`: None for none of any."""
    value = np.asarray(values, float)
    groups = np.full(value.size, NO_GROUP) if group is None else np.asarray(group)
    return Rows(
        value,
        np.zeros((value.size, 0)) if work is None else work,
        np.asarray(is_candidate, bool),
        np.full(value.size, NO_UNIT) if unit is None else np.asarray(unit),
        groups[:, np.newaxis],
    )
