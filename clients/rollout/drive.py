# SPDX-License-Identifier: Apache-2.0
"""The loop that drives a rollout to its end: the plan's servers, the API that clients ask, the controller's ticks."""

import contextlib
import time
from pathlib import Path

import typer

from clients.rollout.api_access import check_access
from clients.rollout.controller import Controller, Server
from clients.rollout.judging.judges import judge_of
from clients.rollout.local_server import LocalServer
from clients.rollout.records.rollout_plan import Plan, SplitBy, read_plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.records.store_place import StorePlace
from clients.rollout.rollout_api import RolloutApi
from clients.rollout.server_place import ServerPlace
from clients.rollout.server_split import ServerSplit
from clients.rollout.two_servers import TwoServers
from trireme.base.errors import Unavailable
from trireme.base.http_access import HttpAccess

_TICK_S = 0.5


def drive(
    kept: Store, place: StorePlace, rollout: Rollout, first: LocalServer, *, host: str, port: int, access: HttpAccess
) -> None:
    """Drive a rollout until it is over; exit 1 if it was rolled back.

    Args:
        place: of the store.
        first: the server, or the first of two.
        host, port: where clients ask; port 0: any free port.
        access: the certificate and the keys there.

    Raises:
        SpecError: nobody can listen on that host and port, or a file of the access cannot be used.
        RequestError: strangers could decide the rollout from that host.
    """
    plan = read_plan(rollout.plan)
    check_access(access, host, plan)
    judge = judge_of(plan)
    prefix = _prefix(first)
    controller = Controller(kept, rollout.id, _servers(plan, first, rollout.model), judge, tell=tell)
    api = RolloutApi(place, rollout.id, prefix, judge.merge, host=host, port=port, access=access)
    with contextlib.closing(api), contextlib.ExitStack() as held:
        if plan.split_by is SplitBy.SERVER:
            held.enter_context(contextlib.closing(ServerSplit(place, rollout.id, first, judge, tell=tell)))
            tell(f"rollout {rollout.id}: the server splits")
        else:
            tell(f"rollout {rollout.id}: clients ask {api.url}/split")
        try:
            while not (rollout := controller.tick()).phase.is_over:
                time.sleep(_TICK_S)
        except KeyboardInterrupt:
            tell(
                f"rollout {rollout.id} is still {rollout.phase}, and nobody drives it: all requests go to the stable "
                f"release within {plan.lease_s:g} s; `trireme rollout run` goes on"
            )
            raise
    if rollout.phase is Phase.ROLLED_BACK:
        raise typer.Exit(1)


def local_server(place: ServerPlace, model: str | None) -> LocalServer:
    """Return the server at a place."""
    return LocalServer(place.control(tell), model)


def tell(line: str) -> None:
    """Print a line on standard error."""
    typer.echo(line, err=True)


def _servers(plan: Plan, first: LocalServer, model: str) -> Server:
    if not plan.second_server:
        return first
    second = local_server(ServerPlace(Path(plan.second_server)), model)
    return TwoServers(first, second, plan.home_release, plan.home_stable, drain_timeout_s=plan.drain_timeout_s)


def _prefix(local: LocalServer) -> str:
    """Return the prefix of a server's model names; wait while the server is away."""
    message = ""
    while True:
        try:
            return str(local.status()["prefix"])
        except Unavailable as exc:
            if exc.message != message:
                tell(f"waiting for the server: {exc.message}")
            message = exc.message
            time.sleep(_TICK_S)
