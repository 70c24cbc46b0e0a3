# SPDX-License-Identifier: Apache-2.0
"""The way from a body to the chunks of its answer, whatever carries them to the caller."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from clients.anthropic_api.messages_body import message_request_of
from clients.infer_messages import GenerateRequest
from clients.openai_api.api_error import NOT_BEGUN, is_of_the_operator
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.request_bodies import requests_of
from clients.openai_api.responses_body import response_request_of
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from gateway.access.caller import Caller
from gateway.allowances import Allowances
from gateway.answer import NO_TIER, Answer, Tier
from gateway.fallback.chains import Chains
from gateway.ledger.counted_answer import CountedAnswer
from gateway.running_answer import CLIENT_GONE, REQUEST_ID, Observers, RunningAnswer
from gateway.served_models import ServedModels
from gateway.tiers import model_of
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.gateway")

_BASE = GenerateRequest(
    max_tokens=1,
    exclude_input_in_output=True,
    return_num_input_tokens=True,
    return_num_output_tokens=True,
    return_num_cached_tokens=True,
    return_finish_reason=True,
)


class Answering:
    """The models of a gateway, and what asks them.

    Args:
        models: that callers may name.
        chains: the answerers of each.
        observers: are told of each request.
        allowances: of the callers.
        timeout_s: of an answer, whoever gives it.
    """

    def __init__(
        self, models: ServedModels, chains: Chains, observers: Observers, allowances: Allowances, *, timeout_s: float
    ) -> None:
        self.models, self.metrics, self._timeout_s = models, observers.metrics, timeout_s
        self._chains, self._observers, self._allowances = chains, observers, allowances

    def begin(self, asked: Asked, caller: Caller) -> Answer:
        """Return the answer to what is asked.

        Raises:
            ApiError: there is no such model, it is not for this caller, or it cannot do what is asked.
        """
        found = self.models.tiers.find(asked.model, caller)
        name, tier = asked.model, NO_TIER
        if found is not None:
            name = model_of(found, asked)
            tier = Tier(found.name, self._chains.answerer(found.large))
        chain = self._chains.of(self.models.get_text(name, caller), caller)
        if caller.tenant:  # whose share of the server it is
            requests = tuple(msgspec.structs.replace(each, tenant=caller.tenant) for each in asked.requests)
            asked = msgspec.structs.replace(asked, requests=requests)
        return Answer(asked, chain, tier, timeout_s=self._timeout_s)

    @asynccontextmanager
    async def running(self, answer: CountedAnswer, caller: Caller) -> AsyncIterator[RunningAnswer]:
        """Give an answer inside the block: its caller's limits hold a place for it, and its end is told.

        Raises:
            ApiError: a limit or a budget is reached (429), or the answer failed before its first byte.
        """
        async with self._allowances.reserved(answer, caller) as allowed:
            running = RunningAnswer(answer, caller, self._observers, allowed)
            try:
                yield running
            except ServingError as exc:
                if is_of_the_operator(exc):
                    _log.error("%s", exc.message)
                error = answer.broken(exc)
                error.headers[REQUEST_ID] = answer.id
                if answer.has_asked_nobody(exc):
                    error.headers[NOT_BEGUN] = "true"
                running.fail(error.code)
                raise error from exc
            except (asyncio.CancelledError, ConnectionError):
                running.fail(CLIENT_GONE)
                raise
            except Exception:
                running.fail("server_error")
                raise
            finally:
                running.end()


def asked_by(endpoint: Endpoint, body: Mapping[str, Any], *, earlier: Sequence[Mapping[str, Any]] = ()) -> Asked:
    """Return what a body asks for.

    Args:
        earlier: messages before those of the body.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    if endpoint is Endpoint.RESPONSES:
        asked = response_request_of(body, base=_BASE, chat_tokens=AS_MANY_AS_FIT)
    elif endpoint is Endpoint.MESSAGES:
        asked = message_request_of(body, base=_BASE)
    else:
        asked = requests_of(endpoint, body, base=_BASE, chat_tokens=AS_MANY_AS_FIT)
    if not earlier:
        return asked
    requests = tuple(
        msgspec.structs.replace(request, messages=[*map(dict, earlier), *(request.messages or ())])
        for request in asked.requests
    )
    return msgspec.structs.replace(asked, requests=requests)
