# SPDX-License-Identifier: Apache-2.0
"""Callers that ask again and again, beside the test, until they are told to stop."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence

from clients.streaming import AsyncTritonClient, GenerateRequest
from trireme.base.errors import ServingError


@contextlib.contextmanager
def steady_load(
    url: str, requests: Sequence[GenerateRequest], *, num_callers: int, models: Sequence[str] = ("ensemble",)
) -> Iterator[None]:
    """Have each caller send these requests in turn, to each model in turn, while entered; errors are part of it."""
    over = threading.Event()

    async def call(client: AsyncTritonClient, number: int) -> None:
        while not over.is_set():
            request, model = requests[number % len(requests)], models[number % len(models)]
            number += num_callers + 1
            try:
                async for _ in client.generate(request, model=model):
                    pass
            except ServingError:
                await asyncio.sleep(0.05)

    async def run() -> None:
        async with AsyncTritonClient(url) as client:
            await asyncio.gather(*(call(client, number) for number in range(num_callers)))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
