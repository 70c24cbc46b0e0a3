# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of ratios of sums, by a seeded bootstrap over items.

Each item has an amount and a weight; the figure is sum(amounts) / sum(weights): a mean per token where the weights are
numbers of tokens, a share where they are 1. What is compared between two models is within each item's amount, so the
resampling is paired.
"""

import math

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
_CHUNK = 250  # resamples at once; bounds memory


def ratio_of_sums(amounts: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """sum(amounts) / sum(weights)."""
    return float(amounts.sum() / weights.sum())


def bootstrap_interval(
    amounts: NDArray[np.float64], weights: NDArray[np.float64], *, seed: int, num_resamples: int = NUM_RESAMPLES
) -> tuple[float, float]:
    """The middle 95 % of the ratio over resamples of the items.

    Args:
        amounts: [num_items] float64.
        weights: [num_items] float64, above 0.
        seed: the same seed, the same interval.
        num_resamples: how often as many items are drawn, with replacement.
    """
    rng, num_items = np.random.default_rng(seed), len(amounts)
    ratios: list[NDArray[np.float64]] = []
    for start in range(0, num_resamples, _CHUNK):
        size = min(_CHUNK, num_resamples - start)
        # How often each item is drawn: [size, num_items].
        counts = rng.multinomial(num_items, np.full(num_items, 1 / num_items), size=size)
        ratios.append((counts @ amounts) / (counts @ weights))
    low, high = np.quantile(np.concatenate(ratios), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def unseen_share(num_items: int) -> float:
    """How large the share of something may be that was seen in none of so many items.

    Resampling cannot tell: where no item differs, no resample does. (1 - p)^n = 0.025.
    """
    return 1.0 - math.exp(math.log((1 - CONFIDENCE) / 2) / num_items)
