# SPDX-License-Identifier: Apache-2.0
"""The choice of the rollout and the server that a command means, and locks that let one process drive a rollout.

Commands that only read find a store where the server is stopped too.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from clients.server_folder import server_folder
from trireme.base.errors import RequestError, SpecError

_STORE = "rollouts.sqlite"
_GLANCE_S = 0.5

StoreOption = Annotated[
    Path | None, typer.Option(help="File that keeps rollouts; none: rollouts.sqlite in the server's folder.")
]
WhyOption = Annotated[str, typer.Option(help="Reason to write in the log.")]
NumberOption = Annotated[
    int | None, typer.Option("--rollout", help="Number of the rollout; none: the one that goes on.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def store_of(server: Path | None, store: Path | None) -> Path:
    """Return the path of the named store, or of the server's own.

    Raises:
        SpecError: no server was found (`clients.server_folder.server_folder`).
    """
    return store if store is not None else server_folder(server) / _STORE


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
def alone(store: Path) -> Iterator[None]:
    """Hold the lock with which one process drives the rollouts of a store.

    Raises:
        RequestError: another process holds the lock.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    with _lock_file(store).open("a+") as file:
        deadline_s = time.monotonic() + _GLANCE_S
        while not _takes(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline_s:  # longer than anybody looks whether it is free
                raise RequestError(
                    f"another process{_pid_in(file)} drives the rollouts of {store}; `trireme rollout status` shows it",
                    field="store",
                )
            time.sleep(_GLANCE_S / 20)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _pid_in(file: IO[str]) -> str:
    file.seek(0)
    found = file.read().strip()
    return f" ({found})" if found else ""


def is_free(store: Path) -> bool:
    """Return whether no process drives the rollouts of a store."""
    try:
        with _lock_file(store).open("rb") as file:
            return _takes(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return True


def _takes(file: IO[Any], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def alone_on(folder: Path, store: Path) -> Iterator[None]:
    """Hold the locks with which one process drives a server's rollouts and a store, perhaps of another server.

    Raises:
        RequestError: another process holds one of the locks.
    """
    own = folder / _STORE
    with contextlib.ExitStack() as held:
        held.enter_context(alone(store))
        if own.absolute() != store.absolute():
            held.enter_context(alone(own))
        yield


def existing_store(server: Path | None, store: Path | None) -> Path:
    """Return the path of a store to read from; its server may be stopped.

    Raises:
        SpecError: there is none.
    """
    if store is None and server is None:
        found = sorted(Path("build").glob(f"*/{_STORE}"))
        if len(found) == 1:
            return found[0]
    path = store_of(server, store)
    if not path.is_file():
        raise SpecError(
            f"there is no store of rollouts {path}: no rollout was started there; name another one with --server or "
            "--store",
            field="store",
        )
    return path


def _lock_file(store: Path) -> Path:
    return store.with_name(f"{store.name}.lock")
