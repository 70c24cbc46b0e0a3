# SPDX-License-Identifier: Apache-2.0
"""Sequential test of a difference of means within strata; it holds however often one looks.

All arrays have any leading dimensions, so that one call judges one rollout or ten thousand.

The difference is the mean over strata of the arms' differences, each weighted by n_c n_b / (n_c + n_b), as a
regression on arm and stratum would. Its reciprocal variance, the information, is the clock: information times
difference goes as a Brownian motion with the true difference for its drift. What bounds that motion at all times at
once is the one-sided normal mixture of Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric,
nonasymptotic confidence sequences", Annals of Statistics 49(2), 2021, proposition 6. That the variance
may be estimated, and the means may drift for both arms, is from Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", Annals of Statistics 52(6), 2024.

It is written here because the authors' `confseq` has no wheel (it takes a C++ compiler and Boost on every machine),
and the other packages with these bounds are first releases of one person.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import lambertw

Floats = NDArray[np.float64]

_TUNED_AT = 4.0  # standard errors of the effect: where the boundary is lowest, near where it is crossed


class Moments(NamedTuple):
    """Of one arm.

    Attributes:
        num: [..., strata] values seen.
        mean: [..., strata]; of no value: anything finite.
        m2: [..., strata] sum of squared distances from the mean.
    """

    num: Floats
    mean: Floats
    m2: Floats


class Difference(NamedTuple):
    """Candidate less baseline.

    Attributes:
        estimate: [...]; 0 where no stratum tells of both arms.
        information: [...] reciprocal of its variance; 0: nothing is known.
    """

    estimate: Floats
    information: Floats


def difference_of_means(candidate: Moments, baseline: Moments) -> Difference:
    """Within strata that have two values of each arm; others say nothing about the spread."""
    is_known = (candidate.num >= 2) & (baseline.num >= 2)
    num_c, num_b = np.where(is_known, candidate.num, 2.0), np.where(is_known, baseline.num, 2.0)
    weight = np.where(is_known, num_c * num_b / (num_c + num_b), 0.0)
    total = weight.sum(axis=-1, keepdims=True)
    weight = weight / np.where(total > 0, total, 1.0)
    estimate = (weight * np.where(is_known, candidate.mean - baseline.mean, 0.0)).sum(axis=-1)
    variance = candidate.m2 / (num_c - 1) / num_c + baseline.m2 / (num_b - 1) / num_b
    # Two values that are alike to the last bit are no proof that all are: a floor keeps the information finite.
    variance = np.maximum((weight**2 * variance).sum(axis=-1), 1e-12)
    return Difference(estimate, np.where(total[..., 0] > 0, 1.0 / variance, 0.0))


def tuning(effect: float, alpha: float) -> float:
    """The mixture's parameter for which the boundary is lowest where `effect` is 4 standard errors.

    rho = v / (-W(-4 alpha^2 / e) - 1), W the lower branch of Lambert's function, v = (4 / effect)^2.
    Source: Howard et al. 2021, section 3.5, with 2 alpha for alpha as the mixture is one-sided.
    """
    peak = (_TUNED_AT / effect) ** 2
    return float(peak / (-lambertw(-4 * alpha**2 / np.e, -1).real - 1))


def boundary(information: Floats, rho: float, alpha: float) -> Floats:
    """What the estimate exceeds at any time with a chance of at most `alpha` where there is no difference.

    u(v) = sqrt(2 (v + rho) log(1 + sqrt((v + rho) / rho) / (2 alpha))), over v. Source: Howard et al. 2021, the closed
    form that follows proposition 6. Endless where nothing is known.
    """
    known = np.where(information > 0, information, 1.0)
    whole = known + rho
    crossed = np.sqrt(2 * whole * np.log1p(np.sqrt(whole / rho) / (2 * alpha))) / known
    return np.where(information > 0, crossed, np.inf)
