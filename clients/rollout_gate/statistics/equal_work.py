# SPDX-License-Identifier: Apache-2.0
"""The regression that takes a request's work out of a figure, so that the arms are compared at equal work.

The logarithm of the figure is a constant, the arm's own part, and a broken line in each feature of the work; least
squares over all requests so far, with a small penalty on slopes. The prediction for a request leaves the arm's part
out: it is one function of the work for both arms, made of requests before it, so that what is left of the figure has
equal expectations in both arms where the releases are equal, whatever is wrong with the function. Source: regression
adjustment, as in Deng, Xu, Kohavi and Walker, "Improving the sensitivity of online controlled experiments by utilizing
pre-experiment data", WSDM 2013; sequentially, Lindon, Ham, Tingley and Bojinov, "Anytime-valid linear models and
regression adjusted causal inference in randomized experiments", 2022.
"""

import numpy as np

from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import Rows

_SLOPE_PENALTY, _ARM_PENALTY, _LEVEL_PENALTY = 1.0, 1e-3, 1e-6


def broken_line(value: float, knots: tuple[float, ...]) -> tuple[float, ...]:
    """Return the features of a line in `value` that may bend at each knot."""
    return (value, *(max(value - knot, 0.0) for knot in knots))


def broken_lines(values: Floats, knots: tuple[float, ...]) -> list[Floats]:
    """Return `broken_line` of many values: a feature for each element of the list."""
    return [values, *(np.maximum(values - knot, 0.0) for knot in knots)]


def design_of(rows: Rows) -> Floats:
    """Return the regressors of each row: [..., rows, 1 + features + 1], a constant first and the arm last."""
    ones = np.ones((*rows.value.shape, 1))
    return np.concatenate([ones, rows.work, rows.is_candidate[..., np.newaxis].astype(np.float64)], axis=-1)


class EqualWork:
    """The sums of the regression, and the coefficients that hold until the next fit.

    Args:
        shape: leading dimensions.
        num_features: number of features of the work.
    """

    def __init__(self, shape: tuple[int, ...], num_features: int) -> None:
        size = num_features + 2
        self.gram: Floats = np.zeros((*shape, size, size))
        self.moment: Floats = np.zeros((*shape, size))
        self.coefficients: Floats = np.zeros((*shape, size))

    def add(self, rows: Rows) -> None:
        """Add rows to the sums; the coefficients stay."""
        known = np.isfinite(rows.value)
        design = np.where(known[..., np.newaxis], design_of(rows), 0.0)
        value = np.where(known, rows.value, 0.0)
        turned = design.swapaxes(-1, -2)
        self.gram += turned @ design
        self.moment += (turned @ value[..., np.newaxis])[..., 0]

    def fit(self) -> None:
        """Take the coefficients of all rows so far."""
        self.coefficients = self.fitted()

    def fitted(self) -> Floats:
        """Return the coefficients of all rows so far: [..., 1 + features + 1]."""
        size = self.moment.shape[-1]
        penalty = np.diag([_LEVEL_PENALTY, *[_SLOPE_PENALTY] * (size - 2), _ARM_PENALTY])
        return np.asarray(np.linalg.solve(self.gram + penalty, self.moment[..., np.newaxis])[..., 0])

    def left(self, rows: Rows) -> Floats:
        """Return what the work does not explain of each row's figure: [..., rows]."""
        design = design_of(rows)[..., :-1]
        return np.asarray(rows.value - (design @ self.coefficients[..., :-1, np.newaxis])[..., 0])
