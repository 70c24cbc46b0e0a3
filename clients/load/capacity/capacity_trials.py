# SPDX-License-Identifier: Apache-2.0
"""The loads that a capacity search puts on a server: one user alone, each load that is tried, and multiples."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from clients.latency import e2e_ms
from clients.load.capacity.capacity_found import Capacity, Degradation, doubts_of, over_peak
from clients.load.capacity.capacity_search import (
    Trial,
    Verdict,
    best_of_three,
    highest,
    judge,
    refuse_failing,
    search,
)
from clients.load.load_options import Load
from clients.load.run_command import ServerGone, put_on, warm_up
from clients.load_report.run_figures import CLIENT_BOUND_SHARE, RunFigures, figures_of, pooled
from clients.load_report.slo import Target
from clients.load_run.run_folder import Run
from trireme.base.errors import ServerError, Unavailable

FACTORS = (1.0, 2.0, 3.0)
LEAST_REQUESTS = 30
LEAST_ROUNDS = 5  # of a closed loop: requests that each user sends
_NUM_ALONE = 3
_LATE_SHARE = 0.2
_SEED_STEP = 101


class Bench:
    """The trials on one server, each a folder in `out`, in order.

    Attributes:
        found: so far; it is in `out` after every trial, for a search may end at any moment.
    """

    def __init__(
        self, load: Load, targets: tuple[Target, ...], out: Path, *, max_error_share: float, metrics: str | None
    ) -> None:
        self._load = load
        self._targets = targets
        self._out = out
        self._max_error_share = max_error_share
        self._metrics = metrics
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._num_runs = 0
        self._round_s = 0.0  # what a request of a user takes, as far as it is known
        self.found = Capacity(targets=targets)

    def search(self, *, start: float, precision: float, has_users: bool) -> Capacity:
        """Run the whole search.

        Raises:
            RequestError, ServerError: the server refuses every request, whatever the load; or the client is too slow.
        """
        warm_up(self._load, 8)
        alone = self._alone()
        self._keep(alone=alone.measured, why_none=alone.why_not)
        if alone.holds:
            search(self._try_rate, start=start, precision=precision)
            if has_users:
                search(self._try_users, start=4.0, precision=precision, is_whole=True)
            if self.found.rate_per_s is not None:
                self._degrade(self.found.rate_per_s)
        self._keep(is_whole=True)
        return self.found

    def _keep(self, **changes: Any) -> None:
        self.found = msgspec.structs.replace(self.found, **changes)
        self.found.write(self._out)

    def _alone(self) -> Verdict:
        """Measure one user alone, by medians, so that one slow request does not decide.

        No load holds what that user does not get.
        """
        load = msgspec.structs.replace(
            self._load, rate_per_s=None, num_users=1, num_processes=1, duration_s=None, num_requests=_NUM_ALONE
        )
        run, figures = self._run(load, "alone")
        refuse_failing(run, max_error_share=1.0, is_alone=True)
        targets = tuple(
            msgspec.structs.replace(target, percentile=min(50.0, target.percentile or 50.0)) for target in self._targets
        )
        verdict = judge(run, figures, targets, max_error_share=1.0)
        self._note_round(run)
        said = ", ".join(f"{name} {value:.1f} ms" for name, value in verdict.measured.items())
        self._console.print(f"one user alone: {said or verdict.why_not}", markup=False)
        return verdict

    def _try_rate(self, rate_per_s: float) -> Trial:
        trial = self._try(self._at, rate_per_s, "requests/s", "rate")
        trials = [*self.found.rate_trials, trial]
        best = highest(trials)
        self._keep(rate_trials=trials, rate_per_s=best.load if best else None)
        return trial

    def _at(self, rate_per_s: float) -> Load:
        """Return the load at a rate; a slow rate takes longer, for a percentile of a few requests says nothing."""
        duration_s = max(self._load.duration_s or 0.0, LEAST_REQUESTS / rate_per_s)
        return msgspec.structs.replace(self._load, rate_per_s=rate_per_s, duration_s=duration_s)

    def _try_users(self, users: float) -> Trial:
        trial = self._try(self._of_users, users, "users", "users")
        trials = [*self.found.user_trials, trial]
        most = highest(trials)
        self._keep(user_trials=trials, users=round(most.load) if most else None)
        return trial

    def _of_users(self, users: float) -> Load:
        """Return the load of some users; it lasts longer where answers are long, so that each sends several."""
        num_users = round(users)
        return msgspec.structs.replace(
            self._load, rate_per_s=None, num_users=num_users, num_processes=min(self._load.num_processes, num_users),
            duration_s=max(self._load.duration_s or 0.0, LEAST_ROUNDS * self._round_s),
        )  # fmt: skip

    def _try(self, load_of: Callable[[float], Load], amount: float, unit: str, kind: str) -> Trial:
        def once(number: int) -> Trial:
            name = f"{kind}-{amount:.4g}" + (f"-again-{number}" if number > 1 else "")
            run, figures = self._run(load_of(amount), name)
            refuse_failing(run, max_error_share=self._max_error_share)
            verdict = judge(run, figures, self._targets, max_error_share=self._max_error_share)
            if verdict.holds or not verdict.measured:
                self._note_round(run)
            if verdict.why_not and _is_clients_fault(figures, self._targets):
                if number > 1:
                    raise ServerError(
                        f"{run.name} did not hold ({verdict.why_not}), but the client was the bottleneck, so this says "
                        f"nothing of the server: {figures.client.why_bound}; the runs so far are in {self._out}"
                    )
                verdict = msgspec.structs.replace(verdict, is_clear=False)  # it may have been for a moment
            self._console.print(f"{amount:.4g} {unit}: {verdict.why_not or 'holds'}", markup=False)
            return Trial(**msgspec.structs.asdict(verdict), load=amount, run=run.name, num_runs=number)

        return best_of_three(once)

    def _note_round(self, run: Run) -> None:
        if e2es_ms := pooled([record for record in run.records if record.is_done], e2e_ms):
            self._round_s = max(self._round_s, statistics.median(e2es_ms) / 1e3)

    def _degrade(self, rate_per_s: float) -> None:
        for factor in FACTORS:
            found = over_peak([*self.found.degradation, self._multiple(factor, rate_per_s)])
            self._keep(degradation=found, doubts=doubts_of(found, self.found.rate_trials))

    def _multiple(self, factor: float, rate_per_s: float) -> Degradation:
        """Return the result of a multiple of the rate; a server that does not survive it does not hold."""
        lost = ""
        try:
            run, plain = self._run(self._at(factor * rate_per_s), f"{factor:g}x")
        except ServerGone as exc:
            run, plain, lost = exc.run, figures_of(exc.run), exc.message
        except Unavailable as exc:  # it has not come back
            self._console.print(f"{factor:g}x: {exc.message}", markup=False)
            return Degradation(factor=factor, rate_per_s=factor * rate_per_s, why_not=exc.message)
        verdict = judge(run, plain, self._targets, max_error_share=self._max_error_share)
        figures = figures_of(
            run, targets=tuple(msgspec.structs.replace(target, percentile=None) for target in self._targets)
        )
        assert figures.goodput is not None  # there are targets
        said = lost or f"goodput {figures.goodput.per_s:.2f} requests/s"
        self._console.print(f"{factor:g}x: {said}", markup=False)
        return Degradation(
            factor=factor, rate_per_s=factor * rate_per_s, why_not="; ".join(filter(None, [lost, verdict.why_not])),
            num_requests=figures.num_requests, goodput_per_s=figures.goodput.per_s,
            goodput_interval=figures.goodput.interval, failed_share=figures.error_share,
            refused_share=figures.refused_share, measured=verdict.measured, client_bound=figures.client.why_bound,
            run=run.name,
        )  # fmt: skip

    def _run(self, load: Load, name: str) -> tuple[Run, RunFigures]:
        """Put a load on, with a seed of its own: repeated prompts would be in the server's prefix cache."""
        self._num_runs += 1
        load = msgspec.structs.replace(load, seed=load.seed + _SEED_STEP * self._num_runs)
        folder = self._out / f"{self._num_runs:02}-{name}"  # two rates may have one name
        try:
            run = put_on(load, folder, warmup=0, metrics=self._metrics, is_quiet=True)
        except ServerGone as exc:
            if exc.was_interrupted:
                raise KeyboardInterrupt from exc
            raise
        if run.info.was_interrupted:
            raise KeyboardInterrupt
        return run, figures_of(run)


def _is_clients_fault(figures: RunFigures, targets: tuple[Target, ...]) -> bool:
    """Return whether the client may be why a load did not hold.

    It had no CPU left, or was late by much of a target.
    """
    client = figures.client
    is_late = (client.lag_p99_ms or 0.0) > _LATE_SHARE * min(target.limit_ms for target in targets)
    return bool(client.why_bound) and (is_late or (client.cpu_share or 0.0) > CLIENT_BOUND_SHARE)
