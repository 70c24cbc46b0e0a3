# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of any path. The kernel takes 107 bytes of one; TMPDIR may be deep in a job's folders, and the names of
adapters' sockets hold a model's.
"""

import os
import secrets
import socket
from pathlib import Path

CONTROL_SOCKET = "control.sock"  # in build/NAME


def bind_socket(sock: socket.socket, path: Path) -> None:
    """Bind a socket to a path, in the place of what lies there.

    Raises:
        OSError: its folder is not there, or is not ours.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        name = f".{secrets.token_hex(4)}"  # a short one first: the last name may be too long, too
        sock.bind(f"/proc/self/fd/{folder}/{name}")
        os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def connect_socket(sock: socket.socket, path: Path) -> None:
    """Connect a socket to the one that lies at a path.

    Raises:
        OSError: none lies there, or nobody listens, or not in time.
    """
    there = os.open(path, os.O_PATH)
    try:
        sock.connect(f"/proc/self/fd/{there}")
    finally:
        os.close(there)
