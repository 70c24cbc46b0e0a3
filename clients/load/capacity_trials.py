# SPDX-License-Identifier: Apache-2.0
"""What a capacity search puts on a server: one user alone, each load that it tries, and multiples of what held."""

from pathlib import Path

import msgspec
from rich.console import Console

from clients.load.capacity import Trial, best_of_three, highest, judge, refuse_failing, search
from clients.load.figures.intervals import Interval
from clients.load.figures.run_figures import CLIENT_BOUND_SHARE, RunFigures, figures_of
from clients.load.figures.slo import Target
from clients.load.load_options import Load
from clients.load.run_command import put_on, warm_up
from clients.load.run_folder import Run
from ensemble_configs.errors import ServerError

FACTORS = (1.0, 2.0, 3.0)
LEAST_REQUESTS = 30
_NUM_ALONE = 3
_LATE_SHARE = 0.2
_SEED_STEP = 101


class Degradation(msgspec.Struct, frozen=True, kw_only=True):
    """What a multiple of the capacity does.

    Attributes:
        why_not: it does not hold the targets, in words; "": it does.
        goodput_per_s: requests that met the targets, each by itself; over_peak: of the greatest goodput of all factors.
        num_requests: that goodput and shares are of.
    """

    factor: float
    rate_per_s: float
    why_not: str
    num_requests: int
    goodput_per_s: float
    goodput_interval: Interval | None
    over_peak: float
    failed_share: float
    refused_share: float  # of the requests, too; the rest of those that failed broke, or came too late
    measured: dict[str, float]
    client_bound: str  # why the client was the bottleneck, as it may be beyond the capacity; "": it was not
    run: str


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        alone: what one user gets who is alone, each target's metric at its median at most.
        rate_per_s, users: the highest that hold; None: not even the smallest load did, or it was not searched for.
        why_none: why nothing was tried, in words: one user alone misses the targets.
        doubts: where a multiple of the rate says another thing than the search did.
    """

    targets: tuple[Target, ...]
    alone: dict[str, float]
    rate_per_s: float | None = None
    users: int | None = None
    why_none: str = ""
    doubts: list[str] = []
    degradation: list[Degradation] = []
    rate_trials: list[Trial] = []
    user_trials: list[Trial] = []


class Bench:
    """Trials on one server, each a folder in `out`. `shown`: runs for the report."""

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
        self.shown: list[Run] = []

    def search(self, *, start: float, precision: float, has_users: bool) -> Capacity:
        """Everything.

        Raises:
            RequestError, ServerError: the server refuses every request, whatever the load; or the client is too slow.
        """
        warm_up(self._load, 8)
        alone, why_none = self._alone()
        if why_none:
            return Capacity(targets=self._targets, alone=alone, why_none=why_none)
        rate_trials = search(self._try_rate, start=start, precision=precision)
        best = highest(rate_trials)
        user_trials = search(self._try_users, start=4.0, precision=precision, is_whole=True) if has_users else []
        most = highest(user_trials)
        degradation = self._degrade(best.load) if best else []
        return Capacity(
            targets=self._targets,
            alone=alone,
            rate_per_s=best.load if best else None,
            users=round(most.load) if most else None,
            doubts=doubts_of(degradation, rate_trials),
            degradation=degradation,
            rate_trials=rate_trials,
            user_trials=user_trials,
        )

    def _alone(self) -> tuple[dict[str, float], str]:
        """What one user gets, and why no load can hold ("": one may): medians, so that one slow request is none."""
        load = msgspec.structs.replace(
            self._load, rate_per_s=None, num_users=1, num_processes=1, duration_s=None, num_requests=_NUM_ALONE
        )
        run, figures = self._run(load, "alone")
        refuse_failing(run, max_error_share=1.0)
        targets = tuple(
            msgspec.structs.replace(target, percentile=min(50.0, target.percentile or 50.0)) for target in self._targets
        )
        verdict = judge(run, figures, targets, max_error_share=1.0)
        said = ", ".join(f"{name} {value:.1f} ms" for name, value in verdict.measured.items())
        self._console.print(f"one user alone: {said or verdict.why_not}", markup=False)
        return verdict.measured, verdict.why_not

    def _try_rate(self, rate_per_s: float) -> Trial:
        return self._try(self._at(rate_per_s), rate_per_s, "requests/s", "rate")

    def _at(self, rate_per_s: float) -> Load:
        """A slow rate takes longer: a percentile of a few requests says nothing."""
        duration_s = max(self._load.duration_s or 0.0, LEAST_REQUESTS / rate_per_s)
        return msgspec.structs.replace(self._load, rate_per_s=rate_per_s, duration_s=duration_s)

    def _try_users(self, users: float) -> Trial:
        num_users = round(users)
        num_processes = min(self._load.num_processes, num_users)
        load = msgspec.structs.replace(self._load, rate_per_s=None, num_users=num_users, num_processes=num_processes)
        return self._try(load, users, "users", "users")

    def _try(self, load: Load, amount: float, unit: str, kind: str) -> Trial:
        def once(number: int) -> Trial:
            run, figures = self._run(load, f"{kind}-{amount:.4g}" + (f"-again-{number}" if number > 1 else ""))
            refuse_failing(run, max_error_share=self._max_error_share)
            verdict = judge(run, figures, self._targets, max_error_share=self._max_error_share)
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

    def _degrade(self, rate_per_s: float) -> list[Degradation]:
        each = tuple(msgspec.structs.replace(target, percentile=None) for target in self._targets)
        found = []
        for factor in FACTORS:
            run, plain = self._run(self._at(factor * rate_per_s), f"{factor:g}x")
            self.shown.append(run)
            figures = figures_of(run, targets=each)
            verdict = judge(run, plain, self._targets, max_error_share=self._max_error_share)
            assert figures.goodput is not None  # there are targets
            self._console.print(f"{factor:g}x: goodput {figures.goodput.per_s:.2f} requests/s", markup=False)
            found.append((factor, figures, figures.goodput, verdict, run.name))
        peak = max(goodput.per_s for _, _, goodput, _, _ in found)
        return [
            Degradation(
                factor=factor, rate_per_s=factor * rate_per_s, why_not=verdict.why_not,
                num_requests=figures.num_requests, goodput_per_s=goodput.per_s, goodput_interval=goodput.interval,
                over_peak=goodput.per_s / (peak or 1.0), failed_share=figures.error_share,
                refused_share=figures.refused_share, measured=verdict.measured,
                client_bound=figures.client.why_bound, run=name,
            )
            for factor, figures, goodput, verdict, name in found
        ]  # fmt: skip

    def _run(self, load: Load, name: str) -> tuple[Run, RunFigures]:
        """Each with a seed of its own: prompts that come again would be in the server's prefix cache."""
        self._num_runs += 1
        load = msgspec.structs.replace(load, seed=load.seed + _SEED_STEP * self._num_runs)
        run = put_on(load, self._out / name, warmup=0, metrics=self._metrics, is_quiet=True)
        if run.info.was_interrupted:
            raise KeyboardInterrupt
        return run, figures_of(run)


def doubts_of(degradation: list[Degradation], trials: list[Trial]) -> list[str]:
    """Where the multiples of a rate contradict the search that found it, in words."""
    too_high = min((trial.load for trial in trials if not trial.holds), default=None)
    doubts = []
    for each in degradation:
        at = f"{each.factor:g}x ({each.rate_per_s:.4g} requests/s)"
        if each.factor == 1 and each.why_not:
            doubts.append(f"{at} held in the search, but not when it was put on again: {each.why_not}")
        if each.factor > 1 and not each.why_not and too_high is not None and each.rate_per_s >= too_high:
            doubts.append(f"{at} holds the targets too, though {too_high:.4g} requests/s did not in the search")
    return doubts


def _is_clients_fault(figures: RunFigures, targets: tuple[Target, ...]) -> bool:
    """Whether the client may be why a load did not hold: it had no CPU left, or was late by much of a target."""
    client = figures.client
    is_late = (client.lag_p99_ms or 0.0) > _LATE_SHARE * min(target.limit_ms for target in targets)
    return bool(client.why_bound) and (is_late or (client.cpu_share or 0.0) > CLIENT_BOUND_SHARE)
