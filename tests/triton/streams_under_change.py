# SPDX-License-Identifier: Apache-2.0
"""Streams that never cease while the server under them changes, each checked to its last character."""

import asyncio
import contextlib
import random
import threading
from dataclasses import dataclass, field
from typing import Self

from clients.streaming import AsyncTritonClient, GenerateRequest, TritonClient
from ensemble_configs.errors import ServingError

PROMPTS = tuple(f"Tell me about the number {number}" for number in range(8))


def request(prompt: str, *, max_tokens: int = 40) -> GenerateRequest:
    return GenerateRequest(text_input=prompt, max_tokens=max_tokens, stream=True, exclude_input_in_output=True)


def answers(url: str, model: str, *, max_tokens: int = 40) -> dict[str, str]:
    """What one model says to each prompt."""
    with TritonClient(url) as client:
        return {
            prompt: "".join(
                chunk.text for chunk in client.generate(request(prompt, max_tokens=max_tokens), model=model)
            )
            for prompt in PROMPTS
        }


@dataclass
class Streams:
    """So many at a time, in a thread of their own, until left.

    Attributes:
        share: of the requests that go to `ensemble_canary`; may be changed at any time.
        by_release: what each release says to each prompt; a text that is of none is wrong.
    """

    url: str
    by_release: dict[int, dict[str, str]]
    num_streams: int = 32
    share: float = 0.0
    num_answers: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    async def _run(self) -> None:
        async with AsyncTritonClient(self.url) as client:
            await asyncio.gather(*(self._stream(client, random.Random(n)) for n in range(self.num_streams)))

    async def _stream(self, client: AsyncTritonClient, rng: random.Random) -> None:
        while not self._is_done.is_set():
            prompt = rng.choice(PROMPTS)
            model = "ensemble_canary" if rng.random() < self.share else "ensemble"
            text = ""
            try:
                async for chunk in client.generate(request(prompt), model=model):
                    text += chunk.text
            except ServingError as exc:
                (self.wrong if text else self.refused).append(f"{model}: {exc} after {text!r}")
                await asyncio.sleep(0.05)
                continue
            of = [release for release, said in self.by_release.items() if said[prompt] == text]
            if not of:
                self.wrong.append(f"{model}: {prompt!r} -> {text!r}")
            for release in of:
                self.num_answers[release] = self.num_answers.get(release, 0) + 1

    def wait_for(self, release: int, count: int, timeout_s: float = 30.0) -> None:
        """Until so many more answers of a release have come."""
        before = self.num_answers.get(release, 0)
        with contextlib.suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(self._reaches(release, before + count), timeout_s))
        found = self.num_answers.get(release, 0) - before
        assert found >= count, f"{found} answers of release {release}; refused: {self.refused[-3:]}"

    async def _reaches(self, release: int, count: int) -> None:
        while self.num_answers.get(release, 0) < count:
            await asyncio.sleep(0.02)
