# SPDX-License-Identifier: Apache-2.0
"""The path `/v1/embeddings`."""

from aiohttp import web

from clients.openai_api.api_error import body_of_json
from clients.openai_api.embeddings_body import embeddings_answer, embeddings_asked_by
from gateway.access.caller import Caller
from gateway.answering import Answering
from gateway.embeddings.embedding_answer import EmbeddingAnswer
from gateway.json_answers import json_answer
from gateway.servers.server_pool import ServerPool


class EmbeddingRoutes:
    """The handler of the path.

    Args:
        answering: knows the models, and who may take how much.
        pool: of the servers.
        timeout_s: of a request.
    """

    def __init__(self, answering: Answering, pool: ServerPool, *, timeout_s: float) -> None:
        self._answering, self._pool, self._timeout_s = answering, pool, timeout_s

    async def embed(self, _request: web.BaseRequest, body: bytes, caller: Caller) -> web.StreamResponse:
        """Answer with a vector of each text.

        Raises:
            ApiError: the request is refused, or failed.
        """
        asked = embeddings_asked_by(body_of_json(body))
        model = self._answering.models.get_embedding(asked.model, caller)
        answer = EmbeddingAnswer(asked, model)
        async with self._answering.running(answer, caller) as running:
            vectors = await answer.vectors(self._pool, timeout_s=self._timeout_s)
        found = embeddings_answer(vectors, answer.made, model=model.name, is_base64=asked.is_base64)
        return json_answer(found, headers=running.headers())
