# SPDX-License-Identifier: Apache-2.0
"""The line between `trireme serve` and the adapters inside Triton: how many streams run, close admission, end them.

A Unix socket for each adapter, in a folder that only the server's owner can enter; one JSON object a line, each way.
Without the folder (plain `tritonserver`) there is no line, and nothing else changes.
"""

import enum
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from serving.process.left_streams import LEFT_STREAMS
from serving.process.orphan_watch import end_with_server, is_stub
from serving.process.resumed_process import end_when_resumed
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import ServingError, Unavailable
from trireme.base.unix_socket import bind_socket, connect_socket

_log = logging.getLogger("trireme.lifeline")

_QUESTION_S = 1.0  # from the connection to the whole question
_ANSWER_S = 2.0
_TOLD_S = 0.5
_IS_ENGINE_UP = "is_engine_up"
_LEFT = "left"  # with the names of streams whose clients have gone

Handler = Callable[[], Mapping[str, object]]


class Streams(Protocol):
    """What an adapter that generates holds."""

    @property
    def num_running(self) -> int:
        """Requests that have not had their last response."""

    def refuse_new(self, because: Unavailable) -> None:
        """From now on every new request is refused."""

    def cancel_all(self, because: ServingError) -> None:
        """End every running request; each fails with `because`."""


def generation_handlers(service: Streams, *, is_engine_up: Callable[[], bool] | None = None) -> dict[str, Handler]:
    """What can be asked of an adapter that generates. Args: `is_engine_up`: of the engine that it owns, if any."""

    def status() -> Mapping[str, object]:
        answer: dict[str, object] = {"num_streams": service.num_running}
        return answer if is_engine_up is None else answer | {_IS_ENGINE_UP: is_engine_up()}

    def leave() -> Mapping[str, object]:
        service.refuse_new(
            Unavailable("this release is being taken out; send this without a release", reason="leaving")
        )
        return status()

    def drain() -> Mapping[str, object]:
        service.refuse_new(Unavailable("the server is shutting down; send this to another one", reason="draining"))
        return status()

    def cancel() -> Mapping[str, object]:
        service.cancel_all(Unavailable("the server shut down before this was done; send it again", reason="shutdown"))
        return status()

    return {"status": status, "leave": leave, "drain": drain, "cancel": cancel}


class Lifeline:
    """The adapter's end; answers on a thread of its own."""

    def __init__(self, args: Mapping[str, str], handlers: Mapping[str, Handler]) -> None:
        """Args: `args` are Triton's to `initialize`; `handlers` by operation, with ``status`` for all others."""
        end_with_server()
        if is_stub():
            end_when_resumed()
        self._handlers = handlers
        self._listener: socket.socket | None = None
        run_dir = os.environ.get(RUN_DIR_VARIABLE)
        if run_dir:
            # Another name each time: Triton may load a version anew before it has unloaded the old instance.
            self._path = Path(run_dir) / f"{args['model_name']}-{args['model_version']}-{secrets.token_hex(4)}.sock"
            self._listener = socket.socket(socket.AF_UNIX)
            bind_socket(self._listener, self._path)
            self._listener.listen()
            threading.Thread(target=self._serve, args=(self._listener,), name="lifeline", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._path.unlink(missing_ok=True)
            listener.shutdown(socket.SHUT_RDWR)  # close() alone would leave the thread in accept(), still answering
            listener.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            try:
                self._answer(connection)
            except ConnectionError:
                _log.info("who asked on the lifeline has gone before the answer")  # it waits only so long
            except Exception:
                _log.exception("a question on the lifeline could not be answered")

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_QUESTION_S)
            question = _read(connection)
            operation = question["op"]
            if operation == _LEFT and isinstance(names := question.get("streams"), list):
                LEFT_STREAMS.note(map(str, names))
            answer = self._handlers.get(str(operation), self._handlers["status"])()
            _write(connection, answer)


def ask_all(run_dir: Path, operation: str, *, adapter: str = "", is_without_dead: bool = False) -> int:
    """Ask every adapter of a server; returns how many streams they hold. One stream is held by several of them.

    Args:
        adapter: only that of one model and version, as "ensemble-2".
        is_without_dead: one whose process is dead, or that was unloaded just now, holds none.

    Raises:
        Unavailable: one of them does not answer.
    """
    num_streams = 0
    for path in sorted(run_dir.glob(f"{adapter}-*.sock" if adapter else "*.sock")):
        try:
            num_streams += int(str(_ask(path, operation)["num_streams"]))
        except Unavailable as exc:
            if not (is_without_dead and isinstance(exc.__cause__, ConnectionRefusedError | FileNotFoundError)):
                raise
    return num_streams


def tell_left(run_dir: Path, names: list[str]) -> None:
    """Tell every adapter of a server which streams have lost their clients; one that does not answer is left out."""
    for path in run_dir.glob("*.sock"):
        try:
            _exchange(path, _LEFT, _TOLD_S, streams=names)
        except (OSError, ValueError) as exc:
            _log.debug("%s does not hear of clients that have left: %s", path.stem, exc)


class Pulse(enum.Enum):
    """What an adapter's line says about its process."""

    ALIVE = "alive"
    ENGINE_DEAD = "engine dead"  # it lives, and starts its engine again
    SILENT = "silent"  # stopped, stuck, or slow
    DEAD = "dead"  # its socket file is there and nobody listens
    CLOSED = "closed"  # unloaded as it should be


def feel_pulse(path: Path, *, timeout_s: float) -> Pulse:
    """Ask the adapter behind one socket of a run dir whether it lives.

    One that is being loaded seems dead for the moment between its bind() and its listen(): ask twice.
    """
    try:
        answer = _exchange(path, "status", timeout_s)
    except FileNotFoundError:
        return Pulse.CLOSED
    except ConnectionRefusedError:
        return Pulse.DEAD
    except (OSError, ValueError):
        return Pulse.SILENT
    return Pulse.ALIVE if answer.get(_IS_ENGINE_UP, True) else Pulse.ENGINE_DEAD


def _ask(path: Path, operation: str) -> Mapping[str, object]:
    """Ask an adapter one thing.

    Raises:
        Unavailable: it does not answer.
    """
    try:
        return _exchange(path, operation, _ANSWER_S)
    except (OSError, ValueError) as exc:
        raise Unavailable(f"{path.stem} does not answer {operation!r}: {exc}", reason="no_answer") from exc


def _exchange(path: Path, operation: str, timeout_s: float, **more: object) -> Mapping[str, object]:
    """Raises: OSError, ValueError: nobody is there, or not in time, or what came is not an answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connect_socket(connection, path)
        _write(connection, {"op": operation, **more})
        return _read(connection)


def _write(connection: socket.socket, message: Mapping[str, object]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read(connection: socket.socket) -> Mapping[str, object]:
    """Raises: ValueError: the other side went away, or did not send an object."""
    line = b""
    while not line.endswith(b"\n"):
        received = connection.recv(65536)
        if not received:
            raise ValueError("the line ended within a message")
        line += received
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"{message!r} is not an object")  # noqa: TRY004  as from json.loads: what was sent is wrong
    return message
