# SPDX-License-Identifier: Apache-2.0
"""The descriptors of an engine's process below a launcher, which closes the descriptors that it inherits."""

import socket
from pathlib import Path

from trireme.base.unix_socket import connect_socket

_TIMEOUT_S = 30.0


def fetch_descriptors(path: Path) -> tuple[int, int | None]:
    """Return the sockets to the adapter and, if there is one, for clients, from the guard that listens at `path`.

    Raises:
        OSError: there is no such guard.
    """
    with socket.socket(socket.AF_UNIX) as guard:
        guard.settimeout(_TIMEOUT_S)
        connect_socket(guard, path)
        _, fds, _, _ = socket.recv_fds(guard, 1, 2)
    owner, *clients = fds
    return owner, clients[0] if clients else None
