# SPDX-License-Identifier: Apache-2.0
"""The highest load that holds its targets: bracketed by doubling, then bisected; each trial is a run."""

from collections.abc import Callable

import msgspec
import numpy as np

from clients.load.figures.run_figures import RunFigures, values_of
from clients.load.figures.slo import METRICS, Target
from clients.load.run_folder import Run

MAX_TRIALS = 24


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One load that was tried.

    Attributes:
        load: requests a second, or users.
        why_not: it does not hold, in words; "": it holds.
        measured: each target's figure by its name, in milliseconds.
    """

    load: float
    why_not: str
    measured: dict[str, float]
    run: str

    @property
    def holds(self) -> bool:
        """Whether every target was met."""
        return not self.why_not


def judge(
    run: Run, figures: RunFigures, targets: tuple[Target, ...], *, max_error_share: float
) -> tuple[str, dict[str, float]]:
    """Why a run does not hold its targets ("": it does), and their figures.

    An open loop whose requests in flight rose does not, whatever its latencies: they would go on rising.
    """
    done = [record for record in run.records if record.is_done and figures.window.holds(record.due_ns)]
    measured, reasons = {}, []
    for target in targets:
        values = [value for one in values_of(done, METRICS[target.metric]) for value in one]
        if not values:
            reasons.append(f"no request has a {target.metric}")
            continue
        measured[target.name] = float(np.percentile(values, target.percentile or 50.0))
        if measured[target.name] > target.limit_ms:
            reasons.append(f"{target.name} {measured[target.name]:.1f} ms > {target.limit_ms:g} ms")
    if figures.error_share > max_error_share:
        reasons.append(f"{figures.error_share:.1%} of the requests failed > {max_error_share:.1%}")
    if run.info.is_open and not figures.window.is_steady and "rose" in figures.window.why:
        reasons.append("requests in flight kept rising")
    return "; ".join(reasons), measured


def search(attempt: Callable[[float], Trial], *, start: float, precision: float, is_whole: bool = False) -> list[Trial]:
    """Try loads until the highest that holds is known.

    Args:
        attempt: puts a load on.
        start: the first load.
        precision: how far apart, as a share, the highest that holds and the lowest that does not may be in the end.
        is_whole: loads are whole numbers.

    Returns:
        All trials, in order. Where even `start` over 2^6 does not hold, the search ends.
    """
    trials: list[Trial] = []
    low, high = 0.0, 0.0  # the highest that holds and the lowest that does not; 0: not known
    load = start
    while len(trials) < MAX_TRIALS:
        load = max(1.0, round(load)) if is_whole else load
        if load in (low, high):
            break
        trials.append(attempt(load))
        if trials[-1].holds:
            low = load
        else:
            high = load
        if not high:
            load *= 2
        elif not low:
            if load <= start / 2**6 or (is_whole and load <= 1):
                break
            load /= 2
        elif high / low - 1 <= precision or (is_whole and high - low <= 1):
            break
        else:
            load = (low * high) ** 0.5
    return trials


def highest(trials: list[Trial]) -> Trial | None:
    """Of a search; None: nothing held."""
    return max((trial for trial in trials if trial.holds), key=lambda trial: trial.load, default=None)
