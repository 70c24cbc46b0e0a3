# SPDX-License-Identifier: Apache-2.0
"""The command `trireme bench capacity`: the load that a server takes within its targets, and what 2 and 3 times do."""

import importlib.util
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from clients.access import Access
from clients.access_options import with_access
from clients.load import load_arguments as options
from clients.load.capacity.capacity_found import FILE, Capacity
from clients.load.capacity.capacity_trials import LEAST_REQUESTS, LEAST_ROUNDS, Bench
from clients.load.load_options import MOST_PLANNED, Load
from clients.load_report.bench_report_command import report
from clients.load_report.slo import parse_targets
from clients.load_run.run_folder import refuse_used
from trireme.base.errors import RequestError, SpecError
from trireme.base.extras import how_to_install

_MAX_RATE_PER_S = 1_000_000
_MAX_TRIAL_S = 86_400


@with_access
def capacity(
    *,
    out: Annotated[Path, typer.Option(help="Folder for every run, capacity.json and report.html.")],
    slo: Annotated[str, typer.Option(help="Targets in ms: ttft_p99=500,tpot_p99=50,e2e_p95=10000.")],
    url: options.UrlOption = "localhost:8001",
    model: options.ModelOption = "ensemble",
    workload: options.WorkloadOption = None,
    isl: options.IslOption = None,
    osl: options.OslOption = None,
    arrivals: Annotated[str, typer.Option(help="constant, poisson, gamma, bursty or diurnal.")] = "poisson",
    start: Annotated[float, typer.Option(help="First rate that is tried, in requests a second.")] = 1.0,
    trial: Annotated[
        float,
        typer.Option(
            help=f"Seconds of each trial, or as many as {LEAST_REQUESTS} requests take, or {LEAST_ROUNDS} of each user."
        ),
    ] = 30.0,
    precision: Annotated[
        float, typer.Option(help="How near the highest load that holds and the lowest that does not come, as a share.")
    ] = 0.05,
    max_errors: Annotated[float, typer.Option(help="Share of requests that may fail.")] = 0.01,
    without_users: Annotated[
        bool, typer.Option("--without-users", help="Search for the rate alone, not for users, too.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Processes of the client.")] = 1,
    tokenizer: options.TokenizerOption = None,
    seed: options.SeedOption = 1,
    metrics: options.MetricsOption = None,
    is_json: options.JsonOption = False,
    access: Access,
) -> None:
    """Find the highest rate and the most users that hold targets, and see how the server degrades beyond.

    First one user is alone: what that user does not get, none does at any load. Then rates are doubled until one does
    not hold, and the gap is bisected. A rate at which requests in flight keep rising does not hold, whatever its
    latencies. A near miss (less than twice a target) counts when it comes in two of three trials. Then once, twice and
    three times the rate are put on. Every trial is a run's folder of its own, and capacity.json is written after each:
    nothing is lost by Ctrl-C.

    \b
    Examples:
      trireme bench capacity --slo ttft_p99=500,tpot_p99=50 --isl 512 --osl 128 --out capacity
      trireme bench capacity --slo ttft_p95=1s --workload chat.yaml --trial 60 --precision 0.02 --out capacity
    """
    _refuse_searched(out)
    targets = parse_targets(slo, of_percentiles=True)
    for name, value, is_allowed, allowed in (
        ("start", start, 0 < start <= _MAX_RATE_PER_S, f"above 0 and at most {_MAX_RATE_PER_S:,} requests/s"),
        ("trial", trial, 0 < trial <= _MAX_TRIAL_S, f"above 0 and at most {_MAX_TRIAL_S:,} s"),
        ("precision", precision, 0 < precision < 1, "a share between 0 and 1, such as 0.05"),
        ("max-errors", max_errors, 0 <= max_errors < 1, "a share from 0 to below 1, such as 0.01"),
    ):
        if not is_allowed:
            raise RequestError(f"--{name} must be {allowed}, got {value:g}", field=name, value=value)
    if start * trial > MOST_PLANNED:
        raise RequestError(
            f"--start {start:g} for --trial {trial:g} s is more than {MOST_PLANNED} requests, which are planned before "
            "a trial: give a lower one of them",
            field="start",
            value=start,
        )
    load = Load(
        url=url, access=access, model=model,
        workload=options.chosen_workload(workload, isl=isl, osl=osl), rate_per_s=start,
        arrivals=arrivals, duration_s=trial, num_processes=processes, seed=seed,
    )  # fmt: skip
    if load.spec().kind == "trace":
        raise RequestError("a trace has one rate; search with another workload", field="workload")
    load = options.checked(load, tokenizer)
    metrics = options.metrics_url(metrics, url, access)
    bench = Bench(load, targets, out, max_error_share=max_errors, metrics=metrics)
    try:
        bench.search(start=start, precision=precision, has_users=not without_users)
    finally:  # also of a search that Ctrl-C or an error ended
        if bench.found.is_whole or bench.found.rate_trials:
            _show(bench.found, out, is_json=is_json)
    kept = [FILE, *(["report.html"] if _write_report(out, bench.found) else []), "a folder for each run"]
    if not is_json:
        typer.echo(f"kept in {out}: {', '.join(kept[:-1])} and {kept[-1]}")


