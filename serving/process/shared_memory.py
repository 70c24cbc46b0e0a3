# SPDX-License-Identifier: Apache-2.0
"""The shared memory of one server: a name of its own for the regions, and the proof that a process may still use them.

Triton leaves its regions in /dev/shm when it is killed. A lock tells that their owner lives, and not a pid, which may
be used again, or mean another process in another container with the same /dev/shm. The lock is on a file beside the
regions, held by an open descriptor that `trireme serve`, tritonserver and its stubs share: the kernel releases it when
the last of them is gone.
"""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import Self

SHARED_MEMORY = Path("/dev/shm")
# Clients that may use shared memory may register no region with this prefix: newer servers (server #8273) keep it for
# the regions of their Python models, through which a client could reach a model's process.
PREFIX = "triton_python_backend_shm_region_trireme_"
_LOCK = "lock"


class RegionOwner:
    """The owner of every region with the name prefix `prefix`, which is any process that holds `descriptor` open."""

    def __init__(self, folder: Path = SHARED_MEMORY) -> None:
        self._folder = folder
        self.prefix = f"{PREFIX}{os.getpid()}_{secrets.token_hex(4)}_"
        # Locked before it has the name that others look for: a server that starts now must not find it free.
        unlocked = folder / f"{self.prefix}new"
        self.descriptor = os.open(unlocked, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        unlocked.rename(folder / f"{self.prefix}{_LOCK}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the regions and give up the name, once no process of the server is left."""
        _remove_all(self._folder, self.prefix)
        os.close(self.descriptor)


def remove_dead_regions(folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove the regions of servers without a living process; return their prefixes.

    Regions of other owners, another user's servers too, are left alone.
    """
    return [prefix for path in folder.glob(f"{PREFIX}*_{_LOCK}") if (prefix := _remove_if_dead(path))]


def _remove_if_dead(lock: Path) -> str | None:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # another user's, or gone by now
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    else:
        prefix = lock.name.removesuffix(_LOCK)
        _remove_all(lock.parent, prefix)
        return prefix
    finally:
        os.close(descriptor)


def _remove_all(folder: Path, prefix: str) -> None:
    # The lock last: if this process is killed here, the next start finds what is left.
    paths = sorted(folder.glob(f"{prefix}*"), key=lambda path: path.name == f"{prefix}{_LOCK}")
    for path in paths:
        with contextlib.suppress(OSError):  # another user's, though it has this server's prefix
            path.unlink(missing_ok=True)
