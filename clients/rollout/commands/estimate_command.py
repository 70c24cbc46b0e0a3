# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout estimate`: what a rollout would take, with the traffic that there has been."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from clients.rollout.choice import JsonOption
from clients.rollout.drive import server_at, tell
from clients.rollout.estimate.seen_traffic import SeenTraffic, Unknown, of_prometheus, of_server
from clients.rollout.estimate.verdict_estimate import estimate as estimate_of
from clients.rollout.estimate.verdict_estimate import lines
from clients.rollout.planning import gate_settings
from clients.rollout.records.rollout_plan import Mode, Plan, check_plan, read_steps
from clients.rollout.server_place import ServerCaOption, ServerOrAddressOption, ServerTokenOption, server_place
from trireme.base.errors import RequestError, Unavailable

PrometheusOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A Prometheus that has the server's metrics of the last day.",
        show_default="the server's own metrics, since it started",
    ),
]
MatchOption = Annotated[
    str,
    typer.Option(metavar="MATCHERS", help="With --prometheus: labels of the server, such as 'namespace=\"chat\"'."),
]


def estimate(
    *,
    steps: Annotated[str, typer.Option(help="Percentages, as of `trireme rollout start`.")] = "1,5,25,50,100",
    step_requests: Annotated[int, typer.Option(min=1, help="Requests of each arm before the next share.")] = 100,
    max_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of each arm after which a rollout is held.", show_default="4000"),
    ] = None,
    gate: Annotated[Path | None, typer.Option(help="YAML file with settings of the gate.")] = None,
    prometheus: PrometheusOption = None,
    match: MatchOption = "",
    model: Annotated[str | None, typer.Option(help="The model, where the server has several.")] = None,
    server: ServerOrAddressOption = None,
    server_ca_file: ServerCaOption = None,
    server_token_file: ServerTokenOption = None,
    is_json: JsonOption = False,
) -> None:
    """Say how many requests and how much time a rollout would take, and what would make the rollout faster.

    \b
    Examples:
      trireme rollout estimate
      trireme rollout estimate --steps 10,50,100 --prometheus http://localhost:9090
      trireme rollout estimate --gate gate.yaml --json
    """
    if match and prometheus is None:
        raise RequestError("--match is for --prometheus; give that, or leave it out", field="match")
    status = server_at(server_place(server, server_ca_file, server_token_file), model).status()
    stable = next(each for each in status["releases"] if each["release"] == status["release"])
    plan = Plan(
        candidate=int(status["release"]),
        stable=int(status["release"]),
        release=stable,
        shares=read_steps(steps, is_whole=True),
        salt="",
        step_requests=step_requests,
        gate=gate_settings(gate, max_requests, stable),
    )
    check_plan(plan)
    try:
        found = estimate_of(plan, seen(status, prometheus, match))
    except Unknown as exc:
        raise Unavailable(f"there is no estimate: {exc}; send the server requests, or name a Prometheus with "
                          "--prometheus", reason="no_traffic") from exc  # fmt: skip
    if is_json:
        typer.echo(msgspec.json.encode(found.document()).decode())
    else:
        typer.echo("\n".join(lines(plan, found)))


def tell_estimate(plan: Plan, status: Mapping[str, Any], prometheus: str | None, match: str) -> None:
    """Print what a rollout takes before it begins, or why nothing can be said of that."""
    if plan.mode is Mode.AB:
        return  # a person ends it
    try:
        found = estimate_of(plan, seen(status, prometheus, match))
    except Unknown as exc:
        tell(f"there is no estimate of how long this takes: {exc}")
        return
    for line in lines(plan, found):
        tell(line)


def seen(status: Mapping[str, Any], prometheus: str | None, match: str) -> SeenTraffic:
    """Return the traffic that a Prometheus, or else the server itself, tells of.

    Raises:
        Unknown: nobody tells, or too little.
    """
    prefix = str(status.get("prefix") or "")
    if prometheus is not None:
        return of_prometheus(prometheus, prefix=prefix, match=match)
    if not status.get("metrics"):
        raise Unknown("the server does not say where its metrics are")
    seconds = max(float(status["served_s"]), 1.0)
    return of_server(str(status["metrics"]), prefix=prefix, seconds=seconds, num_replicas=status.get("num_replicas", 1))
