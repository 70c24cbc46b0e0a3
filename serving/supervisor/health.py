# SPDX-License-Identifier: Apache-2.0
"""The answers of `trireme serve` to a probe, such as the kubelet's: `/live`, `/started` and `/ready` over HTTP.

Triton's own health endpoints serve for none of the three. They are gone while a server that died is started again,
which is no reason to kill its parent; they say "ready" while the engine is dead; and they say "not ready" while a
version is being unloaded and everything serves.
"""

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Literal, NamedTuple

from ensemble_configs.spec.end_times import GUARDS_END_S, KILLED_S
from trireme.base.errors import SpecError

Phase = Literal["loading", "serving", "restarting", "draining", "drained"]

# The supervision goes round several times a second, and at its longest kills a server that hangs and waits for its end,
# or one minute between two starts.
MAX_SILENCE_S = KILLED_S + GUARDS_END_S + 25.0
_READ_S = 5.0


class Answer(NamedTuple):
    """An answer to one question of a probe. `why`: the reason in words, also for a yes."""

    is_yes: bool
    why: str


class Health:
    """The state of the server, reported by the supervising thread and read by the threads that answer probes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase: Phase = "loading"
        self._was_ready = False
        self._dead_engines: tuple[str, ...] = ()
        self._beat_s = clock()

    def enter(self, phase: Phase) -> None:
        """Record the phase that the supervision begins."""
        self._phase = phase
        self._was_ready |= phase == "serving"
        self._dead_engines = ()
        self.beat()

    def beat(self) -> None:
        """Record that the supervision is still running."""
        self._beat_s = self._clock()

    def note_dead_engines(self, names: Collection[str]) -> None:
        """Record the needed models which have an engine that does not answer right now."""
        self._dead_engines = tuple(sorted(names))

    def live(self) -> Answer:
        """Answer whether the process works: it loads, serves, restarts the server or ends, each in time."""
        silent_s = self._clock() - self._beat_s
        is_ending = self._phase in ("draining", "drained")  # which takes as long as its streams, and its caller
        if not is_ending and silent_s > MAX_SILENCE_S:
            return Answer(False, f"{self._phase}, but the supervision has not gone round for {silent_s:.0f} s")
        return Answer(True, self._phase)

    def started(self) -> Answer:
        """Answer whether the server has ever been ready."""
        return Answer(self._was_ready, "has been ready" if self._was_ready else self._phase)

    def ready(self) -> Answer:
        """Answer whether to send the server requests."""
        if self._phase != "serving":
            return Answer(False, self._phase)
        if self._dead_engines:
            return Answer(False, f"the engine of {', '.join(self._dead_engines)} is dead and is being started again")
        return Answer(True, "serving")


class HealthServer:
    """An HTTP server for probes, which answers until it is closed, each caller in a thread of its own.

    Args:
        host: address to listen on; IPv6 without brackets.

    Raises:
        SpecError: the port is in use.
    """

    def __init__(self, health: Health, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), health)
        except OSError as exc:
            raise SpecError(
                f"--health-port {port} on {host} cannot be listened on: {exc.strerror or exc}; name another",
                field="health_port",
                value=port,
            ) from exc
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.questions = {"/live": health.live, "/started": health.started, "/ready": health.ready}
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _READ_S  # for a caller that sends nothing

    def do_GET(self) -> None:
        """Answer one question."""
        question = self.server.questions.get(self.path.partition("?")[0])
        if question is None:
            self._reply(HTTPStatus.NOT_FOUND, {"error": f"there are {', '.join(self.server.questions)}"})
            return
        answer = question()
        status = HTTPStatus.OK if answer.is_yes else HTTPStatus.SERVICE_UNAVAILABLE
        self._reply(status, {"ok": answer.is_yes, "why": answer.why})

    def _reply(self, status: HTTPStatus, message: dict[str, object]) -> None:
        body = json.dumps(message).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: a line for each probe would be most of the log."""
