# SPDX-License-Identifier: Apache-2.0
"""The choice of the rollout, the store and the server that a command means, and the store of the one that drives it.

Commands that only read find a store where the server is stopped too.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from clients.rollout.records.file_lock import alone
from clients.rollout.records.open_database import is_there
from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from clients.rollout.server_place import ServerPlace
from clients.server_folder import server_folder
from trireme.base.errors import RequestError, SpecError
from trireme.base.store_place import StorePlace, read_place

_STORE = "rollouts.sqlite"

StoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        envvar="TRIREME_ROLLOUT_STORE",
        help="File that keeps rollouts, or postgresql://USER@HOST:PORT/DATABASE (password: PGPASSWORD, ~/.pgpass); "
        "none: rollouts.sqlite in the server's folder.",
    ),
]
WhyOption = Annotated[str, typer.Option(help="Reason to write in the log.")]
NumberOption = Annotated[
    int | None, typer.Option("--rollout", help="Number of the rollout; none: the one that goes on.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def store_of(server: Path | None, store: str | None) -> StorePlace:
    """Return the place of the named store, or of the server's own.

    Raises:
        RequestError: `store` is an address, and not of PostgreSQL.
        SpecError: no server was found (`clients.server_folder.server_folder`).
    """
    return read_place(store) if store is not None else server_folder(server) / _STORE


def open_rollout(kept: Store, number: int | None) -> Rollout:
    """Return the rollout with a number, or the only one that goes on.

    Raises:
        RequestError: there is none, or there are several.
    """
    if number is not None:
        return kept.get(number)
    found = kept.open_rollouts()
    if len(found) == 1:
        return found[0]
    if not found:
        raise RequestError("no rollout goes on; start one with `trireme rollout start RELEASE`", field="rollout")
    numbers = ", ".join(f"{one.id} of {one.model}" for one in found)
    raise RequestError(f"several rollouts go on: {numbers}; name one with --rollout", field="rollout")


def any_rollout(kept: Store, number: int | None) -> Rollout:
    """Return the rollout with a number, the one that goes on, or the last one.

    Raises:
        RequestError: the store holds no such rollout.
    """
    if number is not None:
        return kept.get(number)
    found = kept.open_rollouts() or kept.rollouts()[-1:]
    if not found:
        raise RequestError("there was no rollout yet; start one with `trireme rollout start RELEASE`", field="rollout")
    return found[-1]


@contextlib.contextmanager
def driven_store(server: ServerPlace, store: StorePlace, *, tell: Callable[[str], None]) -> Iterator[Store]:
    """Yield the store of the process that drives its rollouts and those of a server; it waits for a store that is away.

    Raises:
        RequestError: another process drives them.
        SpecError, Unavailable: the store cannot be opened (`clients.rollout.records.store.Store`).
    """
    with (
        Store(store, patience_s=math.inf, tell=tell) as kept,
        kept.driving(),
        alone_at(server, store),
    ):
        yield kept


@contextlib.contextmanager
def alone_at(server: ServerPlace, store: StorePlace) -> Iterator[None]:
    """Hold the lock with which one process of this machine drives the rollouts of a server, beside that of the store.

    Raises:
        RequestError: another process drives them.
    """
    own = server.folder / _STORE
    with contextlib.nullcontext() if _is_known_as_driven(server, store, own) else alone(own):
        yield


def _is_known_as_driven(server: ServerPlace, store: StorePlace, own: Path) -> bool:
    """Return whether nobody needs a file of the server's folder to see that it is driven."""
    if isinstance(store, Path):
        return own.absolute() == store.absolute()
    return bool(server.url)  # a server elsewhere knows who steers it, and this machine may have no disk


def existing_store(server: Path | None, store: str | None) -> StorePlace:
    """Return the place of a store to read from; its server may be stopped.

    Raises:
        SpecError: there is none.
    """
    if store is None and server is None:
        found = sorted(Path("build").glob(f"*/{_STORE}"))
        if len(found) == 1:
            return found[0]
    path = store_of(server, store)
    if not is_there(path):
        raise SpecError(
            f"there is no store of rollouts {path}: no rollout was started there; name another one with --server or "
            "--store",
            field="store",
        )
    return path
