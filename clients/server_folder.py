# SPDX-License-Identifier: Apache-2.0
"""The choice of the server that a command talks to through its control socket, on the server's machine."""

from pathlib import Path
from typing import Annotated

import typer

from trireme.base.errors import SpecError
from trireme.base.unix_socket import CONTROL_SOCKET

ServerOption = Annotated[
    Path | None,
    typer.Option("--server", help="Folder of the server, build/NAME where it was started; none: the only one here."),
]


def server_folder(server: Path | None) -> Path:
    """Return the folder of the server that is meant: the named one, or the only one that was started here.

    Raises:
        SpecError: there is none, or there are several.
    """
    if server is not None:
        return server
    found = sorted(path.parent for path in Path("build").glob(f"*/{CONTROL_SOCKET}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise SpecError("no server was started in this folder (there is no build/NAME/control.sock); name its folder "
                        "with --server", field="server")  # fmt: skip
    names = ", ".join(str(path) for path in found)
    raise SpecError(f"several servers were started in this folder: {names}; name one with --server", field="server")
