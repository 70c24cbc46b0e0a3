# SPDX-License-Identifier: Apache-2.0
"""A sequential test of scores in [0, 1] that both arms got for one prompt; exact however often one looks.

It bets against "no worse", and against "worse by the effect size", a fixed share of its money on each pair, for many
shares at once: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", Journal of the Royal
Statistical Society B 86(1), 2024. What each bet has won is a sum over pairs, so nothing else is kept of them.
"""

import math

import numpy as np
from scipy.special import logsumexp

from clients.rollout_gate.statistics.mean_test import Floats

BETS: Floats = np.geomspace(0.02, 0.9, 20)  # shares of the money; the best is about the drop over its variance


def gains(difference: Floats, effect: float) -> tuple[Floats, Floats]:
    """Return the logarithms of what one pair wins for each bet.

    Args:
        difference: [...] candidate less baseline, in [-1, 1].
        effect: by which it may not be worse, in (0, 1).

    Returns:
        [..., bets] against "no worse", and [..., bets] against "worse by `effect` or more".
    """
    each = np.asarray(difference)[..., np.newaxis]
    return np.log1p(-BETS * each), np.log1p(BETS * (each + effect))


def log_evidence(won: Floats) -> Floats:
    """Return the logarithm of what the equal mixture of all bets has won; [..., bets] to [...]."""
    return np.asarray(logsumexp(won, axis=-1) - np.log(BETS.size))


def least_pairs(alpha: float) -> int:
    """Return the number of pairs below which nothing fails.

    It is the number that fails a candidate that scores 0 where the baseline scores 1.
    """
    won, _ = gains(np.array(-1.0), 0.5)  # the effect is for the other bets
    num = 1
    while log_evidence(num * won) < math.log(1 / alpha):
        num += 1
    return num
