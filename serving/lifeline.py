# SPDX-License-Identifier: Apache-2.0
"""The line between `trireme serve` and the adapters inside Triton: how many streams run, close admission, end them.

A Unix socket for each adapter, in a folder that only the server's owner can enter; one JSON object a line, each way.
Without the folder (plain `tritonserver`) there is no line, and nothing else changes.
"""

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_configs.errors import Unavailable

if TYPE_CHECKING:
    from serving.generation import GenerationService

_log = logging.getLogger("trireme.lifeline")

RUN_DIR_VARIABLE = "TRIREME_RUN_DIR"

Handler = Callable[[], Mapping[str, object]]


def generation_handlers(service: "GenerationService") -> dict[str, Handler]:
    """What can be asked of the engine step."""

    def status() -> Mapping[str, object]:
        return {"num_streams": service.num_running}

    def drain() -> Mapping[str, object]:
        service.refuse_new(Unavailable("the server is shutting down; send this to another one", reason="draining"))
        return status()

    def cancel() -> Mapping[str, object]:
        service.cancel_all(Unavailable("the server shut down before this was done; send it again", reason="shutdown"))
        return status()

    return {"status": status, "drain": drain, "cancel": cancel}


class Lifeline:
    """The adapter's end; answers on a thread of its own."""

    def __init__(self, args: Mapping[str, str], handlers: Mapping[str, Handler]) -> None:
        """Args: `args` are Triton's to `initialize`; `handlers` by operation, where ``status`` stands for the others."""
        self._handlers = handlers
        self._listener: socket.socket | None = None
        run_dir = os.environ.get(RUN_DIR_VARIABLE)
        if run_dir:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(f"{run_dir}/{args['model_name']}-{args['model_version']}.sock")
            self._listener.listen()
            threading.Thread(target=self._serve, args=(self._listener,), name="lifeline", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            with connection, connection.makefile("rw") as stream:
                try:
                    operation = json.loads(stream.readline())["op"]
                    answer = self._handlers.get(operation, self._handlers["status"])()
                    stream.write(json.dumps(answer) + "\n")
                except Exception:
                    _log.exception("a question on the lifeline could not be answered")


def ask_all(run_dir: Path, operation: str) -> int:
    """Ask every adapter of a server; returns how many streams they hold. One stream is held by several of them.

    Raises:
        Unavailable: one of them does not answer.
    """
    answers = [_ask(path, operation) for path in sorted(run_dir.glob("*.sock"))]
    return sum(int(str(answer["num_streams"])) for answer in answers)


def _ask(path: Path, operation: str, *, timeout_s: float = 2.0) -> dict[str, object]:
    """Ask an adapter one thing.

    Raises:
        Unavailable: it does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            with connection.makefile("rw") as stream:
                stream.write(json.dumps({"op": operation}) + "\n")
                stream.flush()
                answer = json.loads(stream.readline())
    except (OSError, ValueError) as exc:
        raise Unavailable(f"{path.stem} does not answer {operation!r}: {exc}", reason="no_answer") from exc
    assert isinstance(answer, dict)
    return answer
