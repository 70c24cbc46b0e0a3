# SPDX-License-Identifier: Apache-2.0
"""The answer of the server to what one body asks for: the chunks of its requests, as they come."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.openai_api.asked import Asked
from gateway.served_models import ServedModel
from gateway.servers.server_pool import ServerPool
from trireme.base.errors import ServingError

Chunks = AsyncGenerator[tuple[int, GenerateChunk], None]

_MAX_AHEAD = 64  # chunks that a slow reader has not taken, of a body with several prompts


class Generation:
    """The requests to the servers. Args: `pool` of these."""

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool

    async def is_ready(self, model: ServedModel) -> bool:
        """Return whether a server takes requests for a model now.

        Raises:
            AccessDenied: the only server does not accept this process.
        """
        return await self._pool.is_ready(model.triton_model)

    def chunks(self, asked: Asked, model: ServedModel, *, deadline_s: float) -> Chunks:
        """Yield each chunk with the index of its request; closing the iterator cancels the requests on the server.

        Args:
            deadline_s: of the answer, by the clock of the event loop.

        Raises:
            ServingError: one of the requests failed; the others are cancelled.
        """
        if len(asked.requests) == 1:
            return self._of_one(asked.requests[0], model, asked.session, deadline_s)
        return self._of_several(asked, model, deadline_s)

    async def _of_one(self, request: GenerateRequest, model: ServedModel, session: str, deadline_s: float) -> Chunks:
        answer = self._pool.generate(request, model=model, deadline_s=deadline_s, session=session)
        async with contextlib.aclosing(answer) as chunks:
            async for chunk in chunks:
                yield 0, chunk

    async def _of_several(self, asked: Asked, model: ServedModel, deadline_s: float) -> Chunks:
        queue = asyncio.Queue[tuple[int, GenerateChunk] | ServingError | None](_MAX_AHEAD)

        async def read(index: int, request: GenerateRequest) -> None:
            try:
                async with contextlib.aclosing(self._of_one(request, model, asked.session, deadline_s)) as chunks:
                    async for _, chunk in chunks:
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
