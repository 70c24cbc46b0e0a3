# SPDX-License-Identifier: Apache-2.0
"""The lock of a folder `build/NAME`, which holds a server's model repository, log, control socket and rollout records.

`build/NAME/server.lock` is locked by `trireme serve` as long as it runs, and names the process. The kernel gives the
lock back when the process ends, however that happens, so what a killed one has left refuses nobody.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trireme.base.errors import SpecError

if TYPE_CHECKING:  # a third of a second for clients, who look for ports alone
    from ensemble_configs.spec.deployment import DeploymentSpec

_FILE = "server.lock"


@contextlib.contextmanager
def server_lock(folder: Path, spec: "DeploymentSpec") -> Iterator[None]:
    """Hold a server's folder alone; a folder in which nothing was written is not left behind.

    Raises:
        SpecError: another server holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    number = _take(path)
    if number is None:
        raise SpecError(
            f"deployment {spec.name} is served from {folder} already, by {_holder(path)}; stop that one "
            f"(`trireme drain --server {folder}`), give this one another name in its file, or start it in another "
            "folder",
            field="name",
            value=spec.name,
        )
    try:
        triton = spec.triton
        ports = {"grpc_port": triton.grpc_port, "http_port": triton.http_port, "metrics_port": triton.metrics_port}
        os.truncate(number, 0)
        os.write(number, json.dumps({"pid": os.getpid(), "host": triton.host, **ports}).encode())
        yield
    finally:
        if _is_still(path, number):
            path.unlink()
        os.close(number)
        with contextlib.suppress(OSError):  # something is in them
            folder.rmdir()
            folder.parent.rmdir()


def refuse_served(repository: Path) -> None:
    """Refuse to write a model repository that a running server holds.

    Raises:
        SpecError: a server holds it, and would load what is written when it starts an engine again.
    """
    path = repository.resolve().parent / _FILE
    with contextlib.suppress(FileNotFoundError):
        if _is_held(path):
            raise SpecError(
                f"{repository} is what {_holder(path)} serves; name another folder with --out, or stop that one first "
                f"(`trireme drain --server {path.parent}`)",
                file=repository,
            )


class ServedPorts(NamedTuple):
    """Ports of a running server."""

    grpc_port: int
    metrics_port: int


def served_ports(builds: Path) -> list[ServedPorts]:
    """Return the ports of the servers that run in the folders below `builds`."""
    found = []
    for path in sorted(builds.glob(f"*/{_FILE}")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if _is_held(path):
                server = json.loads(path.read_text(encoding="utf-8"))
                found.append(ServedPorts(int(server["grpc_port"]), int(server["metrics_port"])))
    return found


def _is_held(path: Path) -> bool:
    """Return whether a process holds the lock.

    Raises:
        FileNotFoundError: there is no such lock.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


def _take(path: Path) -> int | None:
    """Return the number of the locked file; None: another process has it."""
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            return None
        if _is_still(path, number):
            return number
        os.close(number)  # its holder has just removed it


def _is_still(path: Path, number: int) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        server = json.loads(path.read_text(encoding="utf-8"))
        return f"process {server['pid']} (gRPC on {server['host']}:{server['grpc_port']})"
    except (OSError, ValueError, KeyError):  # it has not written it yet
        return "another process"
