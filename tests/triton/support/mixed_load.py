# SPDX-License-Identifier: Apache-2.0
"""Seeded everyday load: streaming and not, right and wrong, read to the end or left early, short and long."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from clients.streaming import AsyncTritonClient, GenerateRequest
from trireme.base.errors import RequestError

NUM_CALLERS = 16
MEASURED = ("arrival_time_ns", "last_token_time_ns")  # of return_perf_metrics, and known to every engine
_WORDS = ["fox", "Paris", "法国的首都", "😀", "مرحبا", "23 + 45 =", "word"]


class MixedLoad:
    """Requests to `ensemble`, 16 at a time, drawn by seed."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.num_responses = 0

    def run(self, num_requests: int) -> None:
        """Send requests, and return when each had its answer, its error or its cancellation."""
        asyncio.run(self._run(num_requests))

    async def _run(self, num_requests: int) -> None:
        left = iter(range(num_requests))
        async with AsyncTritonClient(self._url) as client:
            await asyncio.gather(*(self._call(client, left) for _ in range(NUM_CALLERS)))

    async def _call(self, client: AsyncTritonClient, left: Iterator[int]) -> None:
        ways = {self._read: 12, self._be_refused: 2, self._miss_the_model: 1, self._leave: 3, self._lose_patience: 2}
        for _ in left:
            [way] = self._rng.choices(list(ways), list(ways.values()))
            await way(client)
            self.outcomes[way.__name__.strip("_")] += 1

    async def _read(self, client: AsyncTritonClient) -> None:
        is_final = False
        async for chunk in client.generate(self._request(), perf_outputs=MEASURED):
            self.num_responses += 1
            is_final = chunk.is_final
        assert is_final

    async def _be_refused(self, client: AsyncTritonClient) -> None:
        with pytest.raises(RequestError, match="top_p"):
            await anext(client.generate(self._request(top_p=1.5), perf_outputs=MEASURED))

    async def _miss_the_model(self, client: AsyncTritonClient) -> None:
        with pytest.raises(RequestError, match="no_such_model"):
            await anext(client.generate(self._request(), model="no_such_model"))

    async def _leave(self, client: AsyncTritonClient) -> None:
        async with contextlib.aclosing(client.generate(self._request(), perf_outputs=MEASURED)) as chunks:
            for _ in range(self._rng.randrange(1, 10)):
                self.num_responses += await anext(chunks, None) is not None

    async def _lose_patience(self, _: AsyncTritonClient) -> None:
        """Ask on a connection of its own, which goes too."""
        with contextlib.suppress(TimeoutError):
            async with AsyncTritonClient(self._url) as client, asyncio.timeout(self._rng.uniform(0.001, 0.05)):
                await self._read(client)

    def _request(self, *, top_p: float | None = None) -> GenerateRequest:
        rng = self._rng
        return GenerateRequest(
            text_input=" ".join(rng.choices(_WORDS, k=rng.choice([1, 10, 100, 300]))),
            max_tokens=rng.choice([1, 8, 32, 64]),
            stream=rng.random() < 0.6,
            temperature=rng.choice([None, 0.8]),
            seed=rng.randrange(2**64),
            top_p=top_p,
            stop_words=rng.choice([None, ("zzz", "\n\n")]),
            return_num_output_tokens=rng.choice([None, True]),
            return_perf_metrics=rng.choice([None, True]),
            return_finish_reason=True,
        )
