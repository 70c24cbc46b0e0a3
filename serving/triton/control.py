# SPDX-License-Identifier: Apache-2.0
"""The door of `trireme serve` for whoever changes what it serves: a Unix socket that only its owner can use.

One JSON object a line. The caller sends one, ``{"op": "add", ...}``; back come any number of ``{"say": TEXT}`` and at
last ``{"done": {...}}`` or ``{"error": TEXT}``, whose text holds an error's token.
"""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from trireme.base.errors import RequestError, ServingError
from trireme.base.unix_socket import bind_socket

_log = logging.getLogger("trireme.control")

_QUESTION_S = 5.0
_MAX_QUESTION_BYTES = 1 << 20

Say = Callable[[str], None]
Handler = Callable[[Mapping[str, object], Say], Mapping[str, object]]


class ControlSocket:
    """Listens from its construction on; each caller has a thread.

    Args:
        path: of the socket; one that a dead server left is replaced.
        handlers: by operation, given the caller's message and what tells it of progress.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        self._path = path
        self._handlers = handlers
        self._listener = socket.socket(socket.AF_UNIX)
        bind_socket(self._listener, path)
        path.chmod(0o600)
        self._inode = path.stat().st_ino
        self._listener.listen()  # until here nobody can call
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def close(self) -> None:
        """Take no more callers; another server's socket that lies there by now stays."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), name="control-call", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        def send(message: Mapping[str, object]) -> None:
            with contextlib.suppress(OSError):  # who asked may have gone; what it asked for is done to its end
                connection.sendall(json.dumps(message).encode() + b"\n")

        with connection:
            try:
                connection.settimeout(_QUESTION_S)
                question = _read_question(connection)
                connection.settimeout(_QUESTION_S)
                send({"done": dict(self._handler(question)(question, lambda text: send({"say": text})))})
            except ServingError as exc:
                send({"error": str(exc)})
            except (OSError, ValueError) as exc:
                send({"error": str(RequestError(f"the question could not be read: {exc}"))})
            except Exception as exc:
                _log.exception("a question to the server could not be answered")
                send({"error": f"[INTERNAL] {exc!r}; the server's log says more"})

    def _handler(self, question: Mapping[str, object]) -> Handler:
        operation = question.get("op")
        if not isinstance(operation, str) or operation not in self._handlers:
            raise RequestError(
                f"op {operation!r} is not known; there are {', '.join(self._handlers)}", field="op", value=operation
            )
        return self._handlers[operation]


def _read_question(connection: socket.socket) -> Mapping[str, object]:
    """Raises: ValueError: what came is no object."""
    line = b""
    while not line.endswith(b"\n"):
        received = connection.recv(65536)
        if not received or len(line) > _MAX_QUESTION_BYTES:
            raise ValueError("it ends within a line, or is too long")
        line += received
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - as from json.loads
    return message
