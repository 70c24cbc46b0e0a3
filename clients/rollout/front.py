# SPDX-License-Identifier: Apache-2.0
"""What a running rollout says to clients and hears of them, over HTTP: the split, and how requests ended.

    GET  /split     {"rollout": 3, "step": 1, "salt": "...", "share": 0.05, "stable_model": "ensemble",
                     "candidate_model": "ensemble_canary", "lease_s": 5.0}
    POST /outcomes  {"rollout": 3, "step": 1, "batch": "a name of its own", "outcomes": [...]}  ->  {"is_counted": true}

A batch is counted once, however often it is sent, and for the step at which its requests were sent.
"""

import http.server
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from clients.rollout.controller import share_now
from clients.rollout.outcome import Outcome
from clients.rollout.plan import read_plan
from clients.rollout.store import Store
from clients.rollout.wire import OutcomeBatch, SplitAnswer
from ensemble_configs.errors import RequestError, ServingError
from ensemble_configs.model_names import CANARY

_MAX_BODY_BYTES = 16 << 20

Evidence = Mapping[str, object]
Merge = Callable[[Evidence | None, Sequence[Outcome]], Evidence]


class RolloutFront:
    """Listens from its construction on.

    Args:
        store: the file.
        number: of the rollout.
        prefix: before the names of the model's Triton models.
        merge: makes evidence of what was counted and what comes.
        port: 0: any that is free.
    """

    def __init__(self, store: Path, number: int, prefix: str, merge: Merge, *, host: str, port: int) -> None:
        self._store = store
        self._number = number
        self._prefix = prefix
        self._merge = merge
        handler = type("Handler", (_Handler,), {"front": self})
        self._server = http.server.ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="rollout-front", daemon=True).start()

    def close(self) -> None:
        """Nobody is heard any more; clients' leases end."""
        self._server.shutdown()
        self._server.server_close()

    def split(self) -> SplitAnswer:
        """As it is now."""
        with Store(self._store) as store:
            rollout = store.get(self._number)
        plan = read_plan(rollout.plan)
        return SplitAnswer(
            rollout=rollout.id,
            step=rollout.step,
            salt=plan.salt,
            share=share_now(rollout, plan),
            stable_model=f"{self._prefix}ensemble",
            candidate_model=self._prefix + CANARY,
            lease_s=plan.lease_s,
        )

    def count(self, body: bytes) -> bool:
        """Whether a batch was new. Raises: msgspec.ValidationError, msgspec.DecodeError: it is none."""
        batch = msgspec.json.decode(body, type=OutcomeBatch)
        if batch.rollout != self._number:  # of one that is over
            return False
        with Store(self._store) as store:
            return store.add_evidence(
                self._number, batch.step, batch.batch, lambda old: self._merge(old, batch.outcomes)
            )


class _Handler(http.server.BaseHTTPRequestHandler):
    front: ClassVar[RolloutFront]
    protocol_version = "HTTP/1.1"
    timeout = 30.0

    def do_GET(self) -> None:
        if self.path.split("?")[0] != "/split":
            self._say(404, {"error": "there is GET /split and POST /outcomes"})
            return
        self._try(lambda: msgspec.to_builtins(self.front.split()))

    def do_POST(self) -> None:
        if self.path.split("?")[0] != "/outcomes":
            self._say(404, {"error": "there is GET /split and POST /outcomes"})
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            self._say(413, {"error": f"Content-Length must be bytes, {_MAX_BODY_BYTES} at most, got {length!r}"})
            return
        body = self.rfile.read(int(length))
        self._try(lambda: {"is_counted": self.front.count(body)})

    def _try(self, answer: Callable[[], object]) -> None:
        try:
            self._say(200, answer())
        except (msgspec.ValidationError, msgspec.DecodeError) as exc:
            self._say(400, {"error": str(exc)})
        except RequestError as exc:
            self._say(400, {"error": exc.message})
        except ServingError as exc:
            self._say(500, {"error": exc.message})

    def _say(self, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Requests are not told of: there are several a second."""
