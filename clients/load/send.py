# SPDX-License-Identifier: Apache-2.0
"""The sending of a load's requests, each from its sending to its end as a record."""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Union

from clients.access import NO_ACCESS, Access
from clients.infer_messages import GenerateRequest
from clients.load.load_plan import Session
from clients.load.openai.openai_stream import is_openai_url
from clients.load.server_down import ServerDown
from clients.load_run.load_record import DONE, UNANSWERED, LoadRecord
from trireme.base.errors import ServingError, Unavailable

if TYPE_CHECKING:
    from clients.load.openai.openai_client import AsyncOpenAIClient
    from clients.streaming import AsyncTritonClient

Client = Union["AsyncTritonClient", "AsyncOpenAIClient"]


def connect(url: str, access: Access = NO_ACCESS) -> Client:
    """Return a client of a server: Triton's gRPC endpoint or an OpenAI-compatible one.

    Raises:
        RequestError: the address is of neither.
        SpecError: a file of `access` cannot be read.
    """
    if is_openai_url(url):  # each takes a third of a second to import, and a process needs one of them
        from clients.load.openai.openai_client import AsyncOpenAIClient  # noqa: PLC0415

        return AsyncOpenAIClient(url, access=access)
    from clients.streaming import AsyncTritonClient  # noqa: PLC0415

    return AsyncTritonClient(url, access=access)


class Sender:
    """A sender of requests, which notes what becomes of them.

    Args:
        start_ns: start of the run, on the monotonic clock; records count from there.
        timeout_s: limit of an attempt.
        num_retries: attempts after a refusal before the first token, each after the time that the server names.

    Attributes:
        server_down: how long the server has answered nothing.
        stop: once it is set nothing is sent any more.
        unended_ns: when requests were due that we ended ourselves.
    """

    def __init__(self, client: Client, *, model: str, start_ns: int, timeout_s: float | None, num_retries: int) -> None:
        self._client = client
        self._model = model
        self._start_ns = start_ns
        self._timeout_s = timeout_s
        self._num_retries = num_retries
        self.server_down = ServerDown()
        self.stop = asyncio.Event()
        self.unended_ns: list[int] = []

    async def send(self, session: Session, turn: int, history: str, *, due_ns: int | None) -> tuple[LoadRecord, str]:
        """Send a request, and return its record and its answer.

        Args:
            due_ns: None: now.
        """
        now_ns = self._now_ns()
        record = session.record(turn, due_ns=now_ns if due_ns is None else due_ns, sent_ns=now_ns)
        try:
            return record, await self._answer(session.request(turn, history), record)
        except asyncio.CancelledError:
            self.note_unended(record)
            raise

    async def _answer(self, request: GenerateRequest, record: LoadRecord) -> str:
        """Return the text of an answer, whatever its end; the record says how it ended."""
        answer = ""
        while True:
            record.sent_ns = self._now_ns()
            try:
                async for chunk in self._client.generate(request, model=self._model, timeout_s=self._timeout_s):
                    self.server_down.note_answer()
                    record.add_chunk(chunk, from_ns=self._start_ns)
                    answer += chunk.text
                record.end, record.error, record.reason = DONE, "", None
                self.server_down.note_answer()
            except ServingError as exc:
                record.fail(exc)
                if record.reason in UNANSWERED:
                    self.server_down.note_loss(time.monotonic_ns())
                else:
                    self.server_down.note_answer()
                if await self._may_retry(exc, record):
                    continue
            record.end_ns = self._now_ns()
            return answer

    def note_unended(self, record: LoadRecord) -> None:
        """Note a request that ran when the load was stopped; its record says nothing of the server."""
        self.unended_ns.append(record.due_ns)

    async def is_stopped_within(self, seconds: float) -> bool:
        """Wait for a time, or until `stop` is set; return whether it is set."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), seconds)
        return self.stop.is_set()

    async def _may_retry(self, exc: ServingError, record: LoadRecord) -> bool:
        if not isinstance(exc, Unavailable) or record.times_ns or record.num_attempts > self._num_retries:
            return False
        retry_after_ms = exc.facts.get("retry_after_ms")
        if await self.is_stopped_within(retry_after_ms / 1000 if isinstance(retry_after_ms, int | float) else 0.1):
            return False
        record.num_attempts += 1
        return True

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns
