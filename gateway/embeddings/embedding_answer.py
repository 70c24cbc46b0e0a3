# SPDX-License-Identifier: Apache-2.0
"""The answer to a request for embeddings: its rows go to the servers in parts, of which a few run at a time."""

import asyncio
import secrets
from collections.abc import Iterator

from clients.embedding_messages import EmbeddingRequest, Embeddings
from clients.openai_api.answer_deltas import Usage
from clients.openai_api.api_error import ApiError, api_error
from clients.openai_api.asked import Endpoint
from clients.openai_api.embeddings_body import AskedEmbeddings
from ensemble_configs.render.embedding_tensors import IDS, TEXTS
from gateway.limits.answer_estimate import CHARS_PER_TOKEN
from gateway.served_models import ServedModel
from gateway.servers.failures import NO_SERVER
from gateway.servers.server_pool import ServerPool
from trireme.base.errors import RequestError, ServingError

_MOST_AT_ONCE = 4  # parts of one request: others' requests are to have their turn


class EmbeddingAnswer:
    """An answer that has not begun yet, or runs.

    Attributes:
        id: name of the request.
        endpoint: of the request.
    """

    endpoint = Endpoint.EMBEDDINGS
    is_kept = is_streaming = False
    tier, finish_reason = "", "stop"
    release: int | None = None
    similarity: float | None = None

    def __init__(self, asked: AskedEmbeddings, model: ServedModel) -> None:
        assert model.embedding is not None, "a model that makes embeddings"
        self.id = secrets.token_hex(12)
        self._asked, self._model, self._part_size = asked, model, model.embedding.max_batch_size
        self._num_tokens = 0

    @property
    def model(self) -> str:
        """Return the name of the model that was asked for."""
        return self._model.name

    @property
    def answered_by(self) -> str:
        """Return the name of the model that answers, which no other stands in for: its vectors are of its own space."""
        return self._model.name

    @property
    def made(self) -> Usage:
        """Return the tokens of the texts that have their vectors."""
        return Usage(self._num_tokens)

    @property
    def estimate(self) -> Usage:
        """Return the tokens that the texts may have."""
        request = self._asked.request
        num_ids = sum(map(len, request.ids))
        return Usage(num_ids + sum(map(len, request.texts)) // CHARS_PER_TOKEN)

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost, in billionths of a US dollar."""
        return self._model.cost_nano_usd(usage)

    def most_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost at most: what they cost."""
        return self._model.cost_nano_usd(usage)

    def saved_nano_usd(self) -> int:
        """Return 0: the vectors were made, by the model that was asked."""
        return 0

    def has_asked_nobody(self, failure: ServingError) -> bool:
        """Return whether a failure says that no server was asked for any part."""
        return failure.facts.get("reason") == NO_SERVER and not self._num_tokens

    async def vectors(self, pool: ServerPool, *, timeout_s: float) -> list[bytes]:
        """Return the FP32 values of each vector, in the order of the rows.

        Raises:
            ServingError: a part failed; the others are cancelled.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        places = asyncio.Semaphore(_MOST_AT_ONCE)

        async def ask(begin: int, part: EmbeddingRequest) -> Embeddings:
            async with places:
                try:
                    found = await pool.embed(part, model=self._model, deadline_s=deadline_s)
                except RequestError as exc:
                    raise _of_whole(exc, begin) from exc
            self._num_tokens += sum(found.num_tokens)
            return found

        tasks = [asyncio.create_task(ask(begin, part)) for begin, part in self._parts()]
        try:
            return [vector for found in await asyncio.gather(*tasks) for vector in found.vectors]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def broken(self, cause: Exception) -> ApiError:
        """Return the error that its caller is told of; a row that is wrong is named by its place in `input`."""
        if not isinstance(cause, ServingError):
            return ApiError("the gateway failed; the reason is in its log", code="server_error", status=500)
        field = cause.facts.get("field")
        if not isinstance(cause, RequestError) or field not in (TEXTS, IDS):
            return api_error(cause)
        index = cause.facts.get("index")
        where = "input" if index is None or self._asked.request.num_rows == 1 else f"input[{index}]"
        message = cause.message
        message = where + message.removeprefix(str(field)) if message.startswith(str(field)) else f"{where}: {message}"
        code = "context_length_exceeded" if "max" in cause.facts else "invalid_value"
        return ApiError(message, code=code, param="input")

    def _parts(self) -> Iterator[tuple[int, EmbeddingRequest]]:
        request = self._asked.request
        for begin in range(0, request.num_rows, self._part_size):
            yield begin, request.part(begin, begin + self._part_size)


def _of_whole(exc: RequestError, begin: int) -> RequestError:
    """Return the refusal of a part with the row's place in the whole request."""
    index = exc.facts.get("index")
    return RequestError(exc.message, **exc.facts | ({"index": begin + index} if isinstance(index, int) else {}))
