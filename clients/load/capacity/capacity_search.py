# SPDX-License-Identifier: Apache-2.0
"""The highest load that holds its targets: bracketed by doubling, then bisected; each trial is a run."""

from collections import Counter
from collections.abc import Callable

import msgspec

from clients.load_report.run_figures import RunFigures, pooled
from clients.load_report.slo import METRICS, Target
from clients.load_run.load_record import REFUSED
from clients.load_run.run_folder import Run
from trireme.base.errors import RequestError, RequestTimeout, ServerError
from trireme.base.sample_statistics import percentile

MAX_TRIALS = 24
_CLEAR_FACTOR = 2.0  # a target that is missed by it is not missed by chance
_OF_OVERLOAD = {REFUSED, RequestTimeout.code}  # ends that a lower load may not have


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a run on its targets.

    Attributes:
        why_not: they are not held, in words; "": they are.
        is_clear: it is a miss that another run of the same load would not undo.
        measured: each target's figure by its name, in milliseconds.
    """

    why_not: str
    is_clear: bool
    measured: dict[str, float]

    @property
    def holds(self) -> bool:
        """Return whether every target was met."""
        return not self.why_not


class Trial(Verdict, frozen=True, kw_only=True):
    """A load that was tried.

    Attributes:
        load: requests a second, or users.
        run: the one that decided, the last of `num_runs`.
    """

    load: float
    run: str
    num_runs: int = 1


def judge(run: Run, figures: RunFigures, targets: tuple[Target, ...], *, max_error_share: float) -> Verdict:
    """Return the verdict on a run's targets.

    An open loop whose requests in flight rose does not, whatever its latencies: they would go on rising.
    """
    done = [record for record in run.records if record.is_done and figures.window.holds(record.due_ns)]
    measured: dict[str, float] = {}
    near: list[str] = []
    clear: list[str] = []
    for target in targets:
        values = pooled(done, METRICS[target.metric])
        if not values:
            near.append(f"no request has a {target.metric}")  # what was not measured is not missed
            continue
        found_ms = measured[target.name] = percentile(values, target.percentile or 50.0)
        if found_ms > target.limit_ms:
            reasons = clear if found_ms > _CLEAR_FACTOR * target.limit_ms else near
            reasons.append(f"{target.name} {found_ms:.1f} ms > {target.limit_ms:g} ms")
    if figures.error_share > max_error_share:
        clear.append(f"{figures.error_share:.1%} of the requests failed > {max_error_share:.1%}")
    if run.info.is_open and not figures.window.is_steady and "rose" in figures.window.why:
        clear.append("requests in flight kept rising")
    return Verdict(why_not="; ".join(near + clear), is_clear=bool(clear), measured=measured)


def refuse_failing(run: Run, *, max_error_share: float, is_alone: bool = False) -> None:
    """Refuse a run that fails by other errors than overload's, for these come at less load, too.

    Args:
        is_alone: the run is of one user: a server too busy for one user is no overload.

    Raises:
        RequestError, ServerError: all requests did, or more than the share were wrong; with what the server said.
    """
    expected = set() if is_alone else _OF_OVERLOAD
    failed = [record for record in run.records if not record.is_done and record.end not in expected]
    if not failed:
        return
    [(end, _)] = Counter(record.end for record in failed).most_common(1)
    share = len(failed) / len(run.records)
    is_wrong = end == RequestError.code
    if share == 1 or (is_wrong and share > max_error_share):
        error = next(record.error for record in failed if record.end == end)
        raise (RequestError if is_wrong else ServerError)(
            f"{len(failed)} of {len(run.records)} requests of the run {run.name!r} failed as they would at any load; "
            f"{end}: {error}" + ("; is the server ready, and without other load?" if is_alone else "")
        )


def best_of_three(once: Callable[[int], Trial]) -> Trial:
    """Try one load; a near miss counts when it comes twice, for a busy machine can make a single one.

    Args:
        once: puts the load on; is told for which time, from 1.
    """
    trial = once(1)
    if not (trial.holds or trial.is_clear):
        trial = once(2)
        if trial.holds:
            trial = once(3)
    return trial


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
    """Return the trial of a search with the highest load that holds; None: nothing held."""
    return max((trial for trial in trials if trial.holds), key=lambda trial: trial.load, default=None)
