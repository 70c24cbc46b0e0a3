# SPDX-License-Identifier: Apache-2.0
"""The likelihood of what requests of one arm have in common for a while, such as a queue of its own.

All arrays have any leading dimensions. The model: beside each request's own chance, a block's difference of the arms
has a fluctuation that fades as e^-(t / fade_s) (Ornstein and Uhlenbeck). Its size is the excess: by how many times the
long-run variance of the mean exceeds that of independent requests, less one. The data tell little of it: in a time of
a dozen fades, an excess of one or two is hardly seen, and one of twenty is. So no single estimate is taken; each size
on a grid has the posterior weight that the blocks (`clients.rollout_gate.sums.block_list`) give it, and evidence is
averaged over them, as Student's t averages over what the variance may be.
"""

from typing import NamedTuple

import numpy as np

from clients.rollout_gate.statistics.mean_test import Floats

EXCESSES: Floats = np.concatenate([[0.0], 1.25 * 2.0 ** np.arange(15)])
_SMALL = 4  # sizes of `EXCESSES` after none that the data can hardly tell from none


def _prior(none: float, small: float) -> Floats:
    """Return a weight for each of `EXCESSES`: none, the small ones together, and what is left for the large ones."""
    num_large = EXCESSES.size - 1 - _SMALL
    return np.repeat([none, small / _SMALL, (1 - none - small) / num_large], [1, _SMALL, num_large])


# Chosen in simulations (see docs/rollout_gate.md). More weight for the small sizes takes more requests to prove
# anything, for they look like none; more for the large ones takes few, for blocks soon show whether there is one. Of
# rare events that a queue only makes likelier no excess is likelier, as the chance of each is its own.
PRIOR_OF_MEANS, PRIOR_OF_SHARES = _prior(0.85, 0.003), _prior(0.99, 0.0027)
BLOCKS_PER_FADE = 8
FADES = 9  # until as much may be concluded as `alpha` allows
_LATE_POWER, _EVENLY = 6.0, 0.05
MIN_BLOCKS = 8  # with fewer, the grid's weights are its prior's


class Times(NamedTuple):
    """The [...] seconds since the first request, and the number of closed blocks."""

    elapsed_s: Floats
    num_blocks: Floats


class Differences(NamedTuple):
    """The differences of one metric, from its blocks.

    Attributes:
        estimate: [...] candidate less baseline; 0 where no block tells of both.
        information: [...] reciprocal of its variance if requests were independent; 0: nothing is known.
        num_pairs: [..., scales] of neighbouring blocks.
        squares: [..., scales] sum of the squares of what they differ by, over what it is for independent requests.
        change: [...] the difference as people are told; None: the estimate.
    """

    estimate: Floats
    information: Floats
    num_pairs: Floats
    squares: Floats
    change: Floats | None = None


def sizes(differences: Differences, times: Times, fade_s: float, prior: Floats) -> Floats:
    """Return the posterior weight of each of `EXCESSES`: [..., excesses].

    The squares at each scale are taken for sums of those of normal variables that are independent of each other.

    Args:
        prior: [excesses] weight before any data.
    """
    expected = squares_expected(times, fade_s, differences.squares.shape[-1])
    found = np.log(prior) - 0.5 * (
        np.einsum("...j,...jk->...k", differences.squares, 1 / expected)
        + np.einsum("...j,...jk->...k", differences.num_pairs, np.log(expected))
    )
    found = np.exp(found - found.max(axis=-1, keepdims=True))
    return np.asarray(found / found.sum(axis=-1, keepdims=True))


def squares_expected(times: Times, fade_s: float, num_scales: int) -> Floats:
    """Return the expected square at each scale, over that of independent requests: [..., scales, excesses].

    1 + excess x (g(x) - g(2 x)), x the length of its blocks in fades, g the variance of a fluctuation's mean over it.
    """
    length = (_block_s(times, fade_s) / fade_s)[..., np.newaxis] * np.exp2(np.arange(num_scales, dtype=np.float64))
    grown = length * (_mean_variance(length) - _mean_variance(2 * length))
    return np.asarray(1 + grown[..., np.newaxis] * EXCESSES)


def inflations(times: Times, fade_s: float) -> Floats:
    """Return by how much the variance of the mean over all blocks grows, by excess: [..., excesses].

    1 + excess x g(x) / 2, x the whole time in fades; of a long one 1 + excess.
    """
    length = times.num_blocks * _block_s(times, fade_s) / fade_s
    return np.asarray(1 + (length * _mean_variance(length) / 2)[..., np.newaxis] * EXCESSES)


def _block_s(times: Times, fade_s: float) -> Floats:
    is_known = (times.num_blocks > 1) & (times.elapsed_s > 0)
    found = times.elapsed_s / np.maximum(times.num_blocks - 1, 1)
    return np.where(is_known, found, fade_s / BLOCKS_PER_FADE)


def _mean_variance(length: Floats) -> Floats:
    """Return the variance of a fluctuation's mean over `length` fades: 2 (x - 1 + e^-x) / x^2.

    The fluctuation itself has variance 1.
    """
    safe = np.maximum(length, 1e-3)
    return np.asarray(2 * (safe + np.expm1(-safe)) / safe**2)


def chance(weights: Floats, log_evidence: Floats) -> Floats:
    """Return the chance that explains the evidence: [..., excesses] to [...].

    It is the mean over sizes of 1 / evidence, at most 1 of each.

    Each 1 / evidence is a p-value that holds at all times for its size; their mean over the posterior is the posterior
    predictive p-value of Meng, Annals of Statistics 22(3), 1994.
    """
    return np.asarray((weights * np.exp(-np.maximum(log_evidence, 0.0))).sum(axis=-1))


def allowed(alpha: float, times: Times, fade_s: float) -> Floats:
    """Return the [...] limit of `chance`: all of `alpha` after 9 fades, before that less.

    In a time of a few fades, one fluctuation and a regression look the same. So most is spent late, by the sixth power
    of the share of the time that has passed; a twentieth is spent evenly, for what is many times as slow. Source of
    spending over time: Lan and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70(3), 1983.
    """
    passed = np.minimum(1.0, times.elapsed_s / (FADES * fade_s))
    return np.asarray(alpha * (_EVENLY * passed + (1 - _EVENLY) * passed**_LATE_POWER))
