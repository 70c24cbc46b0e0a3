# SPDX-License-Identifier: Apache-2.0
"""Events that come together count as one incident, where they are seen to come together.

Errors of an arm that fails for half a minute are one thing that happened, not sixty. How long such a time is nobody
knows; so a few lengths are tried. At each, events of one arm that follow one another within it are one incident, and
the length has a weight: how much likelier the gaps between events are under it than by chance (the mixed likelihood
ratio of `clients.rollout_gate.count_test`, of short gaps among all). The chance that explains the incidents is averaged
over the lengths, as `clients.rollout_gate.fading` averages over excesses. Events by themselves lose next to nothing.
"""

from dataclasses import dataclass

import numpy as np

from clients.rollout_gate.count_test import log_evidence_over
from clients.rollout_gate.mean_test import Floats

LENGTHS_S = (10.0, 60.0, 300.0)
LASTING = 1  # the length by which an incident goes on or is over
PRIORS: Floats = np.array([0.988, 0.006, 0.005, 0.001])  # of independent events, then of each length


@dataclass
class Incidents:
    """The events of both arms and the incidents that they make; arrays [..., 2], by length [..., 2, lengths].

    Attributes:
        num: number of events.
        last_s: time of the newest event; minus infinity: there was none.
        began_s: time of the first event of the newest incident, of `LASTING` s between events; plus infinity: none.
        incidents: number of incidents.
        short: number of gaps within the length.
    """

    num: Floats
    last_s: Floats
    began_s: Floats
    incidents: Floats
    short: Floats

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Incidents":
        """Return the state without any event."""
        arms, lengths = (*shape, 2), (*shape, 2, len(LENGTHS_S))
        return cls(np.zeros(arms), np.full(arms, -np.inf), np.full(arms, np.inf), np.zeros(lengths), np.zeros(lengths))

    def add(self, count: Floats, first_s: Floats, last_s: Floats) -> None:
        """Add events that came together.

        Args:
            count: [..., 2] number of events of each arm; those after the first follow within any length.
            first_s, last_s: [..., 2] times of the first and the last of them.
        """
        is_any = count > 0
        gap_s = np.where(is_any, first_s - self.last_s, 0.0)[..., np.newaxis]
        is_new = is_any[..., np.newaxis] & (gap_s > np.array(LENGTHS_S))
        self.incidents += is_new
        self.short += np.where(is_any, count - 1, 0.0)[..., np.newaxis] + (
            is_any[..., np.newaxis] & ~is_new & np.isfinite(gap_s)
        )
        self.began_s = np.where(is_new[..., LASTING], first_s, self.began_s)
        self.last_s = np.where(is_any, last_s, self.last_s)
        self.num += count

    def chance(self, share: Floats, elapsed_s: Floats, *, of_candidate: bool = True) -> Floats:
        """Return the [...] chance that explains how many more incidents one arm has.

        Args:
            share: [...] the candidate's share of requests.
            elapsed_s: [...] seconds since the first request.
            of_candidate: False: the chance that explains how many more the baseline has.
        """
        arm, other = (0, 1) if of_candidate else (1, 0)
        part = share if of_candidate else 1 - share
        counts = [self.num, *(self.incidents[..., length] for length in range(len(LENGTHS_S)))]
        evidence = np.stack([log_evidence_over(each[..., arm], each[..., other], part) for each in counts], axis=-1)
        return np.asarray((self.weights(elapsed_s) * np.exp(-np.maximum(evidence, 0.0))).sum(axis=-1))

    def clumping(self, elapsed_s: Floats) -> Floats:
        """Return the mean number of events of an incident: [...]."""
        events = self.num.sum(axis=-1)[..., np.newaxis]
        sizes = events / np.maximum(self.incidents.sum(axis=-2), 1.0)
        found = (self.weights(elapsed_s)[..., 1:] * sizes).sum(axis=-1) + self.weights(elapsed_s)[..., 0]
        return np.asarray(np.maximum(found, 1.0))

    def weights(self, elapsed_s: Floats) -> Floats:
        """Return the posterior weight of independent events, then of each length: [..., 1 + lengths]."""
        together = [self._togetherness(length, length_s, elapsed_s) for length, length_s in enumerate(LENGTHS_S)]
        found = np.log(PRIORS) + np.stack([np.zeros(elapsed_s.shape), *together], axis=-1)
        found = np.exp(found - found.max(axis=-1, keepdims=True))
        return np.asarray(found / found.sum(axis=-1, keepdims=True))

    def _togetherness(self, length: int, length_s: float, elapsed_s: Floats) -> Floats:
        """Return the log evidence that gaps within a length are more than an arm's own rate makes, over both arms."""
        gaps = np.maximum(self.num - 1, 0.0)
        expected = self.num * length_s / np.maximum(elapsed_s, 1.0)[..., np.newaxis]  # events of a length
        by_chance = np.minimum(1 - np.exp(-expected), 0.999)
        found = log_evidence_over(self.short[..., length], gaps - self.short[..., length], by_chance)
        return np.asarray(np.where(gaps > 0, found, 0.0).sum(axis=-1))
