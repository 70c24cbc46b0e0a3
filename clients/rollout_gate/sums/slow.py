# SPDX-License-Identifier: Apache-2.0
"""The limit above which a request is far slower than its like: a factor, or what the baseline seldom exceeds.

Where one request in twenty takes a hundred times as long by nature, more of those could be told apart in tens of
thousands of requests alone. So the limit rises until one in `_SELDOM` of the baseline's requests is above, by the
requests before. The candidate has no part in its own limit. Until the baseline has `_FIRST` requests, nothing is known
to be slow: where by nature half of the requests take five times as long as the others, all of those would be.
"""

import numpy as np

from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import Rows, add_at

_SELDOM, _FIRST = 300, 100
_BIN, _NUM_BINS = 0.125, 64  # of logarithms over the prediction: up to 3,000 times as long


class SlowLimit:
    """The limit of one rollout, or of many; arrays have any leading dimensions.

    Args:
        shape: leading dimensions.
        factor: `GateSpec.slow_factor`, below which the limit does not lie.
    """

    def __init__(self, shape: tuple[int, ...], factor: float) -> None:
        self._least = int(np.ceil(np.log(factor) / _BIN))
        self.counts: Floats = np.zeros((*shape, _NUM_BINS))  # of the baseline, by how far over the prediction

    def are_slow(self, rows: Rows, over: Floats) -> Floats:
        """Return whether each request is slow, by the limit so far, and let the limit know them.

        Args:
            over: [..., rows] logarithm of the TTFT over the prediction; nan: there is none.

        Returns:
            [..., rows] 1 or 0, nan for none.
        """
        place = np.clip(np.floor(np.where(np.isfinite(over), over, 0.0) / _BIN), 0, _NUM_BINS - 1).astype(np.int64)
        is_told = np.isfinite(over) & (self.counts.sum(axis=-1) >= _FIRST)[..., np.newaxis]
        slow = np.where(is_told, (place >= self._limit()[..., np.newaxis]).astype(np.float64), np.nan)
        shape = self.counts.shape[:-1]
        first = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)[..., np.newaxis] * _NUM_BINS
        known = np.isfinite(over) & ~rows.is_candidate
        add_at(self.counts, (first + place)[known])
        return slow

    def _limit(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return the lowest bin that is slow: [...]."""
        at_least = np.flip(np.flip(self.counts, axis=-1).cumsum(axis=-1), axis=-1)
        is_seldom = at_least * _SELDOM <= self.counts.sum(axis=-1, keepdims=True)
        return np.maximum(np.where(is_seldom.any(axis=-1), is_seldom.argmax(axis=-1), _NUM_BINS), self._least)
