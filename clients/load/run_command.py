# SPDX-License-Identifier: Apache-2.0
"""`trireme bench run`: the built-in load client, open loop or closed, in several processes."""

import contextlib
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from clients.load.load_arguments import (
    IslOption,
    JsonOption,
    MetricsOption,
    ModelOption,
    OslOption,
    OutOption,
    SeedOption,
    TimeoutOption,
    TokenizerOption,
    UrlOption,
    WorkloadOption,
    chosen_workload,
    metrics_url,
    with_lengths,
    workload_data,
)
from clients.load.load_options import Load
from clients.load.load_progress import LoadProgress
from clients.load.processes import run_processes
from clients.load.run_folder import Run, package_version, refuse_used, write_run
from clients.load.run_origin import Origin
from clients.load.server_samples import ServerWatch
from clients.load.summary import print_summary

_WARMUP = 8


def run(
    *,
    out: OutOption,
    url: UrlOption = "localhost:8001",
    model: ModelOption = "ensemble",
    rate: Annotated[float | None, typer.Option(help="Open loop: requests a second, whatever the server does.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: so many users, each waits for its answer.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Requests in all (conversations, where it is those).")] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds in which requests begin.")] = None,
    workload: WorkloadOption = None,
    isl: IslOption = None,
    osl: OslOption = None,
    prompt: Annotated[str | None, typer.Option(help="Ask this, again and again; --osl is its max_tokens.")] = None,
    arrivals: Annotated[
        str, typer.Option(help="With --rate: constant, poisson, gamma, bursty or diurnal.")
    ] = "poisson",
    burstiness: Annotated[
        float, typer.Option(help="With gamma: 1 is poisson, below comes in bursts, above more evenly.")
    ] = 1.0,
    period: Annotated[float, typer.Option(help="With diurnal: seconds of a day.")] = 86_400.0,
    processes: Annotated[int, typer.Option(help="Of the client; more where it is marked as the bottleneck.")] = 1,
    retries: Annotated[int, typer.Option(min=0, help="Of a refused request, after the time that it is told.")] = 0,
    timeout: TimeoutOption = None,
    warmup: Annotated[int, typer.Option(min=0, help="Requests before, which are not counted.")] = _WARMUP,
    tokenizer: TokenizerOption = None,
    seed: SeedOption = 1,
    metrics: MetricsOption = None,
    is_json: JsonOption = False,
) -> None:
    """Put a load on a running server and keep every request of it.

    An open loop (--rate) sends requests when they are due, and counts their latency from then: a slow server cannot
    make its load lighter. A closed loop (--concurrency) has so many users who wait. Ctrl-C ends it and keeps what was
    found.

    \b
    Examples:
      trireme bench run --rate 5 --duration 60 --isl 512 --osl 128 --out runs/rate-5
      trireme bench run --concurrency 16 --requests 200 --out runs/users-16
      trireme bench run --rate 20 --arrivals bursty --duration 120 --workload chat.yaml --processes 2 --out runs/bursts
      trireme bench report runs/* --out report.html

    \b
    Exit codes: 0 done; 1 the server failed; 2 an option is wrong or no server answers; 130 Ctrl-C.
    """
    refuse_used(out)
    load = Load(
        url=url,
        model=model,
        workload=workload_data(chosen_workload(workload, isl=isl, osl=osl, prompt=prompt)),
        rate_per_s=rate,
        num_users=concurrency,
        arrivals=arrivals,
        burstiness=burstiness,
        period_s=period,
        num_requests=requests,
        duration_s=duration,
        timeout_s=timeout,
        num_retries=retries,
        num_processes=min(processes, concurrency or processes),
        seed=seed,
    )
    load.check()
    load = with_lengths(load, tokenizer)
    found = put_on(load, out, warmup=warmup, metrics=metrics_url(metrics, url), is_quiet=is_json)
    print_summary(found, is_json=is_json)
    if found.info.was_interrupted:
        raise KeyboardInterrupt


def put_on(load: Load, out: Path, *, warmup: int, metrics: str | None, is_quiet: bool = False) -> Run:
    """Warm the server up, put the load on it, and write the run's folder.

    Raises:
        Unavailable: no server takes requests there.
        ServerError: a process of the client died.
    """
    origin = Origin.here()
    if warmup:
        warm_up(load, warmup)
    watches = contextlib.ExitStack()
    watched: list[ServerWatch] = []

    def began(start_ns: int, num_sessions: int | None) -> None:
        progress.begin(num_sessions)
        if metrics is not None:
            watched.append(watches.enter_context(ServerWatch(metrics, start_ns=start_ns)))

    with LoadProgress(load, is_quiet=is_quiet) as progress, watches:
        outcome = run_processes(load, began=began, told=progress.tell)
    samples = watched[0].samples if watched else []
    info = origin.info(load, tool=f"trireme {package_version('trireme')}", warmup=warmup)
    info.cpu, info.was_interrupted = outcome.cpu, outcome.was_interrupted
    info.metrics_failure = watched[0].failure if watched else "not read"
    write_run(out, info, outcome.records, samples)
    return Run(path=out, info=info, records=outcome.records, samples=samples)


def warm_up(load: Load, num_requests: int) -> None:
    """The same kind of requests, others than those that are measured, a few at a time."""
    changes = {"rate_per_s": None, "num_users": min(num_requests, load.num_users or _WARMUP), "duration_s": None}
    warm = msgspec.structs.replace(
        load, **changes, num_requests=num_requests, num_processes=1, seed=load.seed + 1_000_003
    )
    if run_processes(warm).was_interrupted:
        raise KeyboardInterrupt
