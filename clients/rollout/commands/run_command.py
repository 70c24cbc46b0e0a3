# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout run`, which goes on with a rollout that lost its process."""

import signal
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from clients.rollout.api_access import access_of
from clients.rollout.choice import StoreOption, alone_at, driven_store, existing_store, open_rollout, store_of
from clients.rollout.commands.api_options import CertOption, KeyOption, TokenOption
from clients.rollout.drive import drive, tell
from clients.rollout.records.open_database import is_there
from clients.rollout.records.rollout_plan import Plan, read_plan
from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from clients.rollout.server_place import (
    PlannedServerCaOption,
    PlannedServerOption,
    PlannedServerTokenOption,
    SecondServerCaOption,
    SecondServerTokenOption,
    ServerPlace,
    folder_of,
    second_place,
    server_place,
)
from clients.rollout.steering_lease import steering_all
from clients.rollout.waiting import wait_for_rollouts
from trireme.base.errors import RequestError, SpecError
from trireme.base.http_servers.http_access import HttpAccess
from trireme.base.store_place import StorePlace
from trireme.base.unix_socket import CONTROL_SOCKET


def run(
    *,
    server: PlannedServerOption = None,
    server_ca_file: PlannedServerCaOption = None,
    server_token_file: PlannedServerTokenOption = None,
    second_server: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|URL", help="The second server of the rollout.", show_default="as the rollout was started"
        ),
    ] = None,
    second_server_ca_file: SecondServerCaOption = None,
    second_server_token_file: SecondServerTokenOption = None,
    store: StoreOption = None,
    host: Annotated[
        str | None, typer.Option(help="Host on which clients ask for the split.", show_default="as it was started")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port on which clients ask for the split.", show_default="as it was started"
        ),
    ] = None,
    cert_file: CertOption = None,
    key_file: KeyOption = None,
    token_file: TokenOption = None,
    is_waiting: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait for rollouts (`trireme rollout start --leave`), drive each to its end, the oldest first, and "
            "wait for the next. A second such process stands by.",
        ),
    ] = False,
) -> None:
    """Go on with a rollout that lost its process, from where it was.

    \b
    Examples:
      trireme rollout run
      trireme rollout run --server build/demo_cpu
      trireme rollout run --server https://gpu-3:8004 --server-ca-file ca.crt --server-token-file key.txt
      trireme rollout run --store postgresql://rollouts@db:5432/chat
      trireme rollout run --wait --store postgresql://rollouts@db:5432/chat
    """

    def go_on(kept: Store, store_place: StorePlace, rollout: Rollout, place: ServerPlace) -> None:
        plan = read_plan(rollout.plan)
        second = _second_place(second_server, second_server_ca_file, second_server_token_file, plan, place)
        controls = [each.controls(tell) for each in (place, second) if each is not None]
        with steering_all(controls, plan, tell=tell):
            drive(
                kept,
                store_place,
                rollout,
                controls,
                host=host or plan.host,
                port=plan.port if port is None else port,
                access=HttpAccess(cert_file, key_file, token_file).over(access_of(plan)),
            )

    def place_of(rollout: Rollout) -> ServerPlace:
        return _place(server, server_ca_file, server_token_file, read_plan(rollout.plan))

    if is_waiting:
        waited = store_of(None if server is None else folder_of(server), store)

        def go_on_alone(kept: Store, rollout: Rollout) -> None:
            place = place_of(rollout)
            with alone_at(place, waited):
                go_on(kept, waited, rollout, place)

        signal.signal(signal.SIGTERM, _end)  # the first process of a container ends by no signal that it does not take
        wait_for_rollouts(waited, go_on_alone, tell=tell)
    path = _store(server, store)
    with Store(path) as kept:
        place = place_of(open_rollout(kept, None))
    with driven_store(place, path, tell=tell) as kept:
        go_on(kept, path, open_rollout(kept, None), place)


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def _store(server: str | None, store: str | None) -> StorePlace:
    if store is None and server is None:
        found = sorted(Path("build").glob(f"*/{CONTROL_SOCKET}"))
        path = existing_store(None, None) if not found else store_of(None, None)
    else:
        path = store_of(None if server is None else folder_of(server), store)
    if not is_there(path):
        raise SpecError(f"there is no store of rollouts {path}; name it with --store", field="store")
    return path


def _place(server: str | None, ca_file: Path | None, token_file: Path | None, plan: Plan) -> ServerPlace:
    """Return the place that the options name; where they name none, that of the plan."""
    if not plan.server_url or (server is not None and "://" not in server):
        return server_place(server, ca_file, token_file)
    return server_place(
        server or plan.server_url,
        ca_file or (Path(plan.server_ca_file) if plan.server_ca_file else None),
        token_file or Path(plan.server_token_file),
        is_one=not plan.is_replicated,
    )


def _second_place(
    server: str | None, ca_file: Path | None, token_file: Path | None, plan: Plan, first: ServerPlace
) -> ServerPlace | None:
    """Return the place of the second server that the options name, or that of the plan; None: there is none.

    Raises:
        RequestError: they name one, and the rollout has none.
    """
    if not plan.second_server:
        if any((server, ca_file, token_file)):
            raise RequestError(
                "the rollout has no second server, and an option of --second-server is given; leave it out",
                field="second_server",
            )
        return None
    if server is not None and "://" not in server:
        return second_place(server, ca_file, token_file, first)
    return second_place(
        server or plan.second_server,
        ca_file or (Path(plan.second_server_ca_file) if plan.second_server_ca_file else None),
        token_file or (Path(plan.second_server_token_file) if plan.second_server_token_file else None),
        first,
        is_one=not plan.is_second_replicated,
    )
