# SPDX-License-Identifier: Apache-2.0
"""The command `trireme bench run`: the built-in load client, open loop or closed, in several processes."""

import contextlib
from pathlib import Path
from typing import Annotated, Self

import msgspec
import typer

from clients.access import Access
from clients.access_options import with_access
from clients.load import load_arguments as options
from clients.load.load_options import Load
from clients.load.load_progress import LoadProgress
from clients.load.processes import Outcome, run_processes
from clients.load.run_origin import run_info
from clients.load.worker import GIVE_UP_S
from clients.load_report.summary import print_summary
from clients.load_run.load_record import LoadRecord
from clients.load_run.run_folder import Run, RunFiles, RunInfo, package_version, refuse_used
from clients.load_run.server_samples import ServerSample, ServerWatch
from trireme.base.errors import ServerError

_WARMUP = 8
_GONE_S = 1.0  # nobody answered for so long at the end: not a single connection that was lost


@with_access
def run(
    *,
    out: options.OutOption,
    url: options.UrlOption = "localhost:8001",
    model: options.ModelOption = "ensemble",
    rate: Annotated[float | None, typer.Option(help="Open loop: requests a second, whatever the server does.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: number of users, each of whom waits for the answer.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(help="Requests in all; conversations, where the workload has those.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds in which requests begin.")] = None,
    workload: options.WorkloadOption = None,
    isl: options.IslOption = None,
    osl: options.OslOption = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt to ask again and again; --osl is its max_tokens.")] = None,
    arrivals: Annotated[
        str, typer.Option(help="With --rate: constant, poisson, gamma, bursty or diurnal.")
    ] = "poisson",
    burstiness: Annotated[
        float, typer.Option(help="With --arrivals gamma: 1 is poisson, below comes in bursts, above more evenly.")
    ] = 1.0,
    period: Annotated[float, typer.Option(help="With --arrivals diurnal: seconds of a day.")] = 86_400.0,
    processes: Annotated[
        int, typer.Option(help="Processes of the client; take more where a report marks it as the bottleneck.")
    ] = 1,
    retries: Annotated[
        int, typer.Option(min=0, help="Attempts after a refusal, each after the time that the server names.")
    ] = 0,
    timeout: options.TimeoutOption = None,
    warmup: options.WarmupOption = _WARMUP,
    tokenizer: options.TokenizerOption = None,
    seed: options.SeedOption = 1,
    metrics: options.MetricsOption = None,
    is_json: options.JsonOption = False,
    access: Access,
) -> None:
    """Put a load on a running server and keep every request of it.

    An open loop (--rate) sends requests when they are due, and counts their latency from then: a slow server cannot
    make its load lighter. A closed loop (--concurrency) has so many users who wait. What ends is written as it ends:
    Ctrl-C, SIGTERM and a server that is gone for 10 s end the load and keep it.

    \b
    Examples:
      trireme bench run --rate 5 --duration 60 --isl 512 --osl 128 --out runs/rate-5
      trireme bench run --concurrency 16 --requests 200 --out runs/users-16
      trireme bench run --rate 20 --arrivals bursty --duration 120 --workload chat.yaml --processes 2 --out runs/bursts
      trireme bench report runs/* --out report.html

    \b
    Exit codes: 0 done, even if some requests failed; 1 all failed, the server was gone at the end, or the folder
    could not be written; 2 an option, a certificate or a key is wrong, or no server answers at the start; 130 Ctrl-C
    or SIGTERM.
    """
    refuse_used(out)
    load = Load(
        url=url, access=access, model=model,
        workload=options.chosen_workload(workload, isl=isl, osl=osl, prompt=prompt), rate_per_s=rate,
        num_users=concurrency, arrivals=arrivals, burstiness=burstiness, period_s=period, num_requests=requests,
        duration_s=duration, timeout_s=timeout, num_retries=retries,
        num_processes=min(processes, concurrency or processes), seed=seed,
    )  # fmt: skip
    load = options.checked(load, tokenizer)
    found = put_on(load, out, warmup=warmup, metrics=options.metrics_url(metrics, url, access), is_quiet=is_json)
    if found.records or not found.info.was_interrupted:
        print_summary(found, is_json=is_json)
    if found.info.was_interrupted:
        raise KeyboardInterrupt


class ServerGone(ServerError):
    """An error: nobody answered any more at the end of a load.

    Attributes:
        run: what had ended by then, in its folder.
        was_interrupted: by a signal, at last.
    """

    def __init__(self, run: Run, seconds: float, *, was_interrupted: bool) -> None:
        self.run = run
        self.was_interrupted = was_interrupted
        super().__init__(
            f"no server answers at {run.info.url} since {seconds:.0f} s; what had ended by then is kept: "
            f"trireme bench report {run.path}"
        )


def put_on(load: Load, out: Path, *, warmup: int, metrics: str | None, is_quiet: bool = False) -> Run:
    """Warm the server up, put the load on it, and keep what ends in the run's folder, as it ends.

    Raises:
        Unavailable: no server takes requests there.
        AccessDenied: it is not trusted, or does not accept the client's certificate or key.
        ServerGone: nobody answered any more at the end; what had ended is kept.
        ServerError: a process of the client died; what had ended is kept.
        ServingError: the folder cannot be written.
    """
    info = run_info(load, tool=f"trireme {package_version('trireme')}", warmup=warmup)
    if warmup:
        warm_up(load, warmup)
    with (
        LoadProgress(load, is_quiet=is_quiet) as progress,
        _Keeper(out, info, metrics, load.access, progress) as keeper,
    ):
        outcome = run_processes(load, planned=progress.plan, began=keeper.began, ended=keeper.ended)
        keeper.end(outcome)
    found = Run(path=out, info=info, records=outcome.records, samples=keeper.samples)
    if outcome.unanswered_s >= _GONE_S:
        raise ServerGone(found, outcome.unanswered_s, was_interrupted=outcome.was_interrupted)
    return found


class _Keeper:
    """The writer of a run while it goes on, with the server's metrics; inside a `with`."""

    def __init__(self, out: Path, info: RunInfo, metrics: str | None, access: Access, progress: LoadProgress) -> None:
        self._out = out
        self._access = access
        self._info = info
        self._metrics = metrics
        self._progress = progress
        self._held = contextlib.ExitStack()
        self._watch: ServerWatch | None = None
        self._num_samples = 0  # that are written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def samples(self) -> list[ServerSample]:
        return self._watch.samples if self._watch else []

    def began(self, start_ns: int, num_sessions: int | None) -> None:
        """Open the run's folder; where nobody answers there is no run, so not before."""
        self._progress.begin(num_sessions)
        self._files = self._held.enter_context(RunFiles(self._out, self._info))
        if self._metrics is not None:
            self._watch = self._held.enter_context(ServerWatch(self._metrics, start_ns=start_ns, access=self._access))

    def ended(self, records: list[LoadRecord]) -> None:
        new = self.samples[self._num_samples :]
        self._num_samples += len(new)
        self._files.add(records, new)
        self._progress.tell(records)

    def end(self, outcome: Outcome) -> None:
        self.ended([])
        info = self._info
        info.cpu = outcome.cpu
        info.was_interrupted = outcome.was_interrupted or outcome.unanswered_s >= GIVE_UP_S
        info.unended = outcome.unended
        info.metrics_failure = self._watch.failure if self._watch else "not read"
        if outcome.unanswered_s >= _GONE_S:
            info.note = f"No server answered for the last {outcome.unanswered_s:.0f} s."
        self._files.end(info)


def warm_up(load: Load, num_requests: int) -> None:
    """Send requests of the load's kind, but other ones than those that are measured, a few at a time."""
    changes = {"rate_per_s": None, "num_users": min(num_requests, load.num_users or _WARMUP), "duration_s": None}
    warm = msgspec.structs.replace(
        load, **changes, num_requests=num_requests, num_processes=1, seed=load.seed + 1_000_003
    )
    if run_processes(warm).was_interrupted:
        raise KeyboardInterrupt
