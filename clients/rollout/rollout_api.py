# SPDX-License-Identifier: Apache-2.0
"""The API of a running rollout for its clients, over HTTP: the split, and the outcomes of requests.

    GET  /split?client=NAME   {"rollout": 3, "step": 1, "salt": "...", "stable_model": "ensemble", "lease_s": 5.0,
                               "slices": [{"upto": 0.05, "arm": "candidate", "model": "ensemble_canary", ...}, ...]}
    GET  /judgement           {"rollout": 3, "phase": "running", "step": 1, "share": 0.05, "verdict": "undecided",
                               "reason": "...", "num_requests": 420}: of the requests counted at this step
    POST /outcomes            {"rollout": 3, "step": 1, "batch": "a name of its own", "outcomes": [...]}

Where there is a file of keys, the split and outcomes are for callers with ``Authorization: Bearer KEY``; the judgement
is for anybody. A batch is counted once, however often it is sent, for the step at which its requests were sent; where
the server splits the requests, a batch is kept apart and decides nothing. The shadow requests are divided among the
clients that have asked of late; so each client should give a name of its own. A follower of the judgement hears how a
rollout ended: after a follower's question within the last minute, the API answers for another minute.
"""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
from aiohttp import web

from clients.rollout.api_access import NO_ACCESS
from clients.rollout.judging.judges import judge_of
from clients.rollout.recent_clients import RecentClients
from clients.rollout.records.rollout_plan import Mode, SplitBy, read_plan
from clients.rollout.records.state import Rollout
from clients.rollout.records.store import watched_step
from clients.rollout.records.store_pool import StorePool
from clients.rollout.routing.schema import JudgementAnswer, Mirror, OutcomeBatch, SplitAnswer
from clients.rollout.routing.split import BASELINE, CANDIDATE
from clients.rollout.traffic import mirror_now, share_now, slices_now
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import AccessDenied, RequestError, ServerError, ServingError, SpecError, Unavailable
from trireme.base.http_servers.http_access import AcceptedKeys, HttpAccess
from trireme.base.http_servers.http_thread import HttpThread, listen
from trireme.base.known_types import known
from trireme.base.store_place import StorePlace

_MAX_BODY_BYTES = 16 << 20
_MAX_NAME_CHARS = 64
_LINGER_S = 60.0  # longer than a follower may take between two looks (`clients.rollout.export.analysis_template`)
_SILENCE_S = 30.0
_WHAT_THERE_IS = {"error": "there is GET /split, GET /judgement and POST /outcomes"}

_log = logging.getLogger("trireme.rollout.api")

Evidence = Mapping[str, object]


class Merge(Protocol):
    """A function that makes new evidence of the evidence so far and new outcomes at a time, in seconds since 1970."""

    def __call__(self, evidence: Evidence | None, outcomes: Sequence[Outcome], *, at_s: float | None) -> Evidence:
        """Return new evidence; the given evidence stays unchanged."""


