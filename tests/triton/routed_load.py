# SPDX-License-Identifier: Apache-2.0
"""Clients that go where a rollout says, without a pause, each answer checked to its last character."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Self

from streams_under_change import PROMPTS, request

from clients.rollout.routed_client import RoutedClient
from ensemble_configs.errors import ServingError


class RoutedLoad:
    """So many streams at a time, in a thread of their own, until left.

    Attributes:
        by_release: what each release says to each prompt.
        num_answers: by release.
        wrong: answers that are of no release, or that ended in the middle.
        refused: requests that had a clean refusal before their first text.
    """

    def __init__(
        self, url: str, split_url: str, by_release: Mapping[int, Mapping[str, str]], *, num_streams: int = 32
    ) -> None:
        self._url, self._split_url, self._num_streams = url, split_url, num_streams
        self.by_release = by_release
        self.num_answers: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.refused: list[str] = []
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    async def _run(self) -> None:
        async with RoutedClient(self._url, self._split_url) as client:
            await asyncio.gather(*(self._stream(client, number) for number in range(self._num_streams)))

    async def _stream(self, client: RoutedClient, number: int) -> None:
        rng = random.Random(number)
        while not self._is_done.is_set():
            prompt = rng.choice(PROMPTS)
            text = ""
            try:
                async for chunk in client.generate(request(prompt), key=rng.choice([None, f"user {number}"])):
                    text += chunk.text
            except ServingError as exc:
                (self.wrong if text else self.refused).append(f"{exc} after {text!r}")
                await asyncio.sleep(0.1)
                continue
            of = [release for release, said in self.by_release.items() if said[prompt] == text]
            self.num_answers.update(of)
            if not of:
                self.wrong.append(f"{prompt!r} -> {text!r}")