def _refuse_searched(out: Path) -> None:
    """Raise a SpecError where the folder holds a run, or the runs of a search, maybe of an unfinished one."""
    refuse_used(out)
    if (out / FILE).exists() or any(out.glob("*/run.json")):
        raise SpecError(
            f"{out} holds the runs of a search already; name another folder with --out, or remove it", field="out"
        )


def _write_report(out: Path, found: Capacity) -> bool:
    """Write the report on the multiples of the rate, and return whether there are any.

    Pictures are in it where the package that draws them is installed.
    """
    if not (runs := [out / each.run for each in found.degradation if each.run]):
        return False
    has_plots = importlib.util.find_spec("matplotlib") is not None
    if not has_plots:
        typer.echo(f"report.html has no pictures: they need matplotlib ({how_to_install('plot')})", err=True)
    slo = ",".join(f"{target.metric}={target.limit_ms:.9f}" for target in found.targets)
    title = "Once, twice and three times the capacity"
    report(runs, out=[out / "report.html"], slo=slo, title=title, no_plots=not has_plots)
    return True


def _show(found: Capacity, out: Path, *, is_json: bool) -> None:
    if is_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    console = Console(highlight=False, soft_wrap=True)
    if not found.is_whole:
        console.print(f"the search did not come to its end; {out / FILE} has what was found so far:", markup=False)
    if found.why_none:
        console.print(f"no load can hold the targets: one user alone gets {found.why_none}", markup=False)
    elif found.rate_per_s is None:
        least = min(trial.load for trial in found.rate_trials)
        console.print(f"no rate held the targets; the smallest that was tried: {least:.4g} requests/s")
    else:
        console.print(f"{found.rate_per_s:.4g} requests/s hold the targets")
    if found.users is not None:
        console.print(f"{found.users} users hold them")
    for doubt in found.doubts:
        console.print(
            f"DOUBTFUL: {doubt}; the server or the machine wavers: search again with a longer --trial", markup=False
        )
    for each in found.degradation:
        figures = ", ".join(f"{name} {value:.1f} ms" for name, value in each.measured.items())
        of = f"of {each.num_requests} requests"
        if each.goodput_interval is not None:
            of = f"95 % {each.goodput_interval.low:.2f} to {each.goodput_interval.high:.2f}, {of}"
        holds = f"does not hold: {each.why_not}" if each.why_not else "holds"
        console.print(
            f"{each.factor:g}x ({each.rate_per_s:.4g}/s): {holds}; goodput "
            f"{each.goodput_per_s:.2f}/s ({of}), {each.over_peak:.0%} of its peak; {each.failed_share:.1%} failed "
            f"({each.refused_share:.1%} refused); {figures}"
            + (f"; CLIENT-BOUND: {each.client_bound}" if each.client_bound else ""),
            markup=False,
        )
