# SPDX-License-Identifier: Apache-2.0
"""The place of a rollout's server: a folder on this machine, or the address of its control on another one.

A rollout of a server elsewhere has its store in `build/HOST-PORT`, where commands that only read find it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from clients.access import Access
from clients.control_address import ControlAddress, addresses_of, control_address, field_of
from clients.remote_control import RemoteControl
from clients.rollout.server_controls import ServerControls, one_control
from clients.server_control import ServerControl
from clients.server_folder import server_folder
from trireme.base.errors import RequestError, Unavailable
from trireme.base.unix_socket import CONTROL_SOCKET


def folder_of(server: str) -> Path:
    """Return the folder that a server's rollouts are kept in.

    Raises:
        RequestError: it is an address, and not of a control.
    """
    if not _is_address(server):
        return Path(server)
    return _folder_of(control_address(server.partition(",")[0]))


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
        "(`trireme serve --remote-port`) on another machine; of several replicas a name that has the address of each, "
        "or their addresses with commas between. None: the only one here.",
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
        is_one: the server is one process; None: that shows by its name, which has one address then.
    """

    folder: Path
    url: str = ""
    ca_file: str = ""
    token_file: str = ""
    option: str = "--server"
    is_one: bool | None = None

    @property
    def name(self) -> str:
        """Return the place as an option names it, whatever folder a rollout goes on in."""
        return self.url or str(self.folder.absolute())

    def controls(self, tell: Callable[[str], None]) -> ServerControls:
        """Return the controls of the server's replicas, which tell what the server says meanwhile."""
        if not self.url:
            return one_control(ServerControl(self.folder / CONTROL_SOCKET, tell=tell))
        urls = self.url.split(",")
        if len(urls) > 1:
            return ServerControls(lambda: urls, lambda url: self._remote(url, _named(url, tell)))
        host, port, _ = control_address(self.url, self.option)
        if _is_one(host, port) if self.is_one is None else self.is_one:
            return one_control(self._remote(self.url, tell))
        return ServerControls(
            lambda: addresses_of(host, port),
            lambda address: self._remote(self.url, _named(address, tell), address=address),
        )

    def _remote(self, url: str, tell: Callable[[str], None], *, address: str = "") -> RemoteControl:
        access = Access(
            is_tls=url.startswith("https://"),
            ca_file=self.ca_file or None,
            token_file=self.token_file or None,
        )
        return RemoteControl(url, access, address=address, tell=tell, option=self.option)


def server_place(
    server: str | None,
    ca_file: Path | None,
    token_file: Path | None,
    *,
    option: str = "--server",
    is_one: bool | None = None,
) -> ServerPlace:
    """Return the place that a command's options name.

    Args:
        server: a folder, an address of a control, or several with commas between, one of each replica.
        option: the one that names `server`; those of its access begin like it.
        is_one: as of `ServerPlace`.

    Raises:
        RequestError: they do not go together, or the address is none.
        SpecError: no server was found (`clients.server_folder.server_folder`).
    """
    field = field_of(option)
    if server is None or not _is_address(server):
        for kind, given in (("ca", ca_file), ("token", token_file)):
            if given is not None:
                raise RequestError(
                    f"{option}-{kind}-file is for {option} https://HOST:PORT; give that, or leave it out",
                    field=f"{field}_{kind}_file",
                )
        return ServerPlace(server_folder(None if server is None else Path(server)), option=option)
    address, *others = (control_address(each, option) for each in server.split(","))
    if token_file is None:
        raise RequestError(
            f"{option} {address.url} answers nobody without a key; give {option}-token-file, a file with a key of the "
            "server's --remote-token-file",
            field=f"{field}_token_file",
        )
    if ca_file is not None and not any(each.is_tls for each in (address, *others)):
        raise RequestError(
            f"{option}-ca-file is for https://, and {option} is {address.url}; leave it out", field=f"{field}_ca_file"
        )
    if len({address, *others}) <= len(others):
        raise RequestError(f"{option} names an address twice; name each replica once", field=field, value=server)
    ca = "" if ca_file is None else str(ca_file.absolute())
    urls = ",".join(each.url for each in (address, *others))
    return ServerPlace(_folder_of(address), urls, ca, str(token_file.absolute()), option, is_one)


def second_place(
    server: str, ca_file: Path | None, token_file: Path | None, first: ServerPlace, *, is_one: bool | None = None
) -> ServerPlace:
    """Return the place of the second server, to which the first one's authority and key lead where none is named.

    Raises:
        RequestError, SpecError: as `server_place`.
    """
    if _is_address(server):
        if ca_file is None and first.ca_file and server.startswith("https://"):
            ca_file = Path(first.ca_file)
        if token_file is None and first.token_file:
            token_file = Path(first.token_file)
    return server_place(server, ca_file, token_file, option="--second-server", is_one=is_one)


def _is_one(host: str, port: int) -> bool:
    try:
        return len(addresses_of(host, port)) == 1
    except Unavailable:  # whoever asks the server says why
        return True


def _named(name: str, tell: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: tell(f"{name}: {line}")


def _is_address(server: str) -> bool:
    return "://" in server
