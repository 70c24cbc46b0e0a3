# SPDX-License-Identifier: Apache-2.0
"""A client of a rollout: it fetches the split regularly, and reports the outcomes of requests."""

import asyncio
import contextlib
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Self

import msgspec

from clients.access import NO_ACCESS, Access
from clients.access_errors import KEY_STATUSES, refused_connection, refused_status
from clients.rollout.routing.schema import OutcomeBatch, SplitAnswer
from clients.tls_context import http_call
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import AccessDenied, RequestError, SpecError
from trireme.base.known_types import known

_FLUSH_S = 1.0
_MAX_KEPT = 20_000  # outcomes that the rollout has not taken; more are dropped
_MAX_PENDING = 64
_PENDING_S = 600.0  # a rollout recognizes a repeated batch for longer than this
_ANSWER_S = 2.0


class Step(NamedTuple):
    """The rollout and step that a request counts for."""

    rollout: int
    step: int


class RolloutClient:
    """The connection to a rollout; enter it inside a running event loop.

    Args:
        split_url: address of the rollout, such as ``http://127.0.0.1:8010``.
        access: certificates and the key, for a rollout that is reached over https.

    Raises:
        RequestError: `split_url` is no address.
    """

    def __init__(
        self, split_url: str, *, access: Access = NO_ACCESS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not _is_url(split_url):
            raise RequestError(
                f"split_url must be where a rollout answers, such as http://localhost:8010, got {split_url!r}",
                field="split_url",
                value=split_url,
            )
        self._url = split_url.rstrip("/")
        self._access = access
        self._denied: AccessDenied | None = None  # by the last answer
        self._clock = clock
        self._name = uuid.uuid4().hex
        self._answer: SplitAnswer | None = None
        self._heard_s = clock()
        self._outcomes: list[tuple[Step, Outcome]] = []
        self._pending: dict[bytes, float] = {}

    async def __aenter__(self) -> Self:
        """Fetch the split for the first time; later fetches raise nothing.

        Raises:
            AccessDenied: the rollout is not trusted, or does not accept the key.
        """
        await self._refresh()
        if self._denied is not None:
            hint = f"{self._denied.message}; what is for the rollout alone: --split-ca-file, --split-token-file"
            raise AccessDenied(hint, **self._denied.facts)
        self._task = asyncio.create_task(self._keep_up())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._flush()

    @property
    def answer(self) -> SplitAnswer | None:
        """Return the last split; None: there is none, or its lease has ended."""
        if self._answer is None or self._clock() - self._heard_s > self._answer.lease_s:
            return None
        return self._answer

    def tell(self, step: Step, outcome: Outcome) -> None:
        """Count an outcome for a step; it is sent within a second."""
        self._outcomes.append((step, outcome))
        del self._outcomes[:-_MAX_KEPT]

    async def _keep_up(self) -> None:
        while True:
            lease_s = self._answer.lease_s if self._answer is not None else _FLUSH_S
            await asyncio.sleep(min(lease_s / 3, _FLUSH_S))
            await self._refresh()
            await self._flush()

    async def _refresh(self) -> None:
        asked_s = self._clock()
        reply = await self._call(f"/split?client={self._name}", None)
        if reply is not None and reply.status == HTTPStatus.OK:
            with contextlib.suppress(msgspec.MsgspecError):
                self._answer, self._heard_s = msgspec.json.decode(reply.body, type=known(SplitAnswer)), asked_s

    async def _flush(self) -> None:
        """Send all outcomes; a batch that was perhaps not taken is sent again unchanged, and counts once."""
        by_step: dict[Step, list[Outcome]] = {}
        for step, outcome in self._outcomes:
            by_step.setdefault(step, []).append(outcome)
        self._outcomes = []
        now_s = self._clock()
        for step, outcomes in by_step.items():
            batch = OutcomeBatch(rollout=step.rollout, step=step.step, batch=uuid.uuid4().hex, outcomes=outcomes)
            self._pending[msgspec.json.encode(batch)] = now_s
        self._pending = _kept(self._pending, now_s)
        for body in list(self._pending):
            reply = await self._call("/outcomes", body)
            if reply is None or reply.status in KEY_STATUSES:  # the key is perhaps just being replaced
                return
            if reply.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # a refused batch is wrong, and will be refused again
                self._pending.pop(body)

    async def _call(self, path: str, body: bytes | None) -> "_Reply | None":
        """Return the rollout's reply; None: it does not answer."""

        def ask() -> _Reply | None:
            try:
                call = http_call(self._url + path, self._access, data=body)
                with urllib.request.urlopen(call.request, timeout=_ANSWER_S, context=call.context) as response:
                    return _Reply(response.status, bytes(response.read()))
            except urllib.error.HTTPError as exc:
                with exc:
                    self._denied = refused_status(exc.code, f"HTTP {exc.code} of {self._url}", self._access)
                    return _Reply(exc.code, b"")
            except SpecError as exc:  # a file is just being replaced, or gone
                self._denied = AccessDenied(exc.message, reason="unreadable")
                return None
            except urllib.error.URLError as exc:
                self._denied = refused_connection(
                    str(exc.reason), urllib.parse.urlsplit(self._url).netloc, self._access
                )
                return None
            except (OSError, ValueError, http.client.HTTPException):  # HTTPException: it was killed while it answered
                return None

        return await asyncio.to_thread(ask)


class _Reply(NamedTuple):
    status: int
    body: bytes


def _is_url(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no port
        return False


def _kept(pending: Mapping[bytes, float], now_s: float) -> dict[bytes, float]:
    young = [(batch, at) for batch, at in pending.items() if now_s - at <= _PENDING_S]
    return dict(young[-_MAX_PENDING:])
