# SPDX-License-Identifier: Apache-2.0
"""A steady load and its measurements: clients that each send the next request when the answer is there.

Clients begin with an answer of another length each, so that afterwards they end and begin at different times; what is
counted begins when all of them have had that first one. Until the last counted request has ended nobody stops sending.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from build_engines.prove.proof import Figures
from clients.latency import Arrival, RequestRecord, tpot_ms, ttft_ms
from trireme.base.sample_statistics import percentile


class SteadyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load of equal requests."""

    concurrency: int
    isl: int  # tokens of a prompt
    osl: int  # tokens of an answer, exactly
    num_requests: int  # requests that are counted


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a load."""

    figures: Figures
    ttft_p99_ms: float
    num_requests: int


class Turn(NamedTuple):
    """A request of a client."""

    number: int
    num_tokens: int  # to ask for


class _Running:
    def __init__(self, sent_ns: int, *, is_counted: bool) -> None:
        self.sent_ns = sent_ns
        self.is_counted = is_counted
        self.arrivals: list[Arrival] = []


class ClosedLoop:
    """The record of a load; the caller sends, and reports what came and when.

    Times are of any clock that only goes on.
    """

    def __init__(self, load: SteadyLoad) -> None:
        self._load = load
        self._running: dict[int, _Running] = {}
        self._num_sent = self._num_first_answers = self._num_counted = self._num_tokens = 0
        self._records: list[RequestRecord] = []
        self._began_ns: int | None = None
        self._ended_ns = 0

    @property
    def is_over(self) -> bool:
        """Return True if all that is to be counted has ended; what runs still may be cancelled."""
        return len(self._records) == self._load.num_requests

    def send(self, now_ns: int) -> Turn:
        """Return a client's next request, sent at `now_ns`."""
        load, number = self._load, self._num_sent
        self._num_sent += 1
        is_counted = self._began_ns is not None and self._num_counted < load.num_requests
        self._num_counted += is_counted
        self._running[number] = _Running(now_ns, is_counted=is_counted)
        if number >= load.concurrency:
            return Turn(number, load.osl)
        return Turn(number, max(1, load.osl * (number + 1) // load.concurrency))

    def arrive(self, number: int, num_tokens: int, now_ns: int) -> None:
        """Record that tokens of a request have come."""
        self._running[number].arrivals.append(Arrival(now_ns, num_tokens))
        if self._began_ns is not None and not self.is_over:
            self._num_tokens += num_tokens

    def end(self, number: int, now_ns: int) -> None:
        """Record that a request has all of its tokens."""
        running = self._running.pop(number)
        if number < self._load.concurrency:
            self._num_first_answers += 1
            if self._num_first_answers == self._load.concurrency:
                self._began_ns = now_ns
        elif running.is_counted and not self.is_over:
            self._records.append(RequestRecord(running.sent_ns, tuple(running.arrivals)))
            self._ended_ns = now_ns

    def measured(self) -> Measured:
        """Return the means over the counted requests, and the tokens of every request in that time."""
        assert self.is_over, "the load has not run to its end"
        assert self._began_ns is not None
        ttfts_ms = [ttft_ms(record) for record in self._records]
        tpots_ms = [tpot_ms(record) for record in self._records if record.output_tokens > 1]
        figures = Figures(
            ttft_ms=sum(ttfts_ms) / len(ttfts_ms),
            tpot_ms=sum(tpots_ms) / len(tpots_ms) if tpots_ms else 0.0,
            tokens_per_s=self._num_tokens / max(1e-9, (self._ended_ns - self._began_ns) / 1e9),
        )
        return Measured(figures, percentile(ttfts_ms, 99, method="higher"), len(ttfts_ms))


def random_prompts(vocab_size: int, num_tokens: int, *, seed: int) -> Iterator[list[int]]:
    """Yield prompts without end, and none like another: no cache helps.

    The first ids, where special tokens are, do not occur.
    """
    rng = random.Random(seed)
    first = min(64, vocab_size // 2)
    while True:
        yield [rng.randrange(first, vocab_size) for _ in range(num_tokens)]
