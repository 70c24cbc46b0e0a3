# SPDX-License-Identifier: Apache-2.0
"""The options of `trireme serve` for the control over HTTPS (`control_api`), and their check before anything starts."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from serving.supervisor.control_api import check_control_access
from trireme.base.errors import RequestError, SpecError
from trireme.base.http_servers.http_access import HttpAccess

HERE = "127.0.0.1"

RemoteHostOption = Annotated[
    str | None,
    typer.Option(help="Address of --remote-port; another one than this machine's own needs TLS.", show_default=HERE),
]
RemotePortOption = Annotated[
    int | None,
    typer.Option(
        help="Port on which rollouts on other machines control this server (`trireme rollout start --server URL`).",
        min=1,
        max=65535,
        show_default="none",
    ),
]
RemoteCertOption = Annotated[
    Path | None, typer.Option(help="PEM file of the certificate of --remote-port, with its chain.")
]
RemoteKeyOption = Annotated[Path | None, typer.Option(help="PEM file of that certificate's private key.")]
RemoteTokenOption = Annotated[
    Path | None,
    typer.Option(
        help="File of keys, one a line, without which nobody is answered on --remote-port. Read again when it changes."
    ),
]


class RemoteAddress(NamedTuple):
    """The address of the control, and its access."""

    host: str
    port: int
    access: HttpAccess


def remote_address(
    host: str | None, port: int | None, access: HttpAccess, *, taken: Collection[int]
) -> RemoteAddress | None:
    """Return the address that the options name; None: there is no control over HTTPS.

    Args:
        taken: the server's other ports.

    Raises:
        RequestError: an option lacks another one, without which it has no effect or lets strangers in.
        SpecError: the port is another one's, or a file cannot be used.
    """
    if port is None:
        given = {"host": host, "cert_file": access.cert_file, "key_file": access.key_file}
        for name, value in {**given, "token_file": access.token_file}.items():
            if value is not None:
                raise RequestError(
                    f"--remote-{name.replace('_', '-')} is for --remote-port; give that, or leave it out",
                    field=f"remote_{name}",
                )
        return None
    if port in taken:
        raise SpecError(
            f"--remote-port {port} is another port of this server ({', '.join(map(str, taken))}); name another",
            field="remote_port",
            value=port,
        )
    check_control_access(host or HERE, access)
    return RemoteAddress(host or HERE, port, access)
