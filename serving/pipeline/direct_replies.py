# SPDX-License-Identifier: Apache-2.0
"""The direct way of responses: from a model to the frontend of its client, past Triton.

Triton takes a response by a handshake of threads in two processes, which costs more than everything else that a token
costs. So a frontend of gRPC names itself in the requests of streams, and listens. What a model sends there are whole
messages as the client gets them, those of a step in one write. The last response of a request, an error too, goes
through Triton, which counts, traces and ends the request as ever; it is sent after everything else was written, and the
frontend reads what was written before it passes on what Triton says.

A request takes the way through Triton alone where its frontend is not reached: there is no frontend, or it has not
taken this process's connection yet.
"""

import logging
import os
import socket
import threading
from pathlib import Path

from serving.process.reply_socket import HEAD, HELLO, frontend_of, reply_socket
from serving.process.run_dir import RUN_DIR_VARIABLE

_log = logging.getLogger("trireme.direct_replies")

_CONNECT_S = 5.0
_SEND_S = 5.0  # a frontend that takes nothing for so long is given up


class DirectWay:
    """The connection to one frontend, for several threads."""

    def __init__(self, path: Path) -> None:
        self._waiting: list[bytes] = []
        self._waiting_lock = threading.Lock()
        self._socket_lock = threading.Lock()  # messages are written whole, in the order in which they were kept
        self._socket: socket.socket | None = None
        self.is_open = False
        threading.Thread(target=self._open, args=(path,), name="direct-way", daemon=True).start()

    def put(self, stream_name: bytes, message: bytes) -> None:
        """Keep a message for the next `flush`."""
        kept = HEAD.pack(len(message), len(stream_name)) + stream_name + message
        with self._waiting_lock:
            self._waiting.append(kept)

    def flush(self) -> None:
        """Write what was kept; where the frontend does not take it, close the way, and lose it."""
        with self._socket_lock:
            with self._waiting_lock:
                waiting, self._waiting = self._waiting, []
            if not waiting or not self.is_open or self._socket is None:
                return
            try:
                self._socket.sendall(b"".join(waiting))
            except OSError as exc:  # a part of a message may have gone: nothing may follow it
                _log.warning("a frontend takes no responses any more: %s", exc)
                self.close()

    def close(self) -> None:
        """Write no more; what was kept is lost."""
        self.is_open = False
        if self._socket is not None:
            self._socket.close()

    def _open(self, path: Path) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(_CONNECT_S)
            connection.connect(str(path))
            if connection.recv(1) != HELLO:
                raise ConnectionResetError("the frontend has gone")
        except OSError as exc:
            _log.debug("the frontend at %s is not reached; its responses go through Triton: %s", path.name, exc)
            connection.close()
            return
        connection.settimeout(_SEND_S)
        self._socket = connection
        self.is_open = True


class DirectReplies:
    """The connections of this process to its server's frontends, made when a frontend is first heard of."""

    def __init__(self) -> None:
        self._ways: dict[str, DirectWay] = {}
        self._lock = threading.Lock()

    def way_to(self, stream_name: str) -> DirectWay | None:
        """Return the way to the frontend of a stream; None: it is not open, or not yet."""
        frontend = frontend_of(stream_name)
        way = self._ways.get(frontend)
        if way is None:
            run_dir = os.environ.get(RUN_DIR_VARIABLE)
            if not run_dir or not frontend.isalnum():
                return None
            with self._lock:
                if frontend not in self._ways:
                    self._ways[frontend] = DirectWay(reply_socket(Path(run_dir), frontend))
                way = self._ways[frontend]
        return way if way.is_open else None

    def flush(self) -> None:
        """Write what was kept for every frontend."""
        for way in list(self._ways.values()):
            way.flush()


DIRECT_REPLIES = DirectReplies()
"""Those of this process: a stub may have the pipelines of several releases, and each frontend has one connection."""
