# SPDX-License-Identifier: Apache-2.0
"""A client of an engine's process, and what came out of it."""

import contextlib
import queue
import time
from collections.abc import Callable, Sequence

from serving.engine_process.engine_client import EngineClient
from serving.engine_process.engine_messages import Step
from serving.engine_process.engine_sources import OwnedEngine
from serving.engines.seam.base import EngineStats, FinishReason, GenerationRequest, SamplingParams, TokenChunk
from trireme.base.errors import Unavailable


class Adapter:
    """A client of an engine, and what came out of it."""

    def __init__(self, source: OwnedEngine) -> None:
        self.source = source
        self.chunks = queue.Queue[TokenChunk]()
        self.deaths = queue.Queue[Unavailable]()
        self.stats: EngineStats | None = None  # the last that came
        self.client = EngineClient(source, on_steps=self._take, on_death=self.deaths.put)

    def _take(self, steps: list[Step]) -> None:
        for step in steps:
            self.stats = step.stats or self.stats
            for chunk in step.chunks:
                self.chunks.put(chunk)

    def submit(self, key: int, max_tokens: int, prompt: Sequence[int] = (30, 31)) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, end_id=-1)
        self.client.submit(GenerationRequest(key=key, input_ids=list(prompt), sampling=sampling))

    def answer(self, key: int) -> list[int]:
        """Return the tokens of a request, at its end."""
        tokens: list[int] = []
        while True:
            chunk = self.chunks.get(timeout=60)
            if chunk.key != key:
                continue
            assert chunk.error is None
            tokens += chunk.token_ids
            if chunk.finish_reason is not None:
                assert chunk.finish_reason is FinishReason.LENGTH
                return tokens

    def ask(self, key: int) -> int:
        """Return the number of tokens of a request that ends."""
        self.submit(key, 5)
        return len(self.answer(key))

    def ask_when_back(self, key: int, timeout_s: float = 60.0) -> int:
        """Return the number of tokens of a request, from the first engine that takes requests again."""

        def is_taken() -> bool:
            with contextlib.suppress(Unavailable):
                self.ask(key)
                return True
            return False

        wait_until(is_taken, timeout_s=timeout_s)
        return 5


def wait_until(is_so: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: it is not so in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.05)
