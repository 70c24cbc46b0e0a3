# SPDX-License-Identifier: Apache-2.0
"""What a running rollout says to clients and hears of them, over HTTP: the split, and how requests ended.

    GET  /split?client=NAME   {"rollout": 3, "step": 1, "salt": "...", "stable_model": "ensemble", "lease_s": 5.0,
                               "slices": [{"upto": 0.05, "arm": "candidate", "model": "ensemble_canary", ...}, ...]}
    GET  /judgement           {"rollout": 3, "phase": "running", "step": 1, "share": 0.05, "verdict": "undecided",
                               "reason": "...", "num_requests": 420}: of what was counted at this step
    POST /outcomes            {"rollout": 3, "step": 1, "batch": "a name of its own", "outcomes": [...]}

A batch is counted once, however often it is sent, and for the step at which its requests were sent. The copies of a
shadow are divided among the clients that have asked of late; so each should say a name of its own. Who asks for the
judgement hears how a rollout ended: what asked within the last minute is answered for another one.
"""

import http.server
import json
import socket
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from clients.rollout.judging.judges import judge_of
from clients.rollout.records.rollout_plan import Mode, read_plan
from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from clients.rollout.routing.schema import JudgementAnswer, Mirror, OutcomeBatch, SplitAnswer
from clients.rollout.routing.split import BASELINE, CANDIDATE
from clients.rollout.traffic import mirror_now, share_now, slices_now
from clients.rollout_gate.outcome import Outcome
from trireme.base.errors import RequestError, ServingError

_MAX_BODY_BYTES = 16 << 20
_MAX_NAME_CHARS = 64
_LINGER_S = 60.0  # longer than a follower may take between two looks (`clients.rollout.export.analysis_template`)
_SILENCE_S = 30.0
_WHAT_THERE_IS = {"error": "there is GET /split, GET /judgement and POST /outcomes"}

Evidence = Mapping[str, object]


class Merge(Protocol):
    """Makes new evidence of what was counted and what arrives at a time, in seconds since 1970."""

    def __call__(self, evidence: Evidence | None, outcomes: Sequence[Outcome], *, at_s: float | None) -> Evidence:
        """What was given stays as it was."""


class RolloutFront:
    """Listens from its construction on.

    Args:
        store: the file.
        number: of the rollout.
        prefix: before the names of the model's Triton models.
        merge: makes evidence of what was counted and what comes.
        port: 0: any that is free.
        linger_s: how long who asked for the judgement may still hear of the end.
        silence_s: how long a caller may send nothing before it is hung up on.
    """

    def __init__(
        self,
        store: Path,
        number: int,
        prefix: str,
        merge: Merge,
        *,
        host: str,
        port: int,
        linger_s: float = _LINGER_S,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self._store = store
        self._number = number
        self._prefix = prefix
        self._merge = merge
        self._clients = RecentClients()
        self._linger_s = linger_s
        self._judged_at_s: float | None = None
        handler = type("Handler", (_Handler,), {"front": self, "timeout": silence_s})
        self._server = _Server(host, port, handler)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="rollout-front", daemon=True).start()

    def close(self) -> None:
        """Nobody is heard any more, once followers had the time to hear of the end; clients' leases end."""
        now_s = time.monotonic()
        try:
            if self._judged_at_s is not None and now_s - self._judged_at_s < self._linger_s and self._is_over():
                time.sleep(self._linger_s)
        finally:
            self._server.shutdown()
            self._server.server_close()

    def _is_over(self) -> bool:
        with Store(self._store) as store:
            return store.get(self._number).phase.is_over

    def split(self, client: str = "") -> SplitAnswer:
        """As it is now, for one client."""
        with Store(self._store) as store:
            rollout = store.get(self._number)
        plan = read_plan(rollout.plan)
        mirror = mirror_now(rollout, plan, self._prefix)
        return SplitAnswer(
            rollout=rollout.id,
            step=rollout.step,
            salt=plan.salt,
            stable_model=f"{self._prefix}ensemble",
            lease_s=plan.lease_s,
            slices=slices_now(rollout, plan, self._prefix),
            mirror=None if mirror is None else self._part(mirror, client, plan.lease_s),
        )

    def _part(self, mirror: Mirror, client: str, lease_s: float) -> Mirror:
        part = self._clients.part(client, mirror.max_in_flight, lease_s)
        return msgspec.structs.replace(mirror, max_in_flight=part)

    def judgement(self) -> JudgementAnswer:
        """As it is now."""
        self._judged_at_s = time.monotonic()
        with Store(self._store) as store:
            rollout = store.get(self._number)
            evidence = store.evidence(self._number, rollout.step)
        plan = read_plan(rollout.plan)
        found = judge_of(plan).judge(evidence)
        return JudgementAnswer(
            rollout=rollout.id,
            phase=str(rollout.phase),
            step=rollout.step,
            share=share_now(rollout, plan),
            verdict=found.verdict,
            reason=found.reason,
            num_requests=found.num_requests,
        )

    def count(self, body: bytes) -> bool:
        """Whether a batch was new. Raises: msgspec.ValidationError, msgspec.DecodeError: it is none."""
        batch = msgspec.json.decode(body, type=OutcomeBatch)
        if batch.rollout != self._number:  # of one that is over
            return False
        with Store(self._store) as store:
            rollout = store.get(self._number)
            if rollout.phase.is_over:
                return False
            _check(batch, rollout)
            is_test = read_plan(rollout.plan).mode is Mode.AB
            return store.add_evidence(
                self._number,
                batch.step,
                batch.batch,
                lambda old: self._merge(old, batch.outcomes, at_s=time.time()),
                assigned=[(one.arm, one.unit) for one in batch.outcomes if is_test and not one.is_feedback],
            )


