# SPDX-License-Identifier: Apache-2.0
"""`trireme observe`: Prometheus and Alertmanager beside a running server, and the files that they read."""

import json
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from ensemble_configs.spec.deployment import load_deployment
from observability.local_prometheus import FILES, LocalPrometheus
from observability.rules.objectives import Objectives, objectives_of
from observability.rules.rule_files import RUNBOOKS
from serving.telemetry.cpu_bandwidth import keep_bandwidth, measure_bandwidth
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install
from trireme.base.path_checks import check_folder_to_write


def run(
    metrics_url: Annotated[
        list[str] | None, typer.Option(help="host:port of a server's metrics; repeat it for more. [localhost:8002]")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of Prometheus.", min=1, max=65535)] = 9090,
    alertmanager_port: Annotated[int, typer.Option(help="Port of Alertmanager.", min=1, max=65535)] = 9093,
    folder: Annotated[Path, typer.Option(help="Folder for data and logs.")] = Path("build/observe"),
    is_fast: Annotated[bool, typer.Option("--fast", help="Each minute of the rules takes a second.")] = False,
) -> None:
    """Start Prometheus and Alertmanager with the project's rules; Ctrl-C stops them.

    Examples:

      trireme observe run

      trireme observe run --metrics-url localhost:8002 --metrics-url localhost:9002
    """
    check_folder_to_write("--folder", folder)
    if port == alertmanager_port:
        raise SpecError(f"--alertmanager-port {port} is --port, too; name another one", field="alertmanager_port")
    targets = [_address(url) for url in metrics_url or ["localhost:8002"]]
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    ports = (port, alertmanager_port)
    with LocalPrometheus(folder, {"trireme": targets}, ports=ports, is_fast=is_fast) as prometheus:
        typer.echo(f"prometheus    {prometheus.url}   scrapes {', '.join(targets)}")
        typer.echo(f"alertmanager  {prometheus.alertmanager_url}")
        typer.echo(f"dashboards    {FILES / 'dashboards'}, for Grafana to import")
        typer.echo("Ctrl-C stops them")
        stopped.wait()


def files(
    deployment: Annotated[
        Path | None, typer.Option(help="Deployment file; its slo sets the targets. [none: the project's defaults]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to. [none: the chart's folder]")] = None,
    runbooks_url: Annotated[str, typer.Option(help="URL of docs/runbooks/alerts.md.")] = RUNBOOKS,
) -> None:
    """Write rules and dashboards, and the rules' tests beside them.

    The tests' data is made for the default targets; for others the rules come without tests.

    Examples:

      trireme observe files

      trireme observe files --deployment mine.yaml --out build/observability

      trireme observe files --out build/observability --runbooks-url https://wiki.example/runbooks
    """
    if deployment is not None and out is None:
        raise SpecError("--deployment needs --out: helm/trireme/files has the defaults", field="out")
    folder = out or FILES
    check_folder_to_write("--out", folder)
    for name, text in generated_files(_objectives(deployment), runbooks=runbooks_url).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text)
        typer.echo(folder / name)


def bandwidth(
    is_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure how fast this machine reads memory, for the MBU of engines on the CPU; half a second on an idle machine.

    The result is kept in the user's cache folder for engines that are started with as many cores; for fewer
    (placement.cpus), run the command under taskset.

    Examples:

      trireme observe bandwidth

      taskset -c 0-7 trireme observe bandwidth --json
    """
    found = measure_bandwidth()
    file = keep_bandwidth(found)
    if is_json:
        typer.echo(json.dumps({"bandwidth_bytes_per_s": round(found), "kept_in": str(file)}, indent=2))
    else:
        typer.echo(f"{found / 1e9:.1f} GB/s with all usable cores; kept in {file}, read when an engine starts")


def generated_files(objectives: Objectives, *, runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Return the text of every generated file, by its path below helm/trireme/files.

    Raises:
        SpecError: the library that writes dashboards is not installed.
    """
    try:
        from observability.dashboards.panels import dashboard_json, dashboards  # noqa: PLC0415  a dev dependency
    except ModuleNotFoundError as exc:
        raise SpecError(
            f"dashboards need {exc.name}, which is not installed; {how_to_install('dev')}", field="out", extra="dev"
        ) from exc
    from observability.files import rule_files  # noqa: PLC0415

    boards = {f"dashboards/{name}.json": dashboard_json(board) for name, board in dashboards(objectives).items()}
    return rule_files(objectives, runbooks=runbooks) | boards


def _objectives(deployment: Path | None) -> Objectives:
    """Return the targets of a deployment, or the project's defaults without one.

    Raises:
        SpecError: its models have different targets, and there is one set of thresholds.
    """
    if deployment is None:
        return Objectives()
    targets = {objectives_of(model.slo) for model in load_deployment(deployment).models}
    if len(targets) > 1:
        raise SpecError(
            f"the models of {deployment} have different slo, and the rules have one; write them for one model at a "
            "time, or give all the same slo",
            field="slo",
            file=deployment,
        )
    return targets.pop()


def _address(url: str) -> str:
    """Return `host:port` of a metrics URL.

    Raises:
        SpecError: the URL is not host:port.
    """
    address = url.removeprefix("http://").removesuffix("/metrics").rstrip("/")
    _, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise SpecError(f"--metrics-url {url!r} is not host:port, as in localhost:8002", field="metrics_url", value=url)
    return address
