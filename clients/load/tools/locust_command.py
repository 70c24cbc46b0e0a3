# SPDX-License-Identifier: Apache-2.0
"""The command `trireme bench locust`: Locust's users on a workload of ours; its records become the run of any tool."""

import asyncio
import os
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from clients.access import Access
from clients.access_options import with_access
from clients.load import load_arguments as options
from clients.load.load_options import Load
from clients.load.openai.openai_stream import is_openai_url
from clients.load.run_command import warm_up
from clients.load.run_origin import run_info
from clients.load.tools import locust_messages
from clients.load.tools.locust_messages import LocustFound, LocustLoad
from clients.load.tools.tool_run import ToolRun, find_tool, keep_run, run_tool
from clients.load_report.summary import print_summary
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import LoadRecord
from clients.load_run.run_folder import Run, refuse_used
from trireme.base.errors import RequestError, ServerError
from trireme.base.extras import how_to_install
from trireme.base.known_types import known
from trireme.base.project_files import CODE_ROOT

_FILE = Path(__file__).with_name("locustfile.py")
_PLACE = "bench/bin/locust"
_HOW = f"`python3 scripts/bootstrap.py --only bench` in a checkout installs it, or `{how_to_install('bench')}` here"
_STOP_S = 120  # for answers to end, once the time is over


@with_access
def locust(
    *,
    out: options.OutOption,
    users: Annotated[int, typer.Option(min=1, help="Number of users, each of whom waits for the answer.")],
    duration: Annotated[float | None, typer.Option(help="Seconds in which requests begin.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests in all.")] = None,
    url: options.UrlOption = "localhost:8001",
    model: options.ModelOption = "ensemble",
    workload: options.WorkloadOption = None,
    isl: options.IslOption = None,
    osl: options.OslOption = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes of Locust's that share the users.")] = 1,
    web: Annotated[
        bool, typer.Option("--web", help="Show Locust's page, and wait there for somebody to start the load.")
    ] = False,
    timeout: options.TimeoutOption = None,
    warmup: options.WarmupOption = 8,
    tokenizer: options.TokenizerOption = None,
    seed: options.SeedOption = 1,
    metrics: options.MetricsOption = None,
    binary: options.BinaryOption = None,
    is_json: options.JsonOption = False,
    more: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="More options of Locust's.")] = None,
    access: Access,
) -> None:
    """Put a load on a running server with Locust's users, and keep every request of it.

    Locust shows TTFT, TPOT and E2E as lines of their own. With `-- --master --expect-workers 2` it waits for workers
    on other machines, which know only this one: `locust -f clients/load/tools/locustfile.py --worker --master-host
    HERE`. Ctrl-C ends it, also from Locust's page, and keeps what was found.

    \b
    Examples:
      trireme bench locust --users 16 --duration 30 --out runs/locust-16
      trireme bench locust --users 200 --duration 60 --workers 4 --workload chat.yaml --out runs/locust-200
      trireme bench locust --url http://localhost:8080/v1 --model llama --users 8 --requests 100 --out runs/openai
      trireme bench locust --users 16 --duration 60 --web --out runs/by-hand -- --web-port 8090
    """
    refuse_used(out)
    program = find_tool("locust", _PLACE, given=binary, how=_HOW)
    load = Load(
        url=url, access=access, model=model,
        workload=options.chosen_workload(workload, isl=isl, osl=osl), num_users=users,
        num_requests=requests, duration_s=duration, timeout_s=timeout, num_processes=min(workers, users), seed=seed,
    )  # fmt: skip
    if load.spec().kind == "trace":
        raise RequestError(
            "Locust's users wait for their answers, so they cannot play a trace; `trireme bench run` can",
            field="workload",
        )
    load = options.checked(load, tokenizer)
    metrics = options.metrics_url(metrics, url, access)
    run = measure(load, out, program, warmup=warmup, metrics=metrics, is_web=web, more=more or [])
    print_summary(run, is_json=is_json)
    if run.info.was_interrupted:
        raise KeyboardInterrupt


def measure(
    load: Load, out: Path, program: Path, *, warmup: int, metrics: str | None, is_web: bool, more: list[str]
) -> Run:
    """Run Locust and write the run's folder.

    Raises:
        ServerError: it failed, or no request of it ended.
    """
    info = run_info(load, tool="locust", warmup=warmup)
    if warmup:
        warm_up(load, warmup)
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as name:
        folder = Path(name)
        counts_each = is_openai_url(load.url) and _takes_counts(load)
        locust_load = LocustLoad(load, counts_each=counts_each)
        (folder / "load.json").write_bytes(msgspec.json.encode(locust_load))
        env = {
            locust_messages.LOAD_VARIABLE: str(folder / "load.json"),
            locust_messages.RECORDS_VARIABLE: str(folder / "records.json"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CODE_ROOT), os.environ.get("PYTHONPATH", "")])),
        }
        command = [str(program), *_options(load, is_web=is_web), *more]
        found = run_tool(
            command, cwd=folder, env=env, metrics=metrics, access=load.access, what="locust", is_shown=is_web,
            keeps_what_it_has=True,
        )  # fmt: skip
        left = _read(folder / "records.json", found)
    records, found = _from_start(left, found)
    info.tool += f" {left.version}"
    info.commands.append(" ".join(f"{key}={value}" for key, value in env.items()) + " " + shlex.join(command))
    info.was_interrupted = found.was_interrupted and not is_web  # where it is how one leaves the page
    return keep_run(out, info, found, records)


def _takes_counts(load: Load) -> bool:
    from clients.load.openai.openai_client import takes_counts  # noqa: PLC0415  aiohttp, a quarter of a second

    return asyncio.run(takes_counts(load.url, load.model, load.access))


def _options(load: Load, *, is_web: bool) -> list[str]:
    users = str(load.num_users)
    options = ["-f", str(_FILE), "--users", users, "--spawn-rate", users, "--stop-timeout", str(_STOP_S)]
    if load.duration_s is not None:
        options += ["--run-time", f"{load.duration_s:g}s"]
    if load.num_processes > 1:
        options += ["--processes", str(load.num_processes)]
    return options if is_web else [*options, "--headless", "--only-summary", "--exit-code-on-error", "0"]


def _read(path: Path, found: ToolRun) -> LocustFound:
    """Return what Locust's processes left."""
    if not path.exists():
        raise ServerError(f"locust left no records; it said: {found.output[-800:]}")
    left = msgspec.json.decode(path.read_bytes(), type=known(LocustFound))
    if left.failure:
        raise ServerError(f"locust could not go on asking: {left.failure}")
    if not left.records:
        raise ServerError(f"no request of locust's ended; it said: {found.output[-800:]}")
    return left


def _from_start(left: LocustFound, found: ToolRun) -> tuple[list[LoadRecord], ToolRun]:
    """Return Locust's records, and the run with the CPU time of its processes."""
    epoch_ns = found.start_epoch_ns
    for record in left.records:
        record.shift(-epoch_ns)
    cpu = [[CpuSample(each.at_ns - epoch_ns, each.cpu_s) for each in samples] for samples in left.cpu]
    records = sorted(left.records, key=lambda record: record.due_ns)
    return records, found._replace(cpu=cpu)
