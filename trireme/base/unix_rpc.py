# SPDX-License-Identifier: Apache-2.0
"""Remote calls over a Unix socket: a request and its answer, each a JSON object on a line.

A caller connects and sends ``{"op": "add", ...}``. Back come any number of ``{"say": TEXT}`` and at last
``{"done": {...}}`` or ``{"error": TEXT}``, whose text holds an error's token (`trireme.base.errors`). Each call has a
connection of its own, and a thread of the server.
"""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from trireme.base.errors import RequestError, ServerError, ServingError, parse_token
from trireme.base.unix_socket import UnixListener, connect_socket

_log = logging.getLogger("trireme.rpc")

MAX_BYTES = 1 << 20  # of one message
_TAKE_S = 5.0  # that the other side may be silent while it takes a call or a message, or sends a request
_RETRY_S = 0.1
# Threads that wait for calls: to start one at each call made an answer of a busy adapter wait 18 ms and not 6 (p95).
_NUM_SPARE = 2
_MAX_CHARS = 1 << 16  # of a text, 12 bytes each at most; a longer one is cut

Message = Mapping[str, object]
Say = Callable[[str], None]
Handler = Callable[[Message, Say], Message]


class RpcServer:
    """The server behind one socket, from its construction on.

    Args:
        path: of the socket; one that a dead server left is replaced.
        handlers: by operation, given the caller's request and what tells it of progress.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        self._name = f"rpc {path.name}"
        self._handlers = handlers
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._num_waiting = 0  # threads that wait for a call
        self._listener = UnixListener(path)
        with self._lock:
            self._add_thread()

    def close(self) -> None:
        """Take no more calls; those that were taken are answered."""
        self._is_closed.set()
        self._listener.remove()
        with contextlib.suppress(OSError):  # closed before
            # close() alone would leave the thread in accept(), still answering
            self._listener.socket.shutdown(socket.SHUT_RDWR)
        self._listener.socket.close()

    def _add_thread(self) -> None:
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        self._num_waiting += 1

    def _serve(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, _ = self._listener.socket.accept()
            except OSError as exc:
                if not self._is_closed.wait(_RETRY_S):
                    _log.warning("%s takes no call now: %s", self._name, exc)  # such as for want of descriptors
                continue
            with self._lock:
                self._num_waiting -= 1
                if not self._num_waiting:
                    with contextlib.suppress(RuntimeError):  # the system has no more; this one takes the next call
                        self._add_thread()
            self._answer(connection)
            with self._lock:
                if self._num_waiting >= _NUM_SPARE:
                    return
                self._num_waiting += 1

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_TAKE_S)
        with connection, connection.makefile("rb") as lines:
            caller = _Caller(connection)
            try:
                request = _receive(lines)
            except OSError as exc:
                caller.tell("error", str(RequestError(f"the request could not be read: {exc}")))
                return
            try:
                answer = self._handler(request)(request, lambda text: caller.tell("say", text))
                caller.tell("done", dict(answer))
            except ServingError as exc:
                caller.tell("error", str(exc))
            except Exception as exc:
                _log.exception("a call of %s could not be answered", request.get("op"))
                caller.tell("error", f"[INTERNAL] {exc!r}; the server's log says more")

    def _handler(self, request: Message) -> Handler:
        operation = request.get("op")
        if not isinstance(operation, str) or operation not in self._handlers:
            raise RequestError(
                f"op {operation!r} is not known; there are {', '.join(self._handlers)}", field="op", value=operation
            )
        return self._handlers[operation]


def call(
    path: Path,
    operation: str,
    arguments: Message | None = None,
    *,
    timeout_s: float,
    tell: Say = lambda _: None,
) -> Message:
    """Return the answer of the server behind a socket.

    Args:
        arguments: of the operation; its request holds them beside `op`.
        timeout_s: the longest silence of the server before each of its messages, in seconds.
        tell: is given what the server says meanwhile.

    Raises:
        FileNotFoundError: no socket lies there.
        ConnectionRefusedError: nobody listens on the one that does.
        ConnectionResetError: the server hung up before its answer.
        OSError: the server is silent, or what comes is no message.
        ServingError: what the server says against it, or the request is too long.
    """
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as lines:
        connection.settimeout(min(timeout_s, _TAKE_S))
        connect_socket(connection, path)
        _send(connection, {"op": operation, **(arguments or {})})
        connection.settimeout(timeout_s)
        while True:
            match _receive(lines):
                case {"say": str(text)}:
                    tell(text)
                case {"error": str(text)}:
                    raise parse_token(text) or ServerError(text)
                case {"done": dict(answer)}:
                    return answer
                case other:
                    raise ConnectionAbortedError(f"it sent {str(other)[:80]}, which is no answer")


class _Caller:
    """The caller of a server, who may go at any time; what was asked for is done to its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_gone = False

    def tell(self, kind: str, what: str | dict[str, object]) -> None:
        """Send a message, unless the caller has gone or did not read the one before.

        Raises:
            ServingError: it is too long.
        """
        if self._is_gone:
            return
        try:
            _send(self._connection, {kind: what[:_MAX_CHARS] if isinstance(what, str) else what})
        except OSError as exc:  # it waits only so long
            self._is_gone = True  # whatever came after a part of a line would be no message
            _log.info("who asked has gone before the answer: %s", exc)


def _send(connection: socket.socket, message: Message) -> None:
    """Send a message as one line.

    Raises:
        OSError: the other side is gone, or does not read.
        RequestError: the message is too long.
    """
    line = json.dumps(message).encode() + b"\n"
    if len(line) > MAX_BYTES:
        raise RequestError(f"a message may have {MAX_BYTES} bytes, this one has {len(line)}; send less at a time")
    connection.sendall(line)


def _receive(lines: BinaryIO) -> Message:
    """Return the next message.

    Raises:
        ConnectionResetError: the other side hung up.
        OSError: it is silent, or what came is no message.
    """
    line = lines.readline(MAX_BYTES + 1)
    if len(line) > MAX_BYTES:
        raise ConnectionAbortedError(f"what came is longer than {MAX_BYTES} bytes")
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the other side hung up before the end of a message")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ConnectionAbortedError(f"what came is not JSON ({exc})") from exc
    if not isinstance(message, dict):
        raise ConnectionAbortedError("what came is not a JSON object")
    return message
