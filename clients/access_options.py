# SPDX-License-Identifier: Apache-2.0
"""The options with which every command says how it connects to a server; a command gets them as one `Access`."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from clients.access import AUTHORIZATION, Access
from clients.tls_context import check_access

T = TypeVar("T")

_OPTIONS: dict[str, tuple[object, object]] = {  # name: annotation, default
    "tls": (
        Annotated[
            bool,
            typer.Option(
                "--tls",
                help="Encrypt, and check the server's certificate; as an address with grpcs:// or https:// does.",
            ),
        ],
        False,
    ),
    "ca_file": (
        Annotated[Path | None, typer.Option(help="PEM file of the authorities to trust.", show_default="public ones")],
        None,
    ),
    "cert_file": (
        Annotated[Path | None, typer.Option(help="PEM file of the client's certificate, with its chain (mTLS).")],
        None,
    ),
    "key_file": (Annotated[Path | None, typer.Option(help="PEM file of that certificate's private key.")], None),
    "tls_server_name": (
        Annotated[
            str | None,
            typer.Option(help="Name that the server's certificate must have.", show_default="the address's host"),
        ],
        None,
    ),
    "token_file": (
        Annotated[Path | None, typer.Option(help="File with a key or bearer token; read again for each request.")],
        None,
    ),
    "token_env": (
        Annotated[str | None, typer.Option(metavar="NAME", help="Environment variable that holds the key instead.")],
        None,
    ),
    "token_header": (
        Annotated[
            str, typer.Option(help="Header for the key; in authorization it is sent as Bearer, elsewhere as it is.")
        ],
        AUTHORIZATION,
    ),
}


def with_access(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the options of a connection in the place of its parameter `access`.

    Called from Python the command may still be given an `access`; without any it is a connection without TLS and key.
    """
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> T:
        given = {name: kwargs.pop(name, default) for name, (_, default) in _OPTIONS.items()}
        access = kwargs.pop("access", None) or _access(**given)
        check_access(access)
        return command(*args, access=access, **kwargs)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name != "access":
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in _OPTIONS.items()
        ]
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": hints.get("return")}
    return run


def _access(
    *,
    tls: bool,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    tls_server_name: str | None,
    token_file: Path | None,
    token_env: str | None,
    token_header: str,
) -> Access:
    # Absolute, as tools and workers run in folders of their own.
    ca, cert, key, token = (
        None if path is None else str(path.absolute()) for path in (ca_file, cert_file, key_file, token_file)
    )
    return Access(
        is_tls=tls, ca_file=ca, cert_file=cert, key_file=key, server_name=tls_server_name, token_file=token,
        token_env=token_env, token_header=token_header.lower(),
    )  # fmt: skip
