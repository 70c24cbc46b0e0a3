# SPDX-License-Identifier: Apache-2.0
"""The sums of scores that both arms got for one prompt."""

import msgspec
import numpy as np

from clients.rollout_gate.sample import Scores
from clients.rollout_gate.statistics.score_test import BETS, gains


class Pairs(msgspec.Struct):
    """The sums of pairs of scores (`clients.rollout_gate.findings.Scores`)."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0
    against_no_worse: list[float] = msgspec.field(default_factory=lambda: [0.0] * BETS.size)
    against_worse: list[float] = msgspec.field(default_factory=lambda: [0.0] * BETS.size)

    def add(self, difference: float, effect: float) -> None:
        """Add a pair. Args: `difference`: the candidate's score less the baseline's; `effect`: what is too much."""
        no_worse, worse = gains(np.array(difference), effect)
        self.num += 1
        self.total += difference
        self.squares += difference**2
        self.against_no_worse = (np.array(self.against_no_worse) + no_worse).tolist()
        self.against_worse = (np.array(self.against_worse) + worse).tolist()

    def scores(self) -> Scores:
        """Return the sums as the test takes them."""
        return Scores(
            np.array(float(self.num)),
            np.array(self.total),
            np.array(self.squares),
            np.array(self.against_no_worse),
            np.array(self.against_worse),
        )
