# SPDX-License-Identifier: Apache-2.0
"""A call to the servers of a pool that is answered whole: asked once more elsewhere where a server fails."""

import asyncio

from clients.embedding_messages import EmbeddingRequest, Embeddings
from gateway.servers.asked_server import AskedServer
from gateway.servers.failures import may_do_better
from gateway.servers.retry_budget import RetryBudget
from gateway.servers.routed_request import Servers
from gateway.servers.server import Server
from trireme.base.errors import ServingError


async def embed_by_one(
    request: EmbeddingRequest, *, model: str, servers: Servers, retries: RetryBudget, deadline_s: float
) -> Embeddings:
    """Return the vectors by the server with the fewest running requests, or by one other where that fails.

    Args:
        model: Triton's name of the model.
        retries: pays for the second try.
        deadline_s: by the clock of the event loop.

    Raises:
        ServingError: as `AsyncTritonClient.embed`, by the last server that was asked.
    """
    tried: list[Server] = []
    while True:
        server = servers.choose(model, (), tried, is_session=False)
        tried.append(server)
        try:
            return await _ask(server, request, model, deadline_s)
        except ServingError as exc:
            is_over = len(tried) > 1 or not may_do_better(exc) or not servers.fit(model, tried)
            if is_over or not retries.take():
                raise


async def _ask(server: Server, request: EmbeddingRequest, model: str, deadline_s: float) -> Embeddings:
    """Return the answer of one server, and note what that says about it."""
    timeout_s = max(deadline_s - asyncio.get_running_loop().time(), 0.001)
    with AskedServer(server) as asked:
        found = await server.client.embed(request, model=model, timeout_s=timeout_s)
        asked.note_answer()
    return found
