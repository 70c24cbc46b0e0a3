# SPDX-License-Identifier: Apache-2.0
"""Events that come together count as one incident, where they are seen to come together.

Errors of an arm that fails for half a minute are one thing that happened, not sixty. How long such a time is nobody
knows; so a few lengths are tried. At each, events of one arm that follow one another within it, with none of the other
arm between, are one incident, and the length has a weight: how much likelier it is than by chance that so many events
follow another one within it, of the time in which they could be seen (the mixed likelihood ratio of
`clients.rollout_gate.statistics.count_test`, with the covered share of the time as the chance). An arm that fails
evenly, however often, has all its time covered, and no incidents. The chance that explains the incidents is averaged
over the lengths, as `clients.rollout_gate.statistics.fading` averages over excesses. Events by
themselves lose next to nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clients.rollout_gate.statistics.count_test import log_evidence_over
from clients.rollout_gate.statistics.mean_test import Floats

Truths = NDArray[np.bool_]

# In `GateSpec.fade_s`; by default 10, 60 and 300 s between two events, 120, 180 and 300 s from the first to the last.
LENGTHS = (0.125, 0.75, 3.75)
LONGEST = (1.5, 2.25, 3.75)
LASTING = 1  # the length by which an incident goes on or is over
# Of independent events, then of each length. What an arm's own queue makes likelier comes together more often than
# errors do; and errors that come together tell so by themselves, where one outage is not all that was seen.
PRIORS_OF_QUEUES: Floats = np.array([0.9949, 0.004, 0.001, 0.0001])
PRIORS_OF_OUTAGES: Floats = np.array([0.999745, 2e-4, 5e-5, 5e-6])


@dataclass
class Incidents:
    """The events of both arms and the incidents that they make; arrays [..., 2], by length [..., 2, lengths].

    Attributes:
        fade_s: as `GateSpec.fade_s`, the unit of lengths.
        told_from_s, told_until_s: [...] time of the first and of the newest request that could have had the event.
        num: number of events.
        last_s: time of the newest event; minus infinity: there was none.
        newest: [...] arm of the newest event of both; minus one: there was none.
        incidents: number of incidents: events of one arm, each within the length of the one before, and none of the
            other arm between them. What strikes both arms at once does not count as one arm's incident, and what goes
            on for longer than `LONGEST` counts anew.
        since_s: time of the first event of the newest of those.
        short: number of gaps within the length, whatever the other arm had between.
        covered_s: time within the length after an event, before the newest one.
        lasting: number of incidents of the length `LASTING`, whatever the other arm had between.
        began_s: time of the first event of the newest of those; plus infinity: none.
    """

    fade_s: float
    told_from_s: Floats
    told_until_s: Floats
    num: Floats
    last_s: Floats
    newest: Floats
    incidents: Floats
    since_s: Floats
    short: Floats
    covered_s: Floats
    lasting: Floats
    began_s: Floats

    @classmethod
    def none(cls, shape: tuple[int, ...], fade_s: float) -> "Incidents":
        """Return the state without any event."""
        arms, lengths = (*shape, 2), (*shape, 2, len(LENGTHS))
        return cls(
            fade_s=fade_s,
            told_from_s=np.full(shape, np.inf),
            told_until_s=np.full(shape, -np.inf),
            num=np.zeros(arms),
            last_s=np.full(arms, -np.inf),
            newest=np.full(shape, -1.0),
            incidents=np.zeros(lengths),
            since_s=np.full(lengths, np.inf),
            short=np.zeros(lengths),
            covered_s=np.zeros(lengths),
            lasting=np.zeros(arms),
            began_s=np.full(arms, np.inf),
        )

    def tell(self, is_told: Truths, at_s: Floats) -> None:
        """Take note of when requests could have had the event: what nobody could see before that did not cease then.

        Args:
            is_told: [..., rows] whether each could.
            at_s: [..., rows] time of each request's end.
        """
        self.told_from_s = np.minimum(self.told_from_s, np.where(is_told, at_s, np.inf).min(axis=-1))
        self.told_until_s = np.maximum(self.told_until_s, np.where(is_told, at_s, -np.inf).max(axis=-1))

    @property
    def told_s(self) -> Floats:
        """Return the seconds in which the event could be seen: [...], at least 1."""
        is_any = np.isfinite(self.told_from_s)
        told_s = np.where(is_any, self.told_until_s, 0.0) - np.where(is_any, self.told_from_s, 0.0)
        return np.asarray(np.maximum(told_s, 1.0))

    def add(self, is_event: Truths, at_s: Floats) -> None:
        """Add requests that came together: those of one arm that had the event are within any length of one another.

        Args:
            is_event: [..., 2, rows] of each arm.
            at_s: [..., rows] time of each request's end.
        """
        count = is_event.sum(axis=-1).astype(np.float64)
        is_any = count > 0
        times = at_s[..., np.newaxis, :]
        first_s = np.where(is_event, times, np.inf).min(axis=-1)
        gap_s = np.where(is_any, first_s - self.last_s, 0.0)[..., np.newaxis]
        is_far = is_any[..., np.newaxis] & (gap_s >= self._lengths_s)
        self.short += np.where(is_any, count - 1, 0.0)[..., np.newaxis] + (
            is_any[..., np.newaxis] & ~is_far & np.isfinite(gap_s)
        )
        last_s = np.where(is_event, times, -np.inf).max(axis=-1)
        within_s = np.where(is_any, last_s, 0.0) - np.where(is_any, first_s, 0.0)
        before_s = np.where(is_any[..., np.newaxis] & np.isfinite(gap_s), np.minimum(gap_s, self._lengths_s), 0.0)
        self.covered_s += before_s + within_s[..., np.newaxis]
        self.lasting += is_far[..., LASTING]
        self.began_s = np.where(is_far[..., LASTING], first_s, self.began_s)
        self._note_incidents(is_event, at_s, is_far, first_s)
        self.last_s = np.maximum(self.last_s, last_s)
        self.num += count

    def _note_incidents(self, is_event: Truths, at_s: Floats, is_far: Truths, first_s: Floats) -> None:
        is_either = is_event.any(axis=-2)
        order = np.argsort(np.where(is_either, at_s, np.inf), axis=-1, kind="stable")
        arm = np.take_along_axis(is_event[..., 1, :], order, axis=-1).astype(np.float64)
        is_known = np.take_along_axis(is_either, order, axis=-1)
        before = np.concatenate([self.newest[..., np.newaxis], arm[..., :-1]], axis=-1)
        begins = is_known & (arm != before)
        is_long = first_s[..., np.newaxis] > self.since_s + np.array(LONGEST) * self.fade_s
        for each in (0, 1):
            begun = (begins & (arm == each)).sum(axis=-1)[..., np.newaxis].astype(np.float64)
            # One goes on from the portion before, unless that was long ago, or began long ago.
            goes_on = (is_known[..., 0] & (arm[..., 0] == each) & (before[..., 0] == each))[..., np.newaxis]
            begun = begun + (goes_on & (is_far | is_long)[..., each, :])
            self.incidents[..., each, :] += begun
            now_s = first_s[..., each, np.newaxis]
            self.since_s[..., each, :] = np.where(begun > 0, now_s, self.since_s[..., each, :])
        last = np.maximum(is_known.sum(axis=-1, keepdims=True) - 1, 0)
        self.newest = np.where(is_known[..., 0], np.take_along_axis(arm, last, axis=-1)[..., 0], self.newest)

    @property
    def _lengths_s(self) -> Floats:
        return np.array(LENGTHS) * self.fade_s

    def chance(self, share: Floats, priors: Floats, *, of_candidate: bool = True) -> Floats:
        """Return the [...] chance that explains how many more incidents one arm has.

        Args:
            share: [...] the candidate's share of requests.
            priors: weights before any event.
            of_candidate: False: the chance that explains how many more the baseline has.
        """
        arm, other = (0, 1) if of_candidate else (1, 0)
        part = share if of_candidate else 1 - share
        # An incident strikes an arm, whatever its share of the requests is.
        incidents, even = np.moveaxis(self.incidents, -1, 0), np.maximum(part, 0.5)
        counts = [(self.num, part), *((each, even) for each in incidents)]
        evidence = np.stack([log_evidence_over(each[..., arm], each[..., other], of) for each, of in counts], axis=-1)
        return np.asarray((self.weights(priors) * np.exp(-np.maximum(evidence, 0.0))).sum(axis=-1))

    def clumping(self, priors: Floats) -> Floats:
        """Return the mean number of events of an incident: [...]. Args: `priors`: weights before any event."""
        weights = self.weights(priors)
        events = self.num.sum(axis=-1)[..., np.newaxis]
        sizes = events / np.maximum(self.incidents.sum(axis=-2), 1.0)
        found = (weights[..., 1:] * sizes).sum(axis=-1) + weights[..., 0]
        return np.asarray(np.maximum(found, 1.0))

    def weights(self, priors: Floats) -> Floats:
        """Return the posterior weight of independent events, then of each length: [..., 1 + lengths].

        Args:
            priors: the same before any event.
        """
        together = [self._togetherness(length, length_s) for length, length_s in enumerate(self._lengths_s)]
        found = np.log(priors) + np.stack([np.zeros(self.num.shape[:-1]), *together], axis=-1)
        found = np.exp(found - found.max(axis=-1, keepdims=True))
        return np.asarray(found / found.sum(axis=-1, keepdims=True))

    def _togetherness(self, length: int, length_s: float) -> Floats:
        """Return the log evidence that more events follow another one within a length than fall there by chance.

        It is of both arms together.
        """
        gaps = np.maximum(self.num - 1, 0.0)
        covered_s = self.covered_s[..., length] + length_s  # the last: behind the newest event
        by_chance = np.clip(covered_s / self.told_s[..., np.newaxis], 1e-9, 1 - 1e-9)
        found = log_evidence_over(self.short[..., length], gaps - self.short[..., length], by_chance)
        return np.asarray(np.where(gaps > 0, found, 0.0).sum(axis=-1))
