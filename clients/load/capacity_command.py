# SPDX-License-Identifier: Apache-2.0
"""`trireme bench capacity`: how much a server takes within its targets, and what happens at 2 and 3 times that."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from clients.load.capacity import Trial, highest, judge, search
from clients.load.figures.run_figures import CLIENT_BOUND_SHARE, RunFigures, figures_of
from clients.load.figures.slo import Target, parse_targets
from clients.load.load_arguments import (
    IslOption,
    JsonOption,
    MetricsOption,
    ModelOption,
    OslOption,
    SeedOption,
    TokenizerOption,
    UrlOption,
    WorkloadOption,
    chosen_workload,
    metrics_url,
    with_lengths,
    workload_data,
)
from clients.load.load_options import Load
from clients.load.report.document import document_of
from clients.load.report.page import html_page
from clients.load.run_command import put_on, warm_up
from clients.load.run_folder import Run, refuse_used
from ensemble_configs.errors import RequestError, ServerError

FACTORS = (1.0, 2.0, 3.0)
_LATE_SHARE = 0.2
_LEAST_REQUESTS = 30


class Degradation(msgspec.Struct, frozen=True, kw_only=True):
    """What a multiple of the capacity does.

    Attributes:
        goodput_per_s: requests that met the targets, each by itself; over_peak: of the greatest goodput of all factors.
    """

    factor: float
    rate_per_s: float
    goodput_per_s: float
    over_peak: float
    failed_share: float
    refused_share: float  # of the requests, too; the rest of those that failed broke, or came too late
    measured: dict[str, float]
    client_bound: str  # why the client was the bottleneck, as it may be beyond the capacity; "": it was not
    run: str


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; None: not even the smallest load held."""

    targets: tuple[Target, ...]
    rate_per_s: float | None
    users: int | None
    degradation: list[Degradation]
    rate_trials: list[Trial]
    user_trials: list[Trial]


