# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout run`, which goes on with a rollout that lost its process."""

from typing import Annotated

import typer

from clients.rollout.api_access import access_of
from clients.rollout.choice import StoreOption, alone_on, open_rollout, store_of
from clients.rollout.commands.api_options import CertOption, KeyOption, TokenOption
from clients.rollout.drive import drive
from clients.rollout.records.rollout_plan import read_plan
from clients.rollout.records.store import Store
from clients.server_folder import ServerOption, server_folder
from trireme.base.errors import SpecError
from trireme.base.http_access import HttpAccess


def run(
    *,
    server: ServerOption = None,
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
) -> None:
    """Go on with a rollout that lost its process, from where it was.

    \b
    Examples:
      trireme rollout run
      trireme rollout run --server build/demo_cpu
    """
    folder = server_folder(server)
    path = store_of(folder, store)
    if not path.exists():
        raise SpecError(f"there is no store of rollouts {path}; name it with --store", field="store")
    with alone_on(folder, path), Store(path) as kept:
        rollout = open_rollout(kept, None)
        plan = read_plan(rollout.plan)
        drive(
            kept,
            path,
            rollout,
            folder,
            host=host or plan.host,
            port=plan.port if port is None else port,
            access=HttpAccess(cert_file, key_file, token_file).over(access_of(plan)),
        )
