# SPDX-License-Identifier: Apache-2.0
"""The answer of the server to what one body asks for: the chunks of its requests, as they come."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.openai_api.asked import Asked
from gateway.served_models import ServedModel
from gateway.servers.server_pool import ServerPool
from trireme.base.errors import ServingError

Chunks = AsyncGenerator[tuple[int, GenerateChunk], None]

_MAX_AHEAD = 64  # chunks that a slow reader has not taken, of a body with several prompts


class Generation:
    """The requests to the servers.

    Args:
        pool: of the servers.
        timeout_s: for each request, waiting included.
    """

    def __init__(self, pool: ServerPool, *, timeout_s: float) -> None:
        self._pool, self._timeout_s = pool, timeout_s

    async def is_ready(self, model: ServedModel) -> bool:
        """Return whether a server takes requests for a model now.

        Raises:
            AccessDenied: the only server does not accept this process.
        """
        return await self._pool.is_ready(model.triton_model)

    def chunks(self, asked: Asked, model: ServedModel) -> Chunks:
        """Yield each chunk with the index of its request; closing the iterator cancels the requests on the server.

        Raises:
            ServingError: one of the requests failed; the others are cancelled.
        """
        if len(asked.requests) == 1:
            return self._of_one(asked.requests[0], model, asked.session)
        return self._of_several(asked, model)

    async def _of_one(self, request: GenerateRequest, model: ServedModel, session: str) -> Chunks:
        async with contextlib.aclosing(self._ask(request, model, session)) as chunks:
            async for chunk in chunks:
                yield 0, chunk

    async def _of_several(self, asked: Asked, model: ServedModel) -> Chunks:
        queue = asyncio.Queue[tuple[int, GenerateChunk] | ServingError | None](_MAX_AHEAD)

        async def read(index: int, request: GenerateRequest) -> None:
            try:
                async with contextlib.aclosing(self._ask(request, model, asked.session)) as chunks:
                    async for chunk in chunks:
                        await queue.put((index, chunk))
            except ServingError as exc:
                await queue.put(exc)
            await queue.put(None)

        readers = [asyncio.create_task(read(index, request)) for index, request in enumerate(asked.requests)]
        num_reading = len(readers)
        try:
            while num_reading:
                match await queue.get():
                    case None:
                        num_reading -= 1
                    case ServingError() as error:
                        raise error
                    case found:
                        yield found
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    def _ask(self, request: GenerateRequest, model: ServedModel, session: str) -> AsyncGenerator[GenerateChunk, None]:
        if model.has_admission and request.deadline_ms is None:  # what cannot be done in time is not begun
            request = msgspec.structs.replace(request, deadline_ms=round(1000 * self._timeout_s))
        return self._pool.generate(request, model=model, timeout_s=self._timeout_s, session=session)
