# SPDX-License-Identifier: Apache-2.0
"""Streams that never cease while the server under them changes, each checked to its last character."""

import asyncio
import contextlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Self

from clients.access import NO_ACCESS, Access
from clients.rollout.routing.routed_client import RoutedClient
from clients.streaming import AsyncTritonClient, GenerateChunk, GenerateRequest, TritonClient
from trireme.base.errors import ServingError

MAX_TOKENS = 10
PAUSE_S = 0.5  # of callers of a rollout that takes a while
PROMPTS = tuple(f"Tell me about the number {number}" for number in range(8))


def request(prompt: str, *, max_tokens: int = MAX_TOKENS) -> GenerateRequest:
    return GenerateRequest(text_input=prompt, max_tokens=max_tokens, stream=True, exclude_input_in_output=True)


def answers(url: str, model: str, *, release: int | None = None, max_tokens: int = MAX_TOKENS) -> dict[str, str]:
    """Return what one model, or one release by it, says to each prompt."""
    with TritonClient(url) as client:
        return {
            prompt: "".join(
                chunk.text
                for chunk in client.generate(request(prompt, max_tokens=max_tokens), model=model, release=release)
            )
            for prompt in PROMPTS
        }


Ask = Callable[[str, random.Random], AsyncGenerator[GenerateChunk, None]]


class Streams:
    """A number of streams at a time, in a thread of their own, until left.

    Attributes:
        by_release: what each release says to each prompt; a text that is of none is wrong.
        max_tokens: of each answer.
        share: of the requests that go to `ensemble_canary`; may be changed at any time.
        num_answers: by release.
        wrong: answers that are of no release, or that ended in the middle.
        mixed: those of them whose text no release says, nor, where an error cut it, begins with.
        refused: requests that had a clean refusal before their first text.
    """

    def __init__(
        self,
        url: str,
        by_release: Mapping[int, Mapping[str, str]],
        *,
        num_streams: int = 32,
        max_tokens: int = MAX_TOKENS,
        pause_s: float = 0.2,
    ) -> None:
        """Make streams, which begin when entered.

        Args:
            pause_s: mean of a caller between two answers; 0: none, and many streams take all CPU time that is left, of
                which the change under them needs some, too.
        """
        self.by_release = by_release
        self.max_tokens = max_tokens
        self.share = 0.0
        self.num_answers: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.mixed: list[str] = []
        self.refused: list[str] = []
        self._pause_s = pause_s
        self._url = url
        self._num_streams = num_streams
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Ask]:
        """Yield a function that asks one prompt."""
        async with AsyncTritonClient(self._url) as client:
            yield lambda prompt, rng: client.generate(
                request(prompt, max_tokens=self.max_tokens),
                model="ensemble_canary" if rng.random() < self.share else "ensemble",
            )

    async def _run(self) -> None:
        async with self.connect() as ask:
            await asyncio.gather(*(self._stream(ask, random.Random(n)) for n in range(self._num_streams)))

    async def _stream(self, ask: Ask, rng: random.Random) -> None:
        while not self._is_done.is_set():
            prompt, text = rng.choice(PROMPTS), ""
            try:
                async for chunk in ask(prompt, rng):
                    text += chunk.text
            except ServingError as exc:
                (self.wrong if text else self.refused).append(f"{exc} after {text!r}")
                if not any(said[prompt].startswith(text) for said in self.by_release.values()):
                    self.mixed.append(f"{prompt!r} -> {text!r}")
                await asyncio.sleep(0.1)
                continue
            of = [release for release, said in self.by_release.items() if said[prompt] == text]
            self.num_answers.update(of)
            if not of:
                self.wrong.append(f"{prompt!r} -> {text!r}")
                self.mixed.append(self.wrong[-1])
            await asyncio.sleep(rng.expovariate(1 / self._pause_s) if self._pause_s else 0)

    def wait_for(self, release: int, count: int, timeout_s: float = 30.0) -> None:
        """Wait until so many more answers of a release have come."""
        before = self.num_answers[release]
        with contextlib.suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(self._reaches(release, before + count), timeout_s))
        found = self.num_answers[release] - before
        assert found >= count, f"{found} answers of release {release}; refused: {self.refused[-3:]}"

    async def _reaches(self, release: int, count: int) -> None:
        while self.num_answers[release] < count:
            await asyncio.sleep(0.02)


class RoutedLoad(Streams):
    """Streams of clients that go where a rollout says; every other request has one of 32 keys, in turn."""

    def __init__(
        self,
        url: str,
        split_url: str,
        by_release: Mapping[int, Mapping[str, str]],
        *,
        access: Access = NO_ACCESS,
        **how_many: Any,
    ) -> None:
        super().__init__(url, by_release, **how_many)
        self._split_url = split_url
        self._access = access
        # In turn and not drawn, so that a short load has asked with each.
        self._keys = itertools.cycle(key for number in range(32) for key in (None, f"user {number}"))

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Ask]:
        async with RoutedClient(self._url, self._split_url, access=self._access) as client:
            yield lambda prompt, _rng: client.generate(
                request(prompt, max_tokens=self.max_tokens), key=next(self._keys)
            )
