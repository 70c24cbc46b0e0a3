# SPDX-License-Identifier: Apache-2.0
"""Requests against an engine in virtual time, and the end of each: for benchmarks and tests of admission alone."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from serving.admission.admitting_engine import AdmittingEngine
from serving.engines.seam.base import Engine, GenerationRequest, TokenChunk
from serving.engines.seam.clock import VirtualClock
from trireme.base.errors import Unavailable


@dataclass(slots=True)
class Record:
    """The end of a request; times are seconds of virtual time."""

    request: GenerationRequest
    sent_s: float
    refused_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    is_done: bool = False

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token in seconds; None: there was no token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    def is_good(self, ttft_s: float, tpot_s: float) -> bool:
        """Return whether the request was answered within both targets."""
        if not self.is_done or self.first_s is None or self.first_s - self.sent_s > ttft_s:
            return False
        return self.num_tokens < 2 or (self.last_s - self.first_s) / (self.num_tokens - 1) <= tpot_s


class InterruptedClock(VirtualClock):
    """A clock that lets others act during a sleep.

    Args:
        meet_until: called with the end of each sleep; may jump to moments before it.
    """

    def __init__(self, meet_until: Callable[[float], None]) -> None:
        super().__init__()
        self._meet_until = meet_until

    def sleep_s(self, duration_s: float) -> None:
        """Let others have their turn, and then be at the end of the sleep."""
        end_s = self.now_s() + duration_s
        self._meet_until(end_s)
        self.jump(end_s)

    def jump(self, to_s: float) -> None:
        """Move the time while nothing happens."""
        super().sleep_s(max(0.0, to_s - self.now_s()))


class VirtualRun:
    """An engine under a load.

    An engine with admission is asked while it steps too, as `serving.engine_process.ingress` does.
    """

    def __init__(self, make: Callable[[VirtualClock], Engine]) -> None:
        self.clock = InterruptedClock(self._meet_until)
        self.engine = make(self.clock)
        self._arrivals: Iterator[tuple[float, GenerationRequest]] = iter(())
        self._next: tuple[float, GenerationRequest] | None = None
        self.records: dict[int, Record] = {}  # by the request's key, in order of arrival

    def open_loop(self, arrivals: Iterator[tuple[float, GenerationRequest]], seconds: float) -> list[Record]:
        """Send requests when they are due, whatever the engine does, and return the records.

        Args:
            arrivals: by the moment that they are due, in seconds.
        """
        self._arrivals = arrivals
        self._next = next(arrivals, None)
        while self.clock.now_s() < seconds:
            while self._due_s <= self.clock.now_s():
                self._arrive()
            if self.engine.has_work:
                self._note(self.engine.step())
            else:
                self.clock.jump(min(self._due_s, seconds))
        return list(self.records.values())

    def closed_loop(self, requests: Iterator[GenerationRequest], num_clients: int, seconds: float) -> float:
        """Return the requests done per second by clients that each wait for their answer."""
        for _ in range(num_clients):
            self._send(next(requests), 0.0)
        num_done = 0
        while self.clock.now_s() < seconds:
            for _ in range(self._note(self.engine.step())):
                num_done += 1
                self._send(next(requests), self.clock.now_s())
        return num_done / seconds

    @property
    def _due_s(self) -> float:
        return math.inf if self._next is None else self._next[0]

    def _meet_until(self, end_s: float) -> None:
        """Do what happens beside a step that ends at `end_s`."""
        engine = self.engine
        if not isinstance(engine, AdmittingEngine):
            return
        while True:
            late_s = self.clock.now_s() + engine.next_late_in_s()
            if min(late_s, self._due_s) > end_s:
                return
            if late_s < self._due_s:
                self.clock.jump(late_s)
                self._note(engine.refuse_late())
            else:
                self.clock.jump(self._due_s)
                self._arrive()

    def _arrive(self) -> None:
        assert self._next is not None
        at_s, request = self._next
        self._next = next(self._arrivals, None)
        self._send(request, at_s)

    def _send(self, request: GenerationRequest, sent_s: float) -> None:
        record = self.records[request.key] = Record(request, sent_s)
        try:
            self.engine.add(request)
        except Unavailable:
            record.refused_s = self.clock.now_s()

    def _note(self, chunks: list[TokenChunk]) -> int:
        """Note chunks in their records, and return how many requests are done."""
        num_done = 0
        for chunk in chunks:
            record, now_s = self.records[chunk.key], self.clock.now_s()
            if chunk.token_ids:
                record.first_s = now_s if record.first_s is None else record.first_s
                record.last_s = now_s
                record.num_tokens += len(chunk.token_ids)
            if chunk.error is not None:
                record.refused_s = now_s
            elif chunk.finish_reason is not None:
                record.is_done = True
                num_done += 1
        return num_done
