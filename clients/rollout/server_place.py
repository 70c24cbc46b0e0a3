# SPDX-License-Identifier: Apache-2.0
"""The place of a rollout's server: a folder on this machine, or the address of its control on another one.

A rollout of a server elsewhere has its store in `build/HOST-PORT`, where commands that only read find it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from clients.access import Access
from clients.remote_control import ControlAddress, RemoteControl, control_address
from clients.rollout.local_server import Control
from clients.server_control import ServerControl
from clients.server_folder import server_folder
from trireme.base.errors import RequestError
from trireme.base.unix_socket import CONTROL_SOCKET


def folder_of(server: str) -> Path:
    """Return the folder that a server's rollouts are kept in.

    Raises:
        RequestError: it is an address, and not of a control.
    """
    if not _is_address(server):
        return Path(server)
    return _folder_of(control_address(server))


def _folder_of(address: ControlAddress) -> Path:
    return Path("build") / f"{address.host.replace(':', '_')}-{address.port}"


def _parsed(server: str) -> Path:
    try:
        return folder_of(server)
    except RequestError as exc:
        raise typer.BadParameter(exc.message) from exc


ServerOption = Annotated[
    Path | None,
    typer.Option(
        "--server",
        parser=_parsed,
        metavar="FOLDER|URL",
        envvar="TRIREME_ROLLOUT_SERVER",
        help="The server of the rollout, as `trireme rollout start` was told it, the first of two; none: the only one "
        "here.",
    ),
]


def _server_option(variable: str | None) -> Any:
    return typer.Option(
        "--server",
        metavar="FOLDER|URL",
        envvar=variable,
        help="Folder of the server, build/NAME where it was started, or https://HOST:PORT of its control "
        "(`trireme serve --remote-port`) on another machine; none: the only one here.",
    )


def _ca_option(variable: str | None) -> Any:
    return typer.Option(
        envvar=variable,
        help="With --server https://...: PEM file of the authority of the server's certificate.",
        show_default="the system's authorities",
    )


def _token_option(variable: str | None) -> Any:
    return typer.Option(
        envvar=variable, help="With --server https://...: file with a key of the server's --remote-token-file."
    )


ServerOrAddressOption = Annotated[str | None, _server_option("TRIREME_ROLLOUT_SERVER")]
ServerCaOption = Annotated[Path | None, _ca_option("TRIREME_ROLLOUT_SERVER_CA_FILE")]
ServerTokenOption = Annotated[Path | None, _token_option("TRIREME_ROLLOUT_SERVER_TOKEN_FILE")]
# Of a command that goes on with a rollout: the environment's server may be another one than the rollout's.
PlannedServerOption = Annotated[str | None, _server_option(None)]
PlannedServerCaOption = Annotated[Path | None, _ca_option(None)]
PlannedServerTokenOption = Annotated[Path | None, _token_option(None)]
SecondServerCaOption = Annotated[
    Path | None,
    typer.Option(
        help="With --second-server https://...: PEM file of the authority of the second server's certificate.",
        show_default="--server-ca-file",
    ),
]
SecondServerTokenOption = Annotated[
    Path | None,
    typer.Option(
        help="With --second-server https://...: file with a key of the second server's --remote-token-file.",
        show_default="--server-token-file",
    ),
]


class ServerPlace(NamedTuple):
    """The place of a server.

    Attributes:
        folder: of the server, or of the rollouts of one on another machine.
        url: of the control, on another machine; "": the server is on this one.
        ca_file, token_file: of the access to that control; "": none.
        option: what names the place, for people.
    """

    folder: Path
    url: str = ""
    ca_file: str = ""
    token_file: str = ""
    option: str = "--server"

    @property
    def name(self) -> str:
        """Return the place as an option names it, whatever folder a rollout goes on in."""
        return self.url or str(self.folder.absolute())

    def control(self, tell: Callable[[str], None]) -> Control:
        """Return the control of the server, which tells what the server says meanwhile."""
        if not self.url:
            return ServerControl(self.folder / CONTROL_SOCKET, tell=tell)
        access = Access(
            is_tls=self.url.startswith("https://"),
            ca_file=self.ca_file or None,
            token_file=self.token_file or None,
        )
        return RemoteControl(self.url, access, tell=tell, option=self.option)


def server_place(
    server: str | None, ca_file: Path | None, token_file: Path | None, *, option: str = "--server"
) -> ServerPlace:
    """Return the place that a command's options name.

    Args:
        option: the one that names `server`; those of its access begin like it.

    Raises:
        RequestError: they do not go together, or the address is none.
        SpecError: no server was found (`clients.server_folder.server_folder`).
    """
    field = option.removeprefix("--").replace("-", "_")
    if server is None or not _is_address(server):
        for kind, given in (("ca", ca_file), ("token", token_file)):
            if given is not None:
                raise RequestError(
                    f"{option}-{kind}-file is for {option} https://HOST:PORT; give that, or leave it out",
                    field=f"{field}_{kind}_file",
                )
        return ServerPlace(server_folder(None if server is None else Path(server)), option=option)
    address = control_address(server, option)
    if token_file is None:
        raise RequestError(
            f"{option} {address.url} answers nobody without a key; give {option}-token-file, a file with a key of the "
            "server's --remote-token-file",
            field=f"{field}_token_file",
        )
    if ca_file is not None and not address.is_tls:
        raise RequestError(
            f"{option}-ca-file is for https://, and {option} is {address.url}; leave it out", field=f"{field}_ca_file"
        )
    ca = "" if ca_file is None else str(ca_file.absolute())
    return ServerPlace(_folder_of(address), address.url, ca, str(token_file.absolute()), option)


def second_place(server: str, ca_file: Path | None, token_file: Path | None, first: ServerPlace) -> ServerPlace:
    """Return the place of the second server, to which the first one's authority and key lead where none is named.

    Raises:
        RequestError, SpecError: as `server_place`.
    """
    if _is_address(server):
        if ca_file is None and first.ca_file and server.startswith("https://"):
            ca_file = Path(first.ca_file)
        if token_file is None and first.token_file:
            token_file = Path(first.token_file)
    return server_place(server, ca_file, token_file, option="--second-server")


def _is_address(server: str) -> bool:
    return "://" in server
