# SPDX-License-Identifier: Apache-2.0
"""The results of a capacity search, as data and as `capacity.json`, which is whole after every trial."""

from pathlib import Path

import msgspec

from clients.load.capacity.capacity_search import Trial
from clients.load_report.latency_percentiles import Interval
from clients.load_report.slo import Target
from clients.load_run.json_lines import write_json

FILE = "capacity.json"


class Degradation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a multiple of the capacity.

    Without a run no server took requests any more.

    Attributes:
        why_not: it does not hold the targets, in words; "": it does.
        goodput_per_s: requests that met the targets, each by itself; over_peak: of the greatest goodput of all factors.
        num_requests: that goodput and shares are of.
    """

    factor: float
    rate_per_s: float
    why_not: str
    num_requests: int = 0
    goodput_per_s: float = 0.0
    goodput_interval: Interval | None = None
    over_peak: float = 0.0
    failed_share: float = 0.0
    refused_share: float = 0.0  # of the requests, too; the rest of those that failed broke, or came too late
    measured: dict[str, float] = {}
    client_bound: str = ""  # why the client was the bottleneck, as it may be beyond the capacity; "": it was not
    run: str = ""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a search, so far or in the end.

    Attributes:
        is_whole: the search came to its end; otherwise it runs, or was ended.
        alone: what one user gets who is alone, each target's metric at its median at most.
        rate_per_s, users: the highest that hold; None: not even the smallest load did, or it was not searched for.
        why_none: why nothing was tried, in words: one user alone misses the targets.
        doubts: where a multiple of the rate says another thing than the search did.
    """

    targets: tuple[Target, ...]
    is_whole: bool = False
    alone: dict[str, float] = {}
    rate_per_s: float | None = None
    users: int | None = None
    why_none: str = ""
    doubts: list[str] = []
    degradation: list[Degradation] = []
    rate_trials: list[Trial] = []
    user_trials: list[Trial] = []

    def write(self, folder: Path) -> None:
        """Write the results into a folder's `capacity.json`.

        Raises:
            ServingError: the file cannot be written; the one before stays.
        """
        write_json(folder / FILE, self)


def over_peak(degradation: list[Degradation]) -> list[Degradation]:
    """Return the results with each goodput's share of the greatest goodput."""
    peak = max(each.goodput_per_s for each in degradation) or 1.0
    return [msgspec.structs.replace(each, over_peak=each.goodput_per_s / peak) for each in degradation]


def doubts_of(degradation: list[Degradation], trials: list[Trial]) -> list[str]:
    """Return in words where the multiples of a rate contradict the search that found the rate."""
    too_high = min((trial.load for trial in trials if not trial.holds), default=None)
    doubts = []
    for each in degradation:
        at = f"{each.factor:g}x ({each.rate_per_s:.4g} requests/s)"
        if each.factor == 1 and each.why_not:
            doubts.append(f"{at} held in the search, but not when it was put on again: {each.why_not}")
        if each.factor > 1 and not each.why_not and too_high is not None and each.rate_per_s >= too_high:
            doubts.append(f"{at} holds the targets too, though {too_high:.4g} requests/s did not in the search")
    return doubts
