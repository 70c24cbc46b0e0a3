# SPDX-License-Identifier: Apache-2.0
"""The check of the server before a job's first line: that it answers, and whether it knows classes."""

import asyncio
import time

from clients.batch.retry_policy import FailureKind, failure_kind_of
from clients.infer_messages import GenerateRequest
from clients.streaming import AsyncTritonClient
from trireme.base.errors import AccessDenied, RequestError, ServingError

_READY_S = 30.0  # an engine that is just being restarted
_PAUSE_S = 0.5
_ANSWER_S = 60.0


async def check_server(client: AsyncTritonClient, base: GenerateRequest, *, model: str) -> None:
    """Send one token's worth of a request as the job will send its own.

    Raises:
        RequestError: there is no such model, or it does not make text of text; or the server has no admission and the
            job wants a class or a tenant.
        ServingError: nothing answers, or not for half a minute.
    """
    probe = GenerateRequest(text_input="a", max_tokens=1, priority=base.priority, tenant=base.tenant)
    until_s = time.monotonic() + _READY_S
    while True:
        try:
            async for _ in client.generate(probe, model=model, timeout_s=_ANSWER_S):
                pass
        except ServingError as exc:
            match failure_kind_of(exc):
                case FailureKind.UNFIT if not isinstance(exc, AccessDenied):
                    raise _without_admission(exc) from exc
                case FailureKind.BUSY:  # it has been looked at: the server knows classes
                    return
                case FailureKind.WRONG:  # no line of any job could be right there
                    raise RequestError(
                        f"--model {model} does not answer a text of one token: {exc.message}; name a model from text "
                        "to text, such as ensemble",
                        field="model",
                        value=model,
                    ) from exc
            is_coming_back = exc.facts.get("reason") in {"engine_restarting", "engine_died", "engine_hung"}
            if not is_coming_back or time.monotonic() > until_s:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            return


def _without_admission(error: ServingError) -> RequestError:
    field = error.facts.get("field")
    if field == "tenant":
        return RequestError(error.message, field=field)
    return RequestError(
        "this server has no admission, so it takes no priority: a batch job would compete with everybody's requests as "
        "an equal. Put `admission` into its deployment (docs/admission.md), or, where nobody else uses the server, say "
        "--without-admission",
        field=field,
    )
