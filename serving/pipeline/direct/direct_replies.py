# SPDX-License-Identifier: Apache-2.0
"""The direct way of responses: from a model to the frontend of its client, past Triton.

Triton takes a response by a handshake of threads in two processes, which costs more than everything else that a token
costs. So a frontend of gRPC names each request of its streams to the model that is asked, before Triton has it, and
takes responses of the model's own: whole messages as the client gets them, those of a step in one write. The last
response of a request, an error too, goes through Triton, which counts, traces and ends the request as ever; it is sent
after everything else was written, and the frontend reads what was written before it passes on what Triton says.

A request that no frontend has named is answered through Triton alone: there is no frontend, it is not connected yet, or
another model asks and has handed the frontend's parameters on.
"""

import contextlib
import logging
import os
import socket
import threading
from pathlib import Path

from serving.process.reply_socket import HEAD, frontend_of, read_names, reply_socket, written_name
from serving.process.run_dir import RUN_DIR_VARIABLE

_log = logging.getLogger("trireme.direct_replies")

_SEND_S = 5.0  # a frontend that takes nothing for so long is given up
_READ_BYTES = 65_536
_MAX_NAMED = 10_000  # streams; another version of the model may have had their requests


class DirectWay:
    """The connection to one frontend, for several threads.

    Args:
        path: the frontend's socket.
        model: the model that answers.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._waiting: list[bytes] = []
        self._waiting_lock = threading.Lock()
        self._socket_lock = threading.Lock()  # messages are written whole, in the order in which they were kept
        self._writer: socket.socket | None = None
        self._reader: socket.socket | None = None  # the same, without a wait
        self._rest = b""
        self._named: dict[str, int] = {}  # requests by the name of their stream
        self._named_lock = threading.Lock()
        self.is_open = False
        threading.Thread(target=self._open, args=(path, model), name="direct-way", daemon=True).start()

    def take(self, stream_name: str) -> bool:
        """Return whether the frontend has named a request of a stream that was not taken yet, and take it."""
        with self._named_lock:
            self._read()
            num_requests = self._named.pop(stream_name, 0)
            if num_requests > 1:
                self._named[stream_name] = num_requests - 1
        return num_requests > 0

    def is_there(self) -> bool:
        """Return whether the frontend is there still."""
        with self._named_lock:
            self._read()
        return self.is_open

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
            if not waiting or not self.is_open or self._writer is None:
                return
            try:
                self._writer.sendall(b"".join(waiting))
            except OSError as exc:  # a part of a message may have gone: nothing may follow it
                _log.warning("a frontend takes no responses any more: %s", exc)
                self._give_up()

    def close(self) -> None:
        """Close the connection; no other thread uses it any more."""
        self.is_open = False
        for each in (self._writer, self._reader):
            if each is not None:
                each.close()

    def _give_up(self) -> None:
        """Write no more; what was kept is lost."""
        # Not closed: another thread may be writing, and the descriptor would be somebody else's.
        self.is_open = False
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        if not self.is_open or self._reader is None:
            return
        size = _READ_BYTES
        while size == _READ_BYTES:
            try:
                data = self._reader.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:  # the frontend has gone
                self._give_up()
            size = len(data)
            names, self._rest = read_names(self._rest + data)
            for name in names:
                self._named[name] = self._named.get(name, 0) + 1
        while len(self._named) > _MAX_NAMED:
            del self._named[next(iter(self._named))]

    def _open(self, path: Path, model: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(_SEND_S)
            connection.connect(str(path))
            connection.sendall(written_name(model))
        except OSError as exc:
            _log.debug("the frontend at %s is not reached; its responses go through Triton: %s", path.name, exc)
            connection.close()
            return
        self._reader = connection.dup()
        self._reader.setblocking(False)
        self._writer = connection
        self.is_open = True


class DirectReplies:
    """The connections of this process to its server's frontends, made when a frontend is first heard of."""

    def __init__(self) -> None:
        self._ways: dict[str, DirectWay] = {}
        self._lock = threading.Lock()

    def way_of(self, stream_name: str, model: str) -> DirectWay | None:
        """Return the way for a request of a stream to a model; None: its frontend has not named it."""
        frontend = frontend_of(stream_name)
        way = self._ways.get(frontend)
        if way is None:
            run_dir = os.environ.get(RUN_DIR_VARIABLE)
            if not run_dir or not frontend.isalnum():
                return None
            with self._lock:
                if frontend not in self._ways:
                    self._ways[frontend] = DirectWay(reply_socket(Path(run_dir), frontend), model)
                way = self._ways[frontend]
        return way if way.take(stream_name) else None

    def flush(self) -> None:
        """Write what was kept for every frontend."""
        for way in list(self._ways.values()):
            way.flush()


DIRECT_REPLIES = DirectReplies()
"""Connections of this process: a stub has one model of Triton's, and each frontend has one connection."""
