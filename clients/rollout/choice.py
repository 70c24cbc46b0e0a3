# SPDX-License-Identifier: Apache-2.0
"""Which rollout a command means, of which server, and that one process alone drives it."""

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

StoreOption = Annotated[Path | None, typer.Option(help="Where rollouts are kept; none: rollouts.sqlite beside it.")]
WhyOption = Annotated[str, typer.Option(help="For the log.")]
NumberOption = Annotated[int | None, typer.Option("--rollout", help="Its number; none: the one that goes on.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def store_of(server: Path | None, store: Path | None) -> Path:
    """The store that was named, or the server's own. Raises: as `server_folder`."""
    return store if store is not None else server_folder(server) / _STORE


def open_rollout(kept: Store, number: int | None) -> Rollout:
    """The one that is named, or the only one that goes on.

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
    """The one that is named, or goes on, or was the last."""
    if number is not None:
        return kept.get(number)
    found = kept.open_rollouts() or kept.rollouts()[-1:]
    if not found:
        raise RequestError("there was no rollout yet; start one with `trireme rollout start RELEASE`", field="rollout")
    return found[-1]


@contextlib.contextmanager
def alone(store: Path) -> Iterator[None]:
    """One process drives the rollouts of a store."""
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
    """Whether no process drives the rollouts of a store."""
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
    """One process drives the rollouts of a server, and of a store, which may be another's."""
    own = folder / _STORE
    with contextlib.ExitStack() as held:
        held.enter_context(alone(store))
        if own.absolute() != store.absolute():
            held.enter_context(alone(own))
        yield


def existing_store(server: Path | None, store: Path | None) -> Path:
    """As `store_of`, of a server that may be stopped, for who only reads.

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