def _check(batch: OutcomeBatch, rollout: Rollout) -> None:
    """Raises: RequestError: no client of this rollout can have seen that."""
    if batch.step > rollout.step:
        raise RequestError(
            f"step must be one that the rollout has reached, 0 to {rollout.step}, got {batch.step}",
            field="step",
            value=batch.step,
        )
    plan = read_plan(rollout.plan)
    arms = tuple(plan.arms) if plan.mode is Mode.AB else (CANDIDATE, BASELINE)
    for outcome in batch.outcomes:
        if outcome.arm not in arms:
            raise RequestError(
                f"arm must be one of {', '.join(arms)}, got {outcome.arm!r}", field="arm", value=outcome.arm
            )
        if outcome.prompt or outcome.score is not None:
            raise RequestError("prompt and score are the rollout's own; leave them out", field="prompt")


class RecentClients:
    """Divides what all clients may do together among those that have asked of late."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._asked_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def part(self, client: str, total: int, lease_s: float) -> int:
        """One client's, none for who has no name; all parts add up to `total` once each has asked again."""
        if not client:
            return 0
        now = self._now()
        with self._lock:
            self._asked_s[client] = now
            self._asked_s = {name: asked for name, asked in self._asked_s.items() if now - asked <= lease_s}
            names = sorted(self._asked_s)
        return total // len(names) + (names.index(client) < total % len(names))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # many clients ask at the same second

    def __init__(self, host: str, port: int, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # who asked has gone before the answer
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(http.server.BaseHTTPRequestHandler):
    front: ClassVar[RolloutFront]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        client = dict(urllib.parse.parse_qsl(url.query)).get("client", "")[:_MAX_NAME_CHARS]
        answers: Mapping[str, Callable[[], object]] = {
            "/split": lambda: self.front.split(client),
            "/judgement": self.front.judgement,
        }
        answer = answers.get(url.path)
        if answer is None:
            self._say(404, _WHAT_THERE_IS)
            return
        self._try(lambda: msgspec.to_builtins(answer()))

    def do_POST(self) -> None:
        if self.path.split("?")[0] != "/outcomes":
            self._say(404, _WHAT_THERE_IS)
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
        except ConnectionError:
            raise
        except Exception as exc:
            traceback.print_exc()
            self._say(500, {"error": f"{type(exc).__name__}: {exc}"})

    def _say(self, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Requests are not told of: there are several a second."""
