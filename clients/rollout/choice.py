# SPDX-License-Identifier: Apache-2.0
"""Which server and which rollout a command means, and that one process alone drives it."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from clients.rollout.state import Rollout
from clients.rollout.store import Store
from ensemble_configs.control_socket import CONTROL_SOCKET
from ensemble_configs.errors import RequestError, SpecError


def server_folder(server: Path | None) -> Path:
    """The folder of the server that is meant: what was named, or the only one that was started here.

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
    with _lock_file(store).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RequestError(
                f"another process drives the rollouts of {store}; `trireme rollout status` shows it", field="store"
            ) from exc
        yield


def is_free(store: Path) -> bool:
    """Whether no process drives the rollouts of a store."""
    try:
        with alone(store):
            return True
    except RequestError:
        return False


def _lock_file(store: Path) -> Path:
    return store.with_name(f"{store.name}.lock")
