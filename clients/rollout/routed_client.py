# SPDX-License-Identifier: Apache-2.0
"""A client that goes where a rollout says, and tells it what came of each request.

It asks for the split every so often. Without word for as long as its lease it sends everything to the stable name, so
that a rollout whose controller is gone takes no new requests. A candidate that cannot take a request before its first
text is no failure for the caller: the stable release answers it.
"""

import asyncio
import contextlib
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from typing import NamedTuple, Self

import msgspec

from clients.latency import Arrival, MetricUndefined, RequestRecord, e2e_ms, tpot_ms, ttft_ms
from clients.rollout.looping import is_looping
from clients.rollout.outcome import Outcome
from clients.rollout.split import CANDIDATE, Places, Split, stratum_of
from clients.rollout.wire import OutcomeBatch, SplitAnswer
from clients.streaming import AsyncTritonClient, GenerateChunk, GenerateRequest
from ensemble_configs.errors import RequestCancelled, RequestError, ServingError, Unavailable

_FLUSH_S = 1.0
_MAX_KEPT = 20_000  # outcomes that nobody takes; more are dropped
_ANSWER_S = 2.0


class _Step(NamedTuple):
    """What a request counts for."""

    rollout: int
    step: int


class RoutedClient:
    """One connection, for any number of requests at a time. Enter it inside a running event loop.

    Args:
        url: ``host:port`` of the gRPC endpoint.
        split_url: of the rollout, such as ``http://127.0.0.1:8010``.
        stable_model: asked where nothing is known of a rollout.

    Raises:
        RequestError: an url is none.
    """

    def __init__(
        self,
        url: str,
        split_url: str,
        *,
        stable_model: str = "ensemble",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not split_url.startswith(("http://", "https://")):
            raise RequestError(
                f"split_url must be where a rollout answers, such as http://localhost:8010, got {split_url!r}",
                field="split_url",
                value=split_url,
            )
        self._client = AsyncTritonClient(url)
        self._split_url = split_url.rstrip("/")
        self._stable_model = stable_model
        self._clock = clock
        self._answer: SplitAnswer | None = None
        self._heard_s = clock()
        self._places = Places()
        self._outcomes: list[tuple[_Step, Outcome]] = []
        self._pending: list[bytes] = []

    async def __aenter__(self) -> Self:
        await self._refresh()
        self._task = asyncio.create_task(self._keep_up())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._flush()
        await self._client.close()

    def route(self, *, key: str | None, stratum: int) -> tuple[str, str, _Step | None]:
        """Where a request goes now: the model, the arm, and the step that it counts for; None: it does not."""
        answer = self._answer
        if answer is None or self._clock() - self._heard_s > answer.lease_s:
            return self._stable_model, "", None
        split = Split(salt=answer.salt, share=answer.share)
        place = self._places.next(stratum) if key is None else split.place(key)
        arm = split.arm(place)
        model = answer.candidate_model if arm == CANDIDATE else answer.stable_model
        return model, arm, _Step(answer.rollout, answer.step) if split.is_compared(place) else None

    async def generate(
        self, request: GenerateRequest, *, key: str | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[GenerateChunk, None]:
        """As `AsyncTritonClient.generate`, on the release that the rollout gives to `key`.

        Args:
            key: of the session, user or tenant, which then stays with its release; None: each request by itself.
        """
        stratum = stratum_of(len(request.text_input))
        model, arm, step = self.route(key=key, stratum=stratum)
        seen = _Seen(arm, stratum)
        if step is not None:  # what its outcome is made of
            request = msgspec.structs.replace(request, return_num_output_tokens=True, return_finish_reason=True)
        try:
            async for chunk in self._client.generate(request, model=model, timeout_s=timeout_s):
                seen.add(chunk)
                yield chunk
        except RequestCancelled:  # its caller's doing
            raise
        except ServingError as exc:
            self._tell(step, seen.outcome(error=exc.code))
            if arm != CANDIDATE or seen.has_begun or not isinstance(exc, Unavailable):
                raise
        else:
            self._tell(step, seen.outcome())
            return
        async for chunk in self._client.generate(request, model=self._stable_model, timeout_s=timeout_s):
            yield chunk

    def _tell(self, step: _Step | None, outcome: Outcome) -> None:
        if step is not None:
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
        body = await self._call("/split", None)
        if body is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                self._answer, self._heard_s = msgspec.json.decode(body, type=SplitAnswer), asked_s

    async def _flush(self) -> None:
        """A batch that was perhaps not taken is sent again as it was; it counts once."""
        by_step: dict[_Step, list[Outcome]] = {}
        for step, outcome in self._outcomes:
            by_step.setdefault(step, []).append(outcome)
        self._outcomes = []
        for step, outcomes in by_step.items():
            batch = OutcomeBatch(rollout=step.rollout, step=step.step, batch=uuid.uuid4().hex, outcomes=outcomes)
            self._pending.append(msgspec.json.encode(batch))
        while self._pending and await self._call("/outcomes", self._pending[0]) is not None:
            self._pending.pop(0)
        del self._pending[:-64]

    async def _call(self, path: str, body: bytes | None) -> bytes | None:
        """The answer; nothing where the rollout refuses it, None where nobody answers."""

        def ask() -> bytes | None:
            try:
                with urllib.request.urlopen(self._split_url + path, data=body, timeout=_ANSWER_S) as response:
                    return bytes(response.read())
            except urllib.error.HTTPError as exc:
                with exc:  # what is wrong will be wrong again: it must not hold up what comes after it
                    return b"" if 400 <= exc.code < 500 else None
            except (OSError, ValueError):
                return None

        return await asyncio.to_thread(ask)


def generate_routed(
    url: str, split_url: str, request: GenerateRequest, *, key: str | None, timeout_s: float | None = None
) -> Generator[GenerateChunk, None, None]:
    """One request as `RoutedClient.generate` sends it, for scripts; close the generator to cancel it."""
    with asyncio.Runner() as runner:
        client = RoutedClient(url, split_url)
        runner.run(client.__aenter__())
        chunks = client.generate(request, key=key, timeout_s=timeout_s)
        try:
            while (chunk := runner.run(_next(chunks))) is not None:
                yield chunk
        finally:
            runner.run(chunks.aclose())
            runner.run(client.__aexit__())


async def _next(chunks: AsyncGenerator[GenerateChunk, None]) -> GenerateChunk | None:
    return await anext(chunks, None)


class _Seen:
    """What a request's client saw so far."""

    def __init__(self, arm: str, stratum: int) -> None:
        self._arm = arm
        self._stratum = stratum
        self._sent_ns = time.monotonic_ns()
        self._chunks: list[GenerateChunk] = []

    @property
    def has_begun(self) -> bool:
        """The caller has text."""
        return any(chunk.text for chunk in self._chunks)

    def add(self, chunk: GenerateChunk) -> None:
        """One more."""
        self._chunks.append(chunk)

    def outcome(self, *, error: str = "") -> Outcome:
        """At the request's end."""
        arrivals = tuple(
            Arrival(received_ns=chunk.received_ns, num_tokens=chunk.num_output_tokens or 0) for chunk in self._chunks
        )
        record = RequestRecord(sent_ns=self._sent_ns, arrivals=arrivals)
        text = "".join(chunk.text for chunk in self._chunks)
        reasons = [chunk.finish_reason for chunk in self._chunks if chunk.finish_reason]
        return Outcome(
            arm=self._arm,
            stratum=self._stratum,
            ttft_ms=_defined(ttft_ms, record),
            tpot_ms=None if error else _defined(tpot_ms, record),
            e2e_ms=None if error else _defined(e2e_ms, record),
            num_tokens=record.output_tokens,
            finish_reason="" if error or not reasons else reasons[-1],
            error=error,
            is_empty=not error and not text,
            is_looping=is_looping(text),
        )


def _defined(metric: Callable[[RequestRecord], float], record: RequestRecord) -> float | None:
    try:
        return metric(record)
    except MetricUndefined:
        return None
