# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of any path.

The kernel takes 107 bytes of a path; TMPDIR may be deep in a job's folders, and the names of adapters' sockets hold a
model's.
"""

import contextlib
import os
import secrets
import socket
from pathlib import Path

CONTROL_SOCKET = "control.sock"  # in build/NAME

_BACKLOG = 1024  # callers that wait; a Unix socket with a timeout does not wait to be one: BlockingIOError


class UnixListener:
    """A listening socket at a path, in the place of what lay there.

    Nobody finds it before it listens, and only processes of its owner's user can connect.
    """

    def __init__(self, path: Path) -> None:
        """Listen at `path`.

        Raises:
            OSError: the folder of `path` is not there, or belongs to another user.
        """
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self._inode = self._listen()
        except OSError:
            self.socket.close()
            raise

    def remove(self) -> None:
        """Remove the path, so that nobody else finds the socket; another's that lies there by now stays."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _listen(self) -> int:
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            name = f".{secrets.token_hex(4)}"  # a short one first: the last name may be too long, too
            short = Path(f"/proc/self/fd/{folder}/{name}")
            self.socket.bind(str(short))
            short.chmod(0o600)
            self.socket.listen(_BACKLOG)
            inode = short.stat().st_ino
            os.rename(name, self._path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
        return inode


def connect_socket(sock: socket.socket, path: Path) -> None:
    """Connect a socket to the one that lies at a path.

    Raises:
        OSError: no socket lies there, or no process listens, or not in time.
    """
    there = os.open(path, os.O_PATH)
    try:
        sock.connect(f"/proc/self/fd/{there}")
    finally:
        os.close(there)
