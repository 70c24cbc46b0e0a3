# SPDX-License-Identifier: Apache-2.0
"""The requests of the last minute: those that run, those that have ended, and the tokens of each second."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from clients.openai_api.answer_deltas import Usage

WINDOW_S = 60
_MOST_ENDED = 20_000  # that are remembered, of all models; at more than 333 a second the window is shorter


class RequestInSight(Protocol):
    """A request that is being answered."""

    @property
    def model(self) -> str:
        """Return the model that was asked for."""
        ...

    @property
    def made(self) -> Usage:
        """Return the tokens so far that were computed for it."""
        ...

    @property
    def release(self) -> int | None:
        """Return the release that answers; None: it has not told, or has none."""
        ...


class ModelFigures(msgspec.Struct, frozen=True):
    """The figures of one model, of the last minute.

    Attributes:
        errors: requests that ended with an error, by its code.
        ttft_p50_s, ttft_p99_s: of streams that had a first text; None: there was none.
        releases: answers of each release that told its number.
        tokens_per_s, running: at each second, the newest last.
    """

    name: str
    running_requests: int
    ended_requests: int
    errors: dict[str, int]
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    releases: dict[int, int]
    tokens_per_s: list[float]
    running: list[int]


class _Ended(NamedTuple):
    at_s: float
    model: str
    error: str
    ttft_s: float | None
    release: int | None


class _Second(NamedTuple):
    at_s: float
    tokens: dict[str, int]  # all so far, by model
    running: dict[str, int]


class RecentRequests:
    """The requests of a gateway, in sight of whoever looks at it now.

    Args:
        now_s: seconds of a clock that nobody sets.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._running: dict[RequestInSight, None] = {}
        self._tokens: Counter[str] = Counter()  # of requests that have ended
        self._ended: deque[_Ended] = deque(maxlen=_MOST_ENDED)
        self._seconds: deque[_Second] = deque([_Second(now_s(), {}, {})], maxlen=WINDOW_S + 1)

    @property
    def num_running(self) -> int:
        """Return the number of requests that are being answered."""
        return len(self._running)

    def begin(self, request: RequestInSight) -> None:
        """Note that a request is being answered from now on."""
        self._running[request] = None

    def end(self, request: RequestInSight, *, error: str, ttft_s: float | None) -> None:
        """Note that a request is over. Args: `error`: its code; "": it ended well."""
        del self._running[request]
        self._tokens[request.model] += request.made.completion_tokens
        self._ended.append(_Ended(self._now_s(), request.model, error, ttft_s, request.release))

    @contextlib.asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """Count the tokens of each second inside the block."""
        counting = asyncio.create_task(self._count())
        try:
            yield
        finally:
            counting.cancel()

    def note_second(self) -> None:
        """Note the tokens so far; called once a second."""
        tokens, running = Counter(self._tokens), Counter[str]()
        for request in self._running:
            tokens[request.model] += request.made.completion_tokens
            running[request.model] += 1
        self._seconds.append(_Second(self._now_s(), tokens, running))

    def figures(self, models: Sequence[str]) -> list[ModelFigures]:
        """Return the figures of each of some models."""
        since_s = self._now_s() - WINDOW_S
        ended: defaultdict[str, list[_Ended]] = defaultdict(list)
        for each in self._ended:
            if each.at_s >= since_s:
                ended[each.model].append(each)
        running = Counter(request.model for request in self._running)
        return [self._of(model, running[model], ended[model]) for model in models]

    def _of(self, model: str, num_running: int, ended: list[_Ended]) -> ModelFigures:
        ttfts_s = sorted(each.ttft_s for each in ended if each.ttft_s is not None)
        seconds = list(self._seconds)
        return ModelFigures(
            name=model,
            running_requests=num_running,
            ended_requests=len(ended),
            errors=dict(Counter(each.error for each in ended if each.error)),
            ttft_p50_s=_percentile(ttfts_s, 50),
            ttft_p99_s=_percentile(ttfts_s, 99),
            releases=dict(Counter(each.release for each in ended if each.release is not None)),
            # A request that another model takes over begins its count anew.
            tokens_per_s=[
                round(max(0, new.tokens.get(model, 0) - old.tokens.get(model, 0)) / max(new.at_s - old.at_s, 1e-3), 1)
                for old, new in itertools.pairwise(seconds)
            ],
            running=[each.running.get(model, 0) for each in seconds[1:]],
        )

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.note_second()


def _percentile(values: list[float], percent: int) -> float | None:
    """Return the nearest-rank percentile of sorted values; None: there are none."""
    return values[max(0, -(-len(values) * percent // 100) - 1)] if values else None
