# SPDX-License-Identifier: Apache-2.0
"""The sums of all requests so far as the tests take them, by metric.

Arrays have any leading dimensions: one rollout, or all looks of ten thousand simulated ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.rollout_gate.statistics.clusters import Spread
from clients.rollout_gate.statistics.fading import Differences, Times
from clients.rollout_gate.statistics.groups import GroupDifferences
from clients.rollout_gate.statistics.incidents import Incidents
from clients.rollout_gate.statistics.mean_test import Floats, Plain

Truths = NDArray[np.bool_]


class Level(NamedTuple):
    """The values of a `log_mean` in one arm: [...] their number and their mean."""

    num: Floats
    mean: Floats


class Counts(NamedTuple):
    """The [..., 2] events of the candidate and the baseline, and requests that could have been one."""

    events: Floats
    num: Floats


class Run(NamedTuple):
    """The [..., 2] events of each arm since its newest request without one, and the time of the first of them."""

    num: Floats
    began_s: Floats


class Scores(NamedTuple):
    """The pairs of scores: [...] number, sum of differences, sum of squares, and [..., bets] what bets won."""

    num: Floats
    total: Floats
    squares: Floats
    against_no_worse: Floats
    against_worse: Floats


@dataclass(frozen=True)
class Sample:
    """Sums over all requests so far, by metric; a metric that is in none of the tables has no data.

    Attributes:
        num_requests: [..., 2] requests of the candidate and the baseline.
        times: how long it has been.
        levels: levels of each `log_mean` in both arms.
        differences: differences of metrics that are looked at in blocks of time.
        spreads: spread of each difference, or share, over keys.
        incidents: events that come together, of each share.
        runs: events in a row up to now, of each share.
        groups: differences of a `log_mean` in groups of requests, by the metric that judges them.
        tenants: names of the groups that are tenants.
        plain: difference of each `log_mean` without bounds.
    """

    num_requests: Floats
    times: Times
    levels: Mapping[str, tuple[Level, Level]] = field(default_factory=dict)
    differences: Mapping[str, Differences] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    incidents: Mapping[str, Incidents] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)
    groups: Mapping[str, GroupDifferences] = field(default_factory=dict)
    tenants: Sequence[str] = ()
    plain: Mapping[str, Plain] = field(default_factory=dict)

    def spread(self, name: str) -> Spread:
        """Return the spread of a metric over keys; without keys that of independent requests."""
        ones = np.ones(self.num_requests.shape[:-1])
        return self.spreads.get(name, Spread(ones, ones * np.inf))
