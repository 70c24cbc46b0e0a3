# SPDX-License-Identifier: Apache-2.0
"""Sequential test of a difference of means within strata; it holds however often one looks.

All arrays have any leading dimensions, so that one call judges one rollout or ten thousand.

The difference is the mean over strata and blocks of time of the arms' differences, each weighted by
n_c n_b / (n_c + n_b), as a regression on arm, stratum and block would. Its reciprocal variance, the information, is the
clock: information times difference goes as a Brownian motion with the true difference for its drift. What bounds that
motion at all times at once is the one-sided normal mixture of Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49(2), 2021, proposition 6. That the variance
may be estimated, and the means may drift for both arms, is from Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", Annals of Statistics 52(6), 2024. What the
variance is where requests near in time are alike: `clients.rollout_gate.statistics.fading`.

It is written here because the authors' `confseq` has no wheel (it takes a C++ compiler and Boost on every machine),
and the other packages with these bounds are first releases of one person.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import lambertw, log_ndtr, ndtri, stdtr, stdtrit

Floats = NDArray[np.float64]

# Of bounded figures: where fewer lie inside, they tell that there is a difference and not how large.
LEAST_SLOPE = 0.1
_MANY = 1e5  # degrees of freedom beyond which Student's t is the normal distribution
_LARGE, _OF_LARGE = 5.0, 0.1  # chosen in simulations (see docs/rollout_gate.md)
_TUNED_AT = 4.0  # standard errors of the effect: where the boundary is lowest, near where it is crossed


class Plain(NamedTuple):
    """A difference of means of whole figures, not bounded ones.

    Attributes:
        estimate: [...] candidate less baseline.
        information: [...] reciprocal of its variance if requests were independent; 0: nothing is known.
    """

    estimate: Floats
    information: Floats


def log_evidence(estimate: Floats, information: Floats, rho: float, freedom: Floats | None = None) -> Floats:
    """Return the [...] logarithm of the evidence that the true difference is more than 0.

    The normal mixture itself, 2 sqrt(rho / (v + rho)) e^(s^2 / (2 (v + rho))) Phi(s / sqrt(v + rho)), v the information
    and s = v times the estimate. It exceeds log(1 / alpha) at any time with a chance of at most alpha, where the
    difference is 0 or less. Source: Howard et al. 2021, proposition 6. A part of the evidence is of differences
    `_LARGE` times as large (the mean of two such processes is one): with little information, a mixture over small
    ones has no place for a large difference.

    Args:
        freedom: [...] degrees of freedom of the information, where few keys tell it; None: it is known.
    """
    of_small = np.log(1 - _OF_LARGE) + _of_size(estimate, information, rho, freedom)
    of_large = np.log(_OF_LARGE) + _of_size(estimate, information, rho / _LARGE**2, freedom)
    return np.asarray(np.logaddexp(of_small, of_large))


def _of_size(estimate: Floats, information: Floats, rho: float, freedom: Floats | None) -> Floats:
    whole = information + rho
    motion = information * estimate / np.sqrt(whole)
    if freedom is not None:
        motion = as_normal(motion, freedom)
    return np.asarray(np.log(2) + 0.5 * np.log(rho / whole) + motion**2 / 2 + log_ndtr(motion))


def as_normal(deviation: Floats, freedom: Floats) -> Floats:
    """Return the normal deviation that is as unlikely as a deviation of Student's t."""
    if np.all(freedom > _MANY):
        return deviation
    tail = stdtr(np.minimum(freedom, _MANY), -np.abs(deviation))
    return np.where(freedom > _MANY, deviation, np.sign(deviation) * -ndtri(np.maximum(tail, 1e-300)))


def student_quantile(share: float, freedom: Floats) -> Floats:
    """Return Student's t below which `share` lies."""
    return np.asarray(stdtrit(np.minimum(freedom, _MANY), share))


def tuning(effect: float, alpha: float) -> float:
    """Return the mixture's parameter for which the boundary is lowest where `effect` is 4 standard errors.

    rho = v / (-W(-4 alpha^2 / e) - 1), W the lower branch of Lambert's function, v = (4 / effect)^2.
    Source: Howard et al. 2021, section 3.5, with 2 alpha for alpha as the mixture is one-sided.
    """
    peak = (_TUNED_AT / effect) ** 2
    return float(peak / (-lambertw(-4 * alpha**2 / np.e, -1).real - 1))


def boundary(information: Floats, rho: float, alpha: float) -> Floats:
    """Return the [...] estimate that is exceeded at any time with a chance of at most `alpha` without a difference.

    u(v) = sqrt(2 (v + rho) log(1 + sqrt((v + rho) / rho) / (2 alpha))), over v. Source: Howard et al. 2021, the closed
    form that follows proposition 6. Endless where nothing is known.
    """
    known = np.where(information > 0, information, 1.0)
    whole = known + rho
    crossed = np.sqrt(2 * whole * np.log1p(np.sqrt(whole / rho) / (2 * alpha))) / known
    return np.where(information > 0, crossed, np.inf)
