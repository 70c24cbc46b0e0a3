# SPDX-License-Identifier: Apache-2.0
"""The loop that drives a rollout to its end: the plan's servers, the API that clients ask, the controller's ticks."""

import contextlib
import time
from collections.abc import Sequence

import typer

from clients.rollout.api_access import check_access
from clients.rollout.controller import Controller, Server
from clients.rollout.judging.judges import judge_of
from clients.rollout.records.rollout_plan import Plan, SplitBy, read_plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.records.store import Store
from clients.rollout.replicas import AnyServer, server_of
from clients.rollout.rollout_api import RolloutApi
from clients.rollout.server_controls import ServerControls
from clients.rollout.server_place import ServerPlace
from clients.rollout.server_split import ServerSplit, SplittingServer
from clients.rollout.steering import Steering
from clients.rollout.two_servers import TwoServers
from clients.rollout.weights.named_weights import weights_named
from clients.rollout.weights.part_of_two import PartOfTwo
from clients.rollout.weights.router import Router
from trireme.base.errors import Unavailable
from trireme.base.http_servers.http_access import HttpAccess
from trireme.base.store_place import StorePlace

_TICK_S = 0.5


def drive(
    kept: Store,
    place: StorePlace,
    rollout: Rollout,
    controls: Sequence[ServerControls],
    *,
    host: str,
    port: int,
    access: HttpAccess,
) -> None:
    """Drive a rollout until it is over; exit 1 if it was rolled back.

    Args:
        place: of the store.
        controls: of the server, or of the first and the second one; they steer them.
        host, port: where clients ask; port 0: any free port.
        access: the certificate and the keys there.

    Raises:
        SpecError: nobody can listen on that host and port, or a file of the access cannot be used.
        RequestError: strangers could decide the rollout from that host.
    """
    plan = read_plan(rollout.plan)
    check_access(access, host, plan)
    judge = judge_of(plan)
    servers = [server_of(each, rollout.model) for each in controls]
    prefix = _prefix(servers[0])
    server = _server(plan, servers)
    controller = Controller(kept, rollout.id, server, judge, steering=_steering(plan, rollout.id), tell=tell)
    api = RolloutApi(place, rollout.id, prefix, judge.merge, host=host, port=port, access=access)
    with contextlib.closing(api), contextlib.ExitStack() as held:
        if splitting := _splitting(plan, servers):
            held.enter_context(contextlib.closing(ServerSplit(place, rollout.id, splitting, judge, tell=tell)))
        tell(f"rollout {rollout.id}: {_who_splits(plan, api.url)}")
        try:
            while not (rollout := controller.tick()).phase.is_over:
                time.sleep(_TICK_S)
        except KeyboardInterrupt:
            tell(
                f"rollout {rollout.id} is still {rollout.phase}, and nobody drives it: {_without_us(plan)}; "
                "`trireme rollout run` goes on"
            )
            raise
    if rollout.phase is Phase.ROLLED_BACK:
        raise typer.Exit(1)


def server_at(place: ServerPlace, model: str | None) -> AnyServer:
    """Return the server at a place."""
    return server_of(place.controls(tell), model)


def tell(line: str) -> None:
    """Print a line on standard error."""
    typer.echo(line, err=True)


def _server(plan: Plan, servers: Sequence[AnyServer]) -> Server:
    if not plan.second_server:
        [only] = servers
        return only
    first, second = servers
    return TwoServers(first, second, plan.home_release, plan.home_stable, drain_timeout_s=plan.drain_timeout_s)


def _steering(plan: Plan, number: int) -> Steering | None:
    """Return the router of a plan; wait while its weights cannot be read. None: there is none."""
    message = ""
    while plan.weights:
        try:
            return Router(weights_named(plan), plan, number, tell=tell)
        except Unavailable as exc:
            if exc.message != message:
                tell(f"waiting for {plan.weights}: {exc.message}")
            message = exc.message
            time.sleep(_TICK_S)
    return None


def _splitting(plan: Plan, servers: Sequence[AnyServer]) -> list[SplittingServer]:
    match plan.split_by:
        case SplitBy.SERVER:
            return [each for server in servers for each in server.parts]
        case SplitBy.ROUTER:
            both = zip(servers, (plan.stable, plan.candidate), strict=True)
            return [PartOfTwo(each, release) for server, release in both for each in server.parts]
    return []


def _who_splits(plan: Plan, url: str) -> str:
    match plan.split_by:
        case SplitBy.SERVER:
            return "the server splits"
        case SplitBy.ROUTER:
            return f"{plan.weights} splits, by weights that this process moves"
    return f"clients ask {url}/split"


def _without_us(plan: Plan) -> str:
    if plan.split_by is SplitBy.ROUTER:
        return f"the weights of {plan.weights} stay as they are"
    return f"all requests go to the stable release within {plan.lease_s:g} s"


def _prefix(server: AnyServer) -> str:
    """Return the prefix of a server's model names; wait while the server is away."""
    message = ""
    while True:
        try:
            return str(server.parts[0].status()["prefix"])
        except Unavailable as exc:
            if exc.message != message:
                tell(f"waiting for the server: {exc.message}")
            message = exc.message
            time.sleep(_TICK_S)
