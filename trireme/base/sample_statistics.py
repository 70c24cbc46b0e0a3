# SPDX-License-Identifier: Apache-2.0
"""Percentiles of a sample, and bootstrap intervals of its figures by the percentile method."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Sample = Sequence[float] | Floats
Indices = NDArray[np.intp]
_BATCH = 250  # resamples at once; bounds memory


def percentile(values: Sample, percent: float, *, method: Literal["linear", "higher", "lower"] = "linear") -> float:
    """Return one percentile of a sample as `numpy.percentile` defines it.

    Args:
        values: at least one.
        percent: 0 to 100.
        method: "linear" between the two nearest values; "higher" and "lower": one of them, a value of the sample.
    """
    return float(np.percentile(values, percent, method=method))


def bootstrap(figure: Callable[[Indices], ArrayLike], num_items: int, *, num_resamples: int, seed: int = 0) -> Floats:
    """Return a figure of each resample, ``[num_resamples, ...]``; the same seed draws the same items.

    Args:
        figure: makes figures ``[batch, ...]`` of the indices of the items that were drawn, ``[batch, num_items]``.
        num_items: how many there are; as many are drawn, with replacement.
        seed: 0 to 2^32 - 1.
    """
    # Not scipy.stats.bootstrap: it draws other items, and the committed figures could not be computed again. These are
    # the draws of `random.Random(seed).choices`, and numpy promises (NEP 19) that a RandomState makes them for ever.
    state = np.random.RandomState([seed])
    sizes = [min(_BATCH, num_resamples - start) for start in range(0, num_resamples, _BATCH)]
    drawn = ((state.random_sample((size, num_items)) * num_items).astype(np.intp) for size in sizes)
    return np.concatenate([np.asarray(figure(chosen), dtype=np.float64) for chosen in drawn])


def block_bootstrap(
    figure: Callable[[Floats], ArrayLike], blocks: Sequence[Sample], *, num_resamples: int, seed: int = 0
) -> Floats:
    """Return a figure of each resample of whole blocks, ``[num_resamples, ...]``: values of one block are alike.

    Args:
        figure: is computed from all values of the blocks that were drawn, pooled.
        blocks: the values of each; they need not be of one length.
        seed: as of `bootstrap`; two sets of equally many blocks are drawn as pairs with the same one.
    """
    arrays = [np.asarray(block, dtype=np.float64) for block in blocks]
    return bootstrap(
        lambda chosen: np.array([figure(np.concatenate([arrays[index] for index in drawn])) for drawn in chosen]),
        len(arrays),
        num_resamples=num_resamples,
        seed=seed,
    )


def interval(resampled: Floats, *, confidence: float) -> tuple[float, float]:
    """Return the lowest and the highest of the middle `confidence` of resampled figures, ``[num_resamples]``."""
    tail = 100 * (1 - confidence) / 2
    return percentile(resampled, tail, method="higher"), percentile(resampled, 100 - tail, method="lower")