def capacity(
    *,
    out: Annotated[Path, typer.Option(help="Folder for every run, capacity.json and report.html.")],
    slo: Annotated[str, typer.Option(help="Targets in ms: ttft_p99=500,tpot_p99=50,e2e_p95=10000.")],
    url: UrlOption = "localhost:8001",
    model: ModelOption = "ensemble",
    workload: WorkloadOption = None,
    isl: IslOption = None,
    osl: OslOption = None,
    arrivals: Annotated[str, typer.Option(help="constant, poisson, gamma, bursty or diurnal.")] = "poisson",
    start: Annotated[float, typer.Option(help="The first rate that is tried.")] = 1.0,
    trial: Annotated[float, typer.Option(help="Seconds of each trial.")] = 30.0,
    precision: Annotated[float, typer.Option(help="How near the bounds come, as a share.")] = 0.05,
    max_errors: Annotated[float, typer.Option(help="Share of requests that may fail.")] = 0.01,
    without_users: Annotated[bool, typer.Option("--without-users", help="Do not search for users, too.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Of the client.")] = 1,
    tokenizer: TokenizerOption = None,
    seed: SeedOption = 1,
    metrics: MetricsOption = None,
    is_json: JsonOption = False,
) -> None:
    """Find the highest rate and the most users that hold targets, and see how the server degrades beyond.

    Rates are doubled until one does not hold, then the gap is bisected. A rate at which requests in flight keep rising
    does not hold, whatever its latencies. Then once, twice and three times the rate are put on. Every trial is a run's
    folder of its own, so that nothing is lost by Ctrl-C.

    \b
    Examples:
      trireme bench capacity --slo ttft_p99=500,tpot_p99=50 --isl 512 --osl 128 --out capacity
      trireme bench capacity --slo ttft_p95=1s --workload chat.yaml --trial 60 --precision 0.02 --out capacity
    """
    refuse_used(out)
    if (out / "capacity.json").exists():
        raise RequestError(f"{out} holds a search already; name another folder with --out", field="out")
    targets = parse_targets(slo, of_percentiles=True)
    for name, value in (("start", start), ("trial", trial), ("precision", precision)):
        if not value > 0:
            raise RequestError(f"--{name} must be above 0, got {value:g}", field=name, value=value)
    load = Load(
        url=url, model=model, workload=workload_data(chosen_workload(workload, isl=isl, osl=osl)), rate_per_s=start,
        arrivals=arrivals, duration_s=trial, num_processes=processes, seed=seed,
    )  # fmt: skip
    if load.spec().kind == "trace":
        raise RequestError("a trace has one rate; search with another workload", field="workload")
    load.check()
    bench = _Bench(
        with_lengths(load, tokenizer), targets, out, max_error_share=max_errors, metrics=metrics_url(metrics, url)
    )
    found = bench.search(start=start, precision=precision, has_users=not without_users)
    (out / "capacity.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    _write_report(out, bench.shown, targets)
    if is_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _print(found, out)


class _Bench:
    """Trials on one server. `shown`: runs for the report."""

    def __init__(
        self, load: Load, targets: tuple[Target, ...], out: Path, *, max_error_share: float, metrics: str | None
    ) -> None:
        self._load = load
        self._targets = targets
        self._out = out
        self._max_error_share = max_error_share
        self._metrics = metrics
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.shown: list[Run] = []

    def search(self, *, start: float, precision: float, has_users: bool) -> Capacity:
        """Everything."""
        warm_up(self._load, 8)
        rate_trials = search(self._try_rate, start=start, precision=precision)
        best = highest(rate_trials)
        user_trials = []
        if has_users:
            user_trials = search(self._try_users, start=4.0, precision=precision, is_whole=True)
        most = highest(user_trials)
        return Capacity(
            targets=self._targets,
            rate_per_s=best.load if best else None,
            users=round(most.load) if most else None,
            degradation=self._degrade(best.load) if best else [],
            rate_trials=rate_trials,
            user_trials=user_trials,
        )

    def _try_rate(self, rate_per_s: float) -> Trial:
        return self._try(self._at(rate_per_s), rate_per_s, "requests/s", "rate")

    def _at(self, rate_per_s: float) -> Load:
        """A slow rate takes longer: a percentile of a few requests says nothing."""
        duration_s = max(self._load.duration_s or 0.0, _LEAST_REQUESTS / rate_per_s)
        return msgspec.structs.replace(self._load, rate_per_s=rate_per_s, duration_s=duration_s)

    def _try_users(self, users: float) -> Trial:
        num_users = round(users)
        num_processes = min(self._load.num_processes, num_users)
        load = msgspec.structs.replace(self._load, rate_per_s=None, num_users=num_users, num_processes=num_processes)
        return self._try(load, users, "users", "users")

    def _try(self, load: Load, amount: float, unit: str, kind: str) -> Trial:
        run, figures = self._run(load, f"{kind}-{amount:.4g}")
        why_not, measured = judge(run, figures, self._targets, max_error_share=self._max_error_share)
        if why_not and _is_clients_fault(figures, self._targets):
            raise ServerError(
                f"{run.name} did not hold ({why_not}), but the client was the bottleneck, so this says nothing of the "
                f"server: {figures.client.why_bound}; the runs so far are in {self._out}"
            )
        self._console.print(f"{amount:.4g} {unit}: {why_not or 'holds'}", markup=False)
        return Trial(load=amount, why_not=why_not, measured=measured, run=run.name)

    def _degrade(self, rate_per_s: float) -> list[Degradation]:
        each = tuple(msgspec.structs.replace(target, percentile=None) for target in self._targets)
        found = []
        for factor in FACTORS:
            load = msgspec.structs.replace(self._at(factor * rate_per_s), seed=self._load.seed + 7)
            run, _ = self._run(load, f"{factor:g}x")
            self.shown.append(run)
            figures = figures_of(run, targets=each)
            _, measured = judge(run, figures, self._targets, max_error_share=1.0)
            goodput_per_s = figures.goodput.per_s if figures.goodput else 0.0
            self._console.print(f"{factor:g}x: goodput {goodput_per_s:.2f} requests/s", markup=False)
            found.append((factor, figures, goodput_per_s, measured, run.name))
        peak = max(goodput for _, _, goodput, _, _ in found)
        return [
            Degradation(
                factor=factor, rate_per_s=factor * rate_per_s, goodput_per_s=goodput, over_peak=goodput / (peak or 1.0),
                failed_share=figures.error_share, refused_share=figures.refused_share, measured=measured,
                client_bound=figures.client.why_bound, run=name,
            )
            for factor, figures, goodput, measured, name in found
        ]  # fmt: skip

    def _run(self, load: Load, name: str) -> tuple[Run, RunFigures]:
        run = put_on(load, self._out / name, warmup=0, metrics=self._metrics, is_quiet=True)
        if run.info.was_interrupted:
            raise KeyboardInterrupt
        return run, figures_of(run)


def _is_clients_fault(figures: RunFigures, targets: tuple[Target, ...]) -> bool:
    """Whether the client may be why a load did not hold: it had no CPU left, or was late by much of a target."""
    client = figures.client
    is_late = (client.lag_p99_ms or 0.0) > _LATE_SHARE * min(target.limit_ms for target in targets)
    return bool(client.why_bound) and (is_late or (client.cpu_share or 0.0) > CLIENT_BOUND_SHARE)


def _write_report(out: Path, runs: list[Run], targets: tuple[Target, ...]) -> None:
    if not runs:
        return
    each = tuple(msgspec.structs.replace(target, percentile=None) for target in targets)
    document = document_of(runs, title="Once, twice and three times the capacity", targets=each, num_gpus=None)
    (out / "report.html").write_text(html_page(document, runs, has_plots=True), encoding="utf-8")


def _print(found: Capacity, out: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        "no load held the targets; the smallest that was tried: "
        f"{min(trial.load for trial in found.rate_trials):.4g} requests/s"
        if found.rate_per_s is None
        else f"{found.rate_per_s:.4g} requests/s hold the targets"
    )
    if found.users is not None:
        console.print(f"{found.users} users hold them")
    for each in found.degradation:
        figures = ", ".join(f"{name} {value:.1f} ms" for name, value in each.measured.items())
        console.print(
            f"{each.factor:g}x ({each.rate_per_s:.4g}/s): goodput {each.goodput_per_s:.2f}/s, {each.over_peak:.0%} of "
            f"its peak; {each.failed_share:.1%} failed ({each.refused_share:.1%} refused); {figures}"
            + (f"; CLIENT-BOUND: {each.client_bound}" if each.client_bound else ""),
            markup=False,
        )
    console.print(f"kept in {out}: capacity.json, report.html and a folder for each run", markup=False)
