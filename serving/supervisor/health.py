# SPDX-License-Identifier: Apache-2.0
"""What `trireme serve` tells a probe, such as the kubelet's: `/live`, `/started` and `/ready` over HTTP.

Triton's own health endpoints do for none of the three. They are gone while a server that died is started again, which
is no reason to kill its parent; they say "ready" while the engine is dead; and they say "not ready" while a version is
being unloaded and everything serves.
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
    """To one question. `why`: in words, also of a yes."""

    is_yes: bool
    why: str


class Health:
    """Told by the thread that supervises, asked by others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase: Phase = "loading"
        self._was_ready = False
        self._dead_engines: tuple[str, ...] = ()
        self._beat_s = clock()

    def enter(self, phase: Phase) -> None:
        """What is done from now on."""
        self._phase = phase
        self._was_ready |= phase == "serving"
        self._dead_engines = ()
        self.beat()

    def beat(self) -> None:
        """The supervision goes round."""
        self._beat_s = self._clock()

    def note_dead_engines(self, names: Collection[str]) -> None:
        """Of models that are needed, those whose engine cannot be asked right now."""
        self._dead_engines = tuple(sorted(names))

    def live(self) -> Answer:
        """Whether to let it go on: it loads, serves, starts the server again or ends, each in time."""
        silent_s = self._clock() - self._beat_s
        is_ending = self._phase in ("draining", "drained")  # which takes as long as its streams, and its caller
        if not is_ending and silent_s > MAX_SILENCE_S:
            return Answer(False, f"{self._phase}, but the supervision has not gone round for {silent_s:.0f} s")
        return Answer(True, self._phase)

    def started(self) -> Answer:
        """Whether it has ever been ready."""
        return Answer(self._was_ready, "has been ready" if self._was_ready else self._phase)

    def ready(self) -> Answer:
        """Whether to send it requests."""
        if self._phase != "serving":
            return Answer(False, self._phase)
        if self._dead_engines:
            return Answer(False, f"the engine of {', '.join(self._dead_engines)} is dead and is being started again")
        return Answer(True, "serving")


class HealthServer:
    """Answers from its construction until it is closed, each caller in a thread of its own.

    Args:
        host: to listen on; of IPv6 without brackets.

    Raises:
        SpecError: somebody else has the port.
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
        """That it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.questions = {"/live": health.live, "/started": health.started, "/ready": health.ready}
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _READ_S  # of a caller that says nothing

    def do_GET(self) -> None:
        """One question."""
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
        """Nothing: a line for each probe would be most of the log."""
