# SPDX-License-Identifier: Apache-2.0
"""The way from a body to the chunks of its answer, whatever carries them to the caller."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.answer_deltas import AnswerDeltas
from clients.openai_api.api_error import ApiError, api_error, is_of_the_operator
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.request_bodies import requests_of
from clients.openai_api.responses_body import response_request_of
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from gateway.access.caller import Caller
from gateway.gateway_metrics import GatewayMetrics, RequestWatch
from gateway.generation import Chunks, Generation
from gateway.limits.limiter import Limiter, Reservation
from gateway.served_models import ServedModel, ServedModels
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.gateway")

CLIENT_GONE = "client_gone"  # in the metrics

# For the reservation alone: what is not taken comes back with the end of the request.
_CHARS_PER_TOKEN = 4
_USUAL_ANSWER = 512  # of one that may be as long as the model allows

# OpenTelemetry has no name for responses: they are chats.
_OPERATIONS = {Endpoint.CHAT: "chat", Endpoint.COMPLETIONS: "text_completion", Endpoint.RESPONSES: "chat"}
_BASE = GenerateRequest(
    max_tokens=1,
    exclude_input_in_output=True,
    return_num_input_tokens=True,
    return_num_output_tokens=True,
    return_finish_reason=True,
)


class Answer:
    """An answer that has not begun yet.

    Attributes:
        asked: what was asked for.
        model: that answers.
        deltas: reads the chunks.
    """

    def __init__(self, asked: Asked, model: ServedModel, generation: Generation, metrics: GatewayMetrics) -> None:
        self.asked, self.model = asked, model
        self.deltas = AnswerDeltas(asked, [model.reader(asked) for _ in range(asked.num_choices)])
        self._generation, self._metrics = generation, metrics

    def chunks(self) -> Chunks:
        """Yield each chunk with the index of its request; closing the iterator cancels the requests on the server.

        Raises:
            ServingError: one of the requests failed; the others are cancelled.
        """
        return self._generation.chunks(self.asked, self.model)

    @contextmanager
    def watching(self) -> Iterator[RequestWatch]:
        """Watch the answer to the end of the block, and make its failure one of the API."""
        with self._metrics.watching(_OPERATIONS[self.asked.endpoint], self.model.name) as watch:
            try:
                yield watch
            except ServingError as exc:
                if is_of_the_operator(exc):
                    _log.error("%s", exc.message)
                error = api_error(exc, is_chat=self.asked.is_chat)
                watch.error = error.code
                raise error from exc
            except asyncio.CancelledError:
                watch.error = CLIENT_GONE
                raise


class Answering:
    """The models of a gateway, and what asks them.

    Args:
        models: that callers may name.
        generation: asks the server.
        metrics: of the gateway.
    """

    def __init__(self, models: ServedModels, generation: Generation, metrics: GatewayMetrics) -> None:
        self.models, self.metrics = models, metrics
        self._generation, self._limiter = generation, Limiter()

    def begin(self, asked: Asked, caller: Caller) -> Answer:
        """Return the answer to what is asked.

        Raises:
            ApiError: there is no such model, it is not for this caller, or it cannot do what is asked.
        """
        model = self.models.get(asked.model, caller)
        if model.has_admission and caller.tenant:  # whose share of the server it is
            requests = tuple(msgspec.structs.replace(each, tenant=caller.tenant) for each in asked.requests)
            asked = msgspec.structs.replace(asked, requests=requests)
        return Answer(asked, model, self._generation, self.metrics)

    @contextmanager
    def reserved(self, answer: Answer, caller: Caller) -> Iterator[Reservation]:
        """Reserve what an answer may take of its caller's limits to the end of the block, and settle what it took.

        Raises:
            ApiError: 429: a limit is reached.
        """
        with self._limiter.reserve(caller.key_id, caller.limits, tokens=_estimate(answer.asked)) as reservation:
            try:
                yield reservation
            finally:
                reservation.settle(answer.deltas.usage.total_tokens)


def asked_by(endpoint: Endpoint, body: Mapping[str, Any], *, earlier: Sequence[Mapping[str, Any]] = ()) -> Asked:
    """Return what a body asks for, with requests that stream as the answer does.

    Args:
        earlier: messages before those of the body.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    if endpoint is Endpoint.RESPONSES:
        asked = response_request_of(body, base=_BASE, chat_tokens=AS_MANY_AS_FIT)
    else:
        asked = requests_of(endpoint, body, base=_BASE, chat_tokens=AS_MANY_AS_FIT)
    requests = [msgspec.structs.replace(request, stream=asked.is_streaming) for request in asked.requests]
    if earlier:
        requests = [
            msgspec.structs.replace(request, messages=[*map(dict, earlier), *(request.messages or ())])
            for request in requests
        ]
    return msgspec.structs.replace(asked, requests=tuple(requests))


def _estimate(asked: Asked) -> int:
    """Return how many tokens a body may take, before a tokenizer has seen it."""
    total = 0
    for request in asked.requests:
        most = _USUAL_ANSWER if request.max_tokens == AS_MANY_AS_FIT else request.max_tokens
        num_chars = request.num_prompt_chars + (len(msgspec.json.encode(request.tools)) if request.tools else 0)
        total += num_chars // _CHARS_PER_TOKEN + most * asked.n
    return total


def broken(cause: Exception, asked: Asked) -> ApiError:
    """Return the error with which an answer breaks off that has begun."""
    if isinstance(cause, ServingError):
        return api_error(cause, is_chat=asked.is_chat)
    return ApiError("the gateway failed; the reason is in its log", code="server_error", status=500)
