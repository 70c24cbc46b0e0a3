# SPDX-License-Identifier: Apache-2.0
"""The interface of estimators of a candidate's speed; our roofline is one, others may be installed."""

from typing import NamedTuple, Protocol

from build_engines.planner.roofline.candidates import Candidate
from build_engines.planner.roofline.efficiencies import Efficiencies, fitted
from build_engines.planner.roofline.steady_state import (
    Estimate,
    Limits,
    Workload,
    at_concurrency,
    at_rate,
    at_users,
    saturated,
)


class Load(NamedTuple):
    """The load on one replica; at most one field is set; none: as much as the replica can take."""

    concurrency: float | None = None  # clients that each wait for their answer
    requests_per_s: float | None = None
    users: float | None = None  # users who think for `think_time_s` between an answer and the next question
    think_time_s: float = 0.0

    def shared(self, num_replicas: int) -> "Load":
        """Return the load of one replica among `num_replicas`."""
        concurrency, requests_per_s, users = (None if all_of is None else all_of / num_replicas for all_of in self[:3])
        return Load(concurrency, requests_per_s, users, self.think_time_s)


class Estimator(Protocol):
    """An estimator of what users see of one replica."""

    name: str

    def why_not(self, candidate: Candidate, workload: Workload, limits: Limits) -> str | None:
        """Return the reason why the estimator cannot say anything of a candidate, or None: `estimate` may be asked."""

    def estimate(self, candidate: Candidate, workload: Workload, load: Load, limits: Limits) -> Estimate | None:
        """Return an estimate, or None if not one request fits, or the rate cannot be kept up with."""


class Roofline:
    """Our own estimator: a step's time from datasheets and few fitted efficiencies.

    It covers every candidate.
    """

    name = "roofline"

    def __init__(self, efficiencies: Efficiencies | None = None) -> None:
        self._eff = efficiencies or fitted()

    def why_not(self, candidate: Candidate, workload: Workload, limits: Limits) -> str | None:  # noqa: ARG002
        """Return None: the roofline covers every candidate."""
        return None

    def estimate(self, candidate: Candidate, workload: Workload, load: Load, limits: Limits) -> Estimate | None:
        """Return an estimate from `build_engines.planner.roofline.steady_state`."""
        if load.requests_per_s is not None:
            return at_rate(candidate.engine, self._eff, workload, limits, load.requests_per_s)
        if load.users is not None:
            return at_users(candidate.engine, self._eff, workload, limits, load.users, load.think_time_s)
        if load.concurrency is not None:
            return at_concurrency(candidate.engine, self._eff, workload, limits, load.concurrency)
        return saturated(candidate.engine, self._eff, workload, limits)
