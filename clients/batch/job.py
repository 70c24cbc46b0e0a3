# SPDX-License-Identifier: Apache-2.0
"""The batch job: every line of the input is asked until it has an answer or an error, which is written once."""

import asyncio
import random
import time
from collections.abc import Callable

import msgspec

from clients.batch.batch_line import BatchLine, custom_id_of, parse_line
from clients.batch.gate import Gate
from clients.batch.input_file import InputFile
from clients.batch.line_error import LineError
from clients.batch.result_lines import answer_line, error_line
from clients.batch.results_file import ResultsFile
from clients.batch.retry_policy import FailureKind, Pauses, failure_kind_of, line_error
from clients.batch.window import Window
from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.openai_api.answer_deltas import AnswerDeltas, Usage
from clients.openai_api.answers import answer_body, num_shortened
from clients.openai_api.asked import Asked
from clients.streaming import AsyncTritonClient
from trireme.base.errors import ServingError, Unavailable

MAX_ATTEMPTS = 5  # of a line that was lost; refusals do not count
_SYNC_S = 1.0
_BREATHE = 256  # lines between two looks at the clock, where none of them goes to the server


AskOf = Callable[[BatchLine], Asked]  # raises LineError where the line cannot be asked


class Tally(msgspec.Struct, kw_only=True):
    """The progress of a job; tokens are of this run alone."""

    total: int
    done: int  # lines with a result, failed ones and those of earlier runs included
    failed: int
    resumed: int  # lines with a result when this run began
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    in_flight: int = 0
    shortened: int = 0  # answers with fewer tokens than asked for, by a limit of the server


class BatchJob:
    """The run of a job; an object runs once.

    Args:
        client: a connected and checked client (`clients.batch.server_probe`).
        source: the input, scanned.
        results: the results of that input.
        ask_of: makes a line's requests.
        model: Triton's name of the model.
        ceiling: most requests in flight.
        line_timeout_s: limit of one request of a line, waiting included.
        patience_s: the job stops after this time without any answer, while the server refuses or is away.
    """

    def __init__(
        self,
        client: AsyncTritonClient,
        source: InputFile,
        results: ResultsFile,
        *,
        ask_of: AskOf,
        model: str,
        ceiling: int,
        line_timeout_s: float,
        patience_s: float,
    ) -> None:
        self._client, self._source, self._results = client, source, results
        self._ask_of, self._model = ask_of, model
        self._line_timeout_s, self._patience_s = line_timeout_s, patience_s
        self._window = Window(ceiling)
        self._pauses = Pauses(random.Random())
        self._failing_since_s: float | None = None
        self.tally = Tally(
            total=source.num_requests, done=results.num_done, failed=results.num_failed, resumed=results.num_done
        )

    async def run(self) -> None:
        """Answer every line to the last.

        Raises:
            Unavailable: the server was away or full for longer than the patience.
            RequestError: the server takes no priority or tenant any more.
            SpecError: the input has changed.
            OSError: the results cannot be written.
        """
        self._gate = Gate(self._window)
        try:
            async with asyncio.TaskGroup() as lines:
                syncing = lines.create_task(self._sync_now_and_then())
                await self._begin_all(lines)
                syncing.cancel()
        except BaseExceptionGroup as group:
            raise _first_of(group) from None

    async def _begin_all(self, lines: asyncio.TaskGroup) -> None:
        asking: set[asyncio.Task[None]] = set()
        for count, (number, raw) in enumerate(self._source.lines()):
            if count % _BREATHE == 0:
                await asyncio.sleep(0)
            if self._results.has(number):
                continue
            try:
                line, asked = self._parse(number, raw)
            except LineError as exc:
                self._write_error(number, custom_id_of(raw), exc)
                continue
            await self._gate.enter()
            task = lines.create_task(self._answer(line, asked))
            asking.add(task)
            task.add_done_callback(asking.discard)
        if asking:
            await asyncio.wait(asking)

    def _parse(self, number: int, raw: bytes | None) -> tuple[BatchLine, Asked]:
        line = parse_line(number, raw)
        if (first := self._source.first_with_its_id(number)) is not None:
            message = f"custom_id {line.custom_id[:64]!r} is that of line {first} already; each must be another"
            raise LineError(message, code="duplicate_custom_id", param="custom_id")
        return line, self._ask_of(line)

    async def _answer(self, line: BatchLine, asked: Asked) -> None:
        """Ask until there is an answer or an error to write; the gate was entered."""
        num_lost = 0
        while True:
            sent_s = time.monotonic()
            self.tally.in_flight += 1
            try:
                received = [await self._ask(request) for request in asked.requests]
                result_id = self._results.id_of(line.number)
                body, usage = answer_body(
                    asked,
                    received,
                    AnswerDeltas(asked),
                    answer_id=result_id,
                    now_s=time.time(),
                    model=asked.model or self._model,
                )
            except ServingError as exc:
                kind = failure_kind_of(exc)
                num_lost += kind is FailureKind.LOST
                if kind is FailureKind.WRONG or num_lost >= MAX_ATTEMPTS:
                    self._note_answer()
                    self._write_error(line.number, line.custom_id, line_error(exc, attempts=num_lost))
                    return
                self._note_failure(kind, exc, sent_s)
            else:
                self._window.note_answer(time.monotonic() - sent_s, was_full=self._gate.is_full)
                self._note_answer()
                self.tally.shortened += num_shortened(asked, received)
                self._write_answer(line, body, usage)
                return
            finally:
                self.tally.in_flight -= 1
                self._gate.leave()
            self.tally.retries += 1
            await self._gate.enter(is_again=True)

    async def _ask(self, request: GenerateRequest) -> list[GenerateChunk]:
        chunks = self._client.generate(request, model=self._model, timeout_s=self._line_timeout_s, idle_timeout_s=None)
        return [chunk async for chunk in chunks]

    def _note_answer(self) -> None:
        self._failing_since_s = None
        self._pauses.note_answer()

    def _note_failure(self, kind: FailureKind, error: ServingError, sent_s: float) -> None:
        now_s = time.monotonic()
        if kind is FailureKind.UNFIT:
            raise error
        if kind is FailureKind.BUSY:
            self._window.note_refusal(sent_s, now_s)
        elif isinstance(error, Unavailable):
            self._window.note_loss()
        self._gate.pause(self._pauses.after(error, sent_s=sent_s, now_s=now_s))
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        silent_s = now_s - self._failing_since_s
        if silent_s > self._patience_s and self.tally.in_flight == 1:
            raise Unavailable(
                f"no line had an answer for {silent_s:.0f} s (--patience-s); the last error: {error.message}. What is "
                "done is kept: run the same command again to go on",
                reason="patience",
            ) from error

    def _write_answer(self, line: BatchLine, body: dict[str, object], usage: Usage) -> None:
        self.tally.prompt_tokens += usage.prompt_tokens
        self.tally.completion_tokens += usage.completion_tokens
        self._write(line.number, answer_line(self._results.id_of(line.number), line.custom_id, body), is_failed=False)

    def _write_error(self, number: int, custom_id: str | None, error: LineError) -> None:
        self._write(number, error_line(self._results.id_of(number), number, custom_id, error), is_failed=True)

    def _write(self, number: int, line: bytes, *, is_failed: bool) -> None:
        self._results.append(number, line, is_failed=is_failed)
        self.tally.done += 1
        self.tally.failed += is_failed

    async def _sync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_S)
            await asyncio.to_thread(self._results.sync)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
