# SPDX-License-Identifier: Apache-2.0
"""A relay between a client and a PostgreSQL, which cuts connections at a chosen moment of a commit."""

import contextlib
import socket
import threading
import time
from enum import Enum, auto


class Cut(Enum):
    """The moments at which the client loses its connection, once."""

    BEFORE_COMMIT = auto()  # the server never gets it
    AFTER_COMMIT = auto()  # the server has done it, and the client does not hear so
    DURING_COMMIT = auto()  # the server gets it a second after the client has gone


class CuttingProxy:
    """The relay, on a port of its own until it is closed.

    Attributes:
        cut: what happens to the next commit; None: nothing.
        is_leaving_sessions: the server's side of cut connections stays open, as after the end of a network.
        num_cut: how many connections were cut.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.cut: Cut | None = None
        self.is_leaving_sessions = False
        self.num_cut = 0
        self._sockets: list[socket.socket] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close everything."""
        for each in (self._listener, *self._sockets):
            _close(each)

    def cut_all(self) -> None:
        """Cut every connection now."""
        for client, server in self._pairs:
            self._lose(client, server)
        self._pairs.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += [client, server]
                self._pairs.append((client, server))
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._return, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                cut = self.cut
                if cut is None or b"commit\0" not in data:
                    server.sendall(data)
                    continue
                self.cut = None
                self.num_cut += 1
                if cut is Cut.AFTER_COMMIT:
                    client.shutdown(socket.SHUT_WR)  # what the server says from now on is lost
                    server.sendall(data)
                    time.sleep(0.3)
                elif cut is Cut.DURING_COMMIT:
                    _close(client)
                    time.sleep(1)
                    server.sendall(data)
                    time.sleep(0.3)
                self._lose(client, server)
                return
        if not self.is_leaving_sessions:
            _close(server)

    def _return(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        _close(client)

    def _lose(self, client: socket.socket, server: socket.socket) -> None:
        if not self.is_leaving_sessions:
            _close(server)
        _close(client)


def _close(of: socket.socket) -> None:
    with contextlib.suppress(OSError):
        of.shutdown(socket.SHUT_RDWR)
    of.close()
