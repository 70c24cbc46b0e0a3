# SPDX-License-Identifier: Apache-2.0
"""The lock beside a file of rollouts, with which one process of this machine drives them."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from trireme.base.errors import RequestError

GLANCE_S = 0.5  # longer than anybody looks whether a lock is free


@contextlib.contextmanager
def alone(store: Path) -> Iterator[None]:
    """Hold the lock with which one process drives the rollouts of a file.

    Raises:
        RequestError: another process holds the lock.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    with _lock_file(store).open("a+") as file:
        deadline_s = time.monotonic() + GLANCE_S
        while not _takes(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline_s:
                raise driven_by_another(str(store), _pid_in(file))
            time.sleep(GLANCE_S / 20)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_free(store: Path) -> bool:
    """Return whether no process drives the rollouts of a file."""
    try:
        with _lock_file(store).open("rb") as file:
            return _takes(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return True


def driven_by_another(store: str, who: str) -> RequestError:
    """Return the error of a process that may not drive the rollouts of a store, since another does; "": unknown."""
    return RequestError(
        f"another process{f' ({who})' if who else ''} drives the rollouts of {store}; `trireme rollout status` shows "
        "it, and one of `trireme rollout run --wait` takes what `trireme rollout start --leave` writes down",
        field="store",
    )


def _pid_in(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()


def _takes(file: IO[Any], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_file(store: Path) -> Path:
    return store.with_name(f"{store.name}.lock")
