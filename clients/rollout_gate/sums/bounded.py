# SPDX-License-Identifier: Apache-2.0
"""The bounded figures of requests: a few that are many times as slow must not hide, or make, a difference of all.

A figure beyond `BOUND` standard deviations of its like counts as if it lay there (Huber, "Robust estimation of a
location parameter", Annals of Mathematical Statistics 35(1), 1964). Its like is what came before, in both arms: the
quartiles of a histogram, so that the tail has no part in it. A shift of all figures moves the mean of bounded ones by
the share that lies inside, by which it is divided. What lies outside is counted by the metrics `slow` and
`slow_decode`, and no pass goes against the plain mean (`clients.rollout_gate.findings.is_contradicted`).

An engine may be so even that its bounds are nearer than the effect size: a candidate four times as slow would then seem
to be as much slower as the bounds are wide, and fine. So bounds are never nearer than `least`.
"""

import numpy as np
from numpy.typing import NDArray

from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import add_at

_REACH, _NUM_BINS = 8.0, 800  # as logarithms: nothing is 3,000 times its prediction and still told apart
_QUARTILES_OF_NORMAL = 1.349  # between the quartiles, in standard deviations
_LEAST_SCALE = 2 * _REACH / _NUM_BINS  # a bin: nothing is known of what is inside


class Likes:
    """The histogram of figures so far, each without its arm's own part, and the bounds that hold until the next `fit`.

    Args:
        shape: leading dimensions.
        bound: in standard deviations; 1.5 keeps 96 % of the information about normal figures.
        least: the bounds' least distance from the centre.
    """

    def __init__(self, shape: tuple[int, ...], bound: float = 1.5, least: float = 0.0) -> None:
        self._bound, self._least = bound, least
        self.counts: Floats = np.zeros((*shape, _NUM_BINS))
        self.centre: Floats = np.zeros(shape)
        self.scale: Floats = np.ones(shape)

    def add(self, figures: Floats) -> None:
        """Add figures: [..., n], nan for none."""
        shape = self.counts.shape[:-1]
        known = np.isfinite(figures)
        bins = np.clip((np.where(known, figures, 0.0) + _REACH) / (2 * _REACH) * _NUM_BINS, 0, _NUM_BINS - 1)
        first = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape) * _NUM_BINS
        at = (first[..., np.newaxis] + bins.astype(np.int64))[known]
        add_at(self.counts, at)

    def fit(self) -> None:
        """Take centre and scale of all figures so far."""
        below = self.counts.cumsum(axis=-1)
        quarter, self.centre, three = (self._quantile(share, below) for share in (0.25, 0.5, 0.75))
        self.scale = np.maximum((three - quarter) / _QUARTILES_OF_NORMAL, _LEAST_SCALE)

    @property
    def limit(self) -> Floats:
        """Return what a figure about the centre is bounded by: [...]."""
        return np.asarray(np.maximum(self._bound * self.scale, self._least))

    def bounded(self, figures: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return figures about the centre, bounded, and which of them lie inside: [..., n] both; nan stays."""
        centred = figures - self.centre[..., np.newaxis]
        limit = self.limit[..., np.newaxis]
        return np.clip(centred, -limit, limit), np.abs(centred) < limit

    def _quantile(self, share: float, below: Floats) -> Floats:
        """Return a quantile, with figures spread evenly in their bin. Args: `below`: sums of the counts."""
        wanted = share * below[..., -1:]
        at = np.argmax(below >= wanted, axis=-1)[..., np.newaxis]
        inside, upto = (np.take_along_axis(each, at, axis=-1) for each in (self.counts, below))
        part = 1 - (upto - wanted) / np.maximum(inside, 1.0)
        return np.asarray((at + part) / _NUM_BINS * 2 * _REACH - _REACH)[..., 0]