class RolloutApi:
    """The API of one rollout, over HTTP, from its construction until it is closed.

    Args:
        store: the place of the store.
        number: number of the rollout.
        prefix: prefix of the names of the model's Triton models.
        merge: makes new evidence of the evidence so far and new outcomes.
        port: 0: any free port.
        access: the certificate that the API shows, and the keys that callers need.
        linger_s: how long a follower of the judgement may still hear of the end.
        silence_s: how long a caller may send nothing before its connection is closed.

    Raises:
        SpecError: the address, the port or the certificate cannot be used.
    """

    def __init__(
        self,
        store: StorePlace,
        number: int,
        prefix: str,
        merge: Merge,
        *,
        host: str,
        port: int,
        access: HttpAccess = NO_ACCESS,
        linger_s: float = _LINGER_S,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self._stores = StorePool(store)
        self._number = number
        self._prefix = prefix
        self._merge = merge
        self._clients = RecentClients()
        self._linger_s = linger_s
        self._judged_at_s: float | None = None
        self._silence_s = silence_s
        self._counting = ThreadPoolExecutor(1)  # the store takes one batch at a time; the split does not wait for them
        self._keys = AcceptedKeys(access)
        tls = access.tls()
        listener = listen(host, port)
        scheme, named = "http" if tls is None else "https", f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{named}:{listener.getsockname()[1]}"
        app = web.Application(middlewares=[_with_errors])
        app.router.add_get("/split", self._get_split, allow_head=False)
        app.router.add_get("/judgement", self._get_judgement, allow_head=False)
        app.router.add_post("/outcomes", self._post_outcomes)
        self._http = HttpThread(app, listener, silence_s=silence_s, tls=tls)

    def close(self) -> None:
        """Close the API, once followers have had the time to hear of the end; clients' leases end."""
        now_s = time.monotonic()
        try:
            if self._judged_at_s is not None and now_s - self._judged_at_s < self._linger_s and self._is_over():
                time.sleep(self._linger_s)
        finally:
            self._http.close()
            self._counting.shutdown()
            self._stores.close()

    def _is_over(self) -> bool:
        with contextlib.suppress(Unavailable), self._stores.one() as store:
            return store.get(self._number).phase.is_over
        return False

    def split(self, client: str = "") -> SplitAnswer:
        """Return the current split for one client."""
        with self._stores.one() as store:
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
        """Return the current judgement."""
        self._judged_at_s = time.monotonic()
        with self._stores.one() as store:
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
        """Count a batch, and return whether it was new.

        Raises:
            msgspec.ValidationError, msgspec.DecodeError: the body is no batch.
        """
        batch = msgspec.json.decode(body, type=known(OutcomeBatch))
        if batch.rollout != self._number:  # a batch of an earlier rollout
            return False
        with self._stores.one() as store:
            rollout = store.get(self._number)
            if rollout.phase.is_over:
                return False
            _check(batch, rollout)
            is_test = read_plan(rollout.plan).mode is Mode.AB
            # Where servers tell how requests end, nobody else's word decides; it is kept for people.
            is_watched = read_plan(rollout.plan).split_by is not SplitBy.CLIENTS
            return store.add_evidence(
                self._number,
                watched_step(batch.step) if is_watched else batch.step,
                batch.batch,
                lambda old: self._merge(old, batch.outcomes, at_s=time.time()),
                assigned=[(one.arm, one.unit) for one in batch.outcomes if is_test and not one.is_feedback],
            )

    async def _get_split(self, request: web.Request) -> web.Response:
        self._admit(request)
        client = request.query.get("client", "")[:_MAX_NAME_CHARS]
        return _json(200, await asyncio.to_thread(self.split, client))

    async def _get_judgement(self, _: web.Request) -> web.Response:
        return _json(200, await asyncio.to_thread(self.judgement))

    async def _post_outcomes(self, request: web.Request) -> web.Response:
        self._admit(request)
        length = request.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            why = f"Content-Length must be bytes, {_MAX_BODY_BYTES} at most, got {length!r}"
            refusal = _json(413, {"error": why})
            refusal.force_close()
            return refusal
        body = bytearray()
        while not request.content.at_eof():
            async with asyncio.timeout(self._silence_s):
                body += await request.content.readany()
        loop = asyncio.get_running_loop()
        return _json(200, {"is_counted": await loop.run_in_executor(self._counting, self.count, bytes(body))})

    def _admit(self, request: web.Request) -> None:
        """Raise an AccessDenied for a caller that brings no key where one is needed.

        Raises:
            ServerError: the keys cannot be read now; why is for the operator alone.
        """
        try:
            is_accepted = self._keys.accepts(request.headers.get("Authorization", ""))
        except SpecError as exc:
            _log.warning("nobody is let in: %s", exc.message)
            raise ServerError("the keys of this rollout cannot be read now; ask again later") from None
        if not is_accepted:
            raise AccessDenied("this rollout asks for a key: send the header Authorization: Bearer KEY", reason="key")


@web.middleware
async def _with_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer in JSON where a request is wrong or something breaks."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        return _json(404 if request.method in ("GET", "POST") else 501, _WHAT_THERE_IS)
    except web.HTTPException:
        raise
    except msgspec.DecodeError as exc:
        return _json(400, {"error": str(exc)})
    except ServingError as exc:
        return _refusal(exc)
    except (ConnectionError, TimeoutError):  # the caller has gone, or is silent in the middle
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
    except Exception as exc:
        traceback.print_exc()
        return _json(500, {"error": f"{type(exc).__name__}: {exc}"})


def _refusal(error: ServingError) -> web.Response:
    if isinstance(error, AccessDenied):
        refusal = _json(401, {"error": error.message})
        refusal.headers["WWW-Authenticate"] = "Bearer"
        refusal.force_close()  # what else the caller sends is not read
        return refusal
    if isinstance(error, SpecError | Unavailable):  # of the store, whose address is for the operator alone
        _log.warning("nobody is answered: %s", error.message)
        return _json(503, {"error": "the store of this rollout cannot be used now; ask again later"})
    return _json(400 if isinstance(error, RequestError) else 500, {"error": error.message})


def _json(status: int, answer: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")


def _check(batch: OutcomeBatch, rollout: Rollout) -> None:
    """Check the step of a batch. Raises: RequestError: no client of this rollout can have seen that."""
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
