# SPDX-License-Identifier: Apache-2.0
"""The command `trireme drain`, which is called before a server is told to end, such as by a pod's preStop hook."""

import json
from typing import Annotated

import typer

from clients.server_control import ServerControl
from clients.server_folder import ServerOption, server_folder
from trireme.base.unix_socket import CONTROL_SOCKET

_WORDS = {
    "finished": "drained: every stream came to its end",
    "cut": "drained: some streams took longer than --exit-timeout-s of `trireme serve`, and were ended with an error",
    "nothing": "drained: it was not serving, and will not",
}


def drain(
    *,
    server: ServerOption = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Have a server on this machine finish its streams, as SIGTERM would, and wait until none runs any more.

    It says that it is not ready, takes requests for another `--exit-delay-s`, refuses them from then on, and ends what
    runs longer than `--exit-timeout-s`; both are options of `trireme serve`. Its process stays until SIGTERM. A server
    that is being loaded has nothing to drain; it does not become ready any more. Ctrl-C ends only the waiting.

    \b
    Examples:
      trireme drain
      trireme drain --server build/demo_cpu --json

    \b
    Exit codes: 0 no stream runs any more; 1 the server failed or ended meanwhile; 2 there is none here.
    """
    control = ServerControl(server_folder(server) / CONTROL_SOCKET, tell=lambda line: typer.echo(line, err=True))
    done = control.ask("drain")
    outcome = str(done["outcome"])
    typer.echo(json.dumps({"outcome": outcome}) if is_json else _WORDS.get(outcome, outcome))
