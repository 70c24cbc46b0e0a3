# SPDX-License-Identifier: Apache-2.0
"""OpenAI's bodies of `/v1/completions` and `/v1/chat/completions` as requests of the serving contract.

A parameter is carried, or refused by name.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.body_fields import (
    Common,
    NotNegative,
    Positive,
    Refused,
    guide_of,
    includes_usage,
    read_fields,
    sampling_of,
)
from clients.openai_api.offered_tools import ToolChoice, offered_tools
from ensemble_configs.chat.chat_messages import ChatMessage, Tools, without_nulls

COMPLETION_TOKENS = 16  # OpenAI's default

_NO_END_ID = -1
_UINT64 = 2**64
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_OWN_TOKENS_ALONE = "the server tells the probability of the tokens that it chose alone"
_REPLACED = "send tools instead"
_NOT_CARRIED: Refused = {
    "suffix": (("",), "the models served here write what follows a prompt"),
    "best_of": ((1,), "ask for n answers and choose"),
    "logit_bias": (({},), "biases by token id are not carried"),
    "top_logprobs": ((0,), _OWN_TOKENS_ALONE),
    "functions": (([],), _REPLACED),
    "function_call": (("none", "auto"), _REPLACED),
}

_NOT_OF_CHATS: Refused = {**_NOT_CARRIED, "echo": ((False,), "the messages are not part of an answer")}

_Prompt = dict[str, object]  # the field of a request that holds it, and what it is


class _Generated(Common, kw_only=True):
    """The fields of both endpoints."""

    max_tokens: Positive | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    # Not OpenAI's, but vLLM's: load tools send the first two.
    ignore_eos: bool | None = None
    min_tokens: NotNegative | None = None
    top_k: NotNegative | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None


class CompletionBody(_Generated, kw_only=True):
    """The body of `/v1/completions`; null means not given."""

    prompt: str | list[str | int | list[int]] | None = None
    echo: bool | None = None  # each answer begins with its prompt
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None


class _Schema(msgspec.Struct, kw_only=True):
    schema: dict[str, Any]
    name: str = ""
    strict: bool | None = None
    description: str | None = None


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    json_schema: _Schema | None = None


class ChatBody(_Generated, kw_only=True):
    """The body of `/v1/chat/completions`; null means not given."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    response_format: _Format | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None


def requests_of(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    *,
    base: GenerateRequest,
    chat_tokens: int,
    refused: Refused | None = None,
) -> Asked:
    """Return the requests of a body; the server renders messages by its template.

    Args:
        endpoint: `COMPLETIONS` or `CHAT`.
        base: what all requests have in common: class, tenant, limits.
        chat_tokens: limit of a chat that has none of its own.
        refused: parameters that are not for this caller.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    if endpoint is Endpoint.CHAT:
        not_carried = {**_NOT_OF_CHATS, **(refused or {})}
        return _of_chat(read_fields(_with_plain_messages(body), ChatBody, not_carried), base, chat_tokens)
    parsed = read_fields(body, CompletionBody, {**_NOT_CARRIED, **(refused or {})})
    common = _common(parsed, base, parsed.max_tokens or COMPLETION_TOKENS)
    texts = tuple(_texts(parsed.prompt))
    asked = _asked(endpoint, parsed, tuple(msgspec.structs.replace(common, text_input=text) for text in texts))
    if parsed.logprobs is not None:
        if parsed.logprobs or parsed.echo:
            why = "the prompt's tokens have none: leave echo out" if parsed.echo else _OWN_TOKENS_ALONE
            raise _not_told(f"logprobs ({parsed.logprobs}) must be 0: {why}")
        asked = _with_log_probs(asked)
    return msgspec.structs.replace(asked, prefixes=texts) if parsed.echo else asked


def _of_chat(parsed: ChatBody, base: GenerateRequest, chat_tokens: int) -> Asked:
    wanted = parsed.response_format or _Format(type="text")
    schema = wanted.json_schema and wanted.json_schema.schema
    tools = offered_tools(parsed.tools or (), parsed.tool_choice)
    tools.check_format(wanted.type, param="response_format")
    request = msgspec.structs.replace(
        _common(parsed, base, _one_limit(parsed) or chat_tokens),
        messages=_for_server(parsed.messages),
        **guide_of(wanted.type, schema, param="response_format"),
        tools=tools.told or None,
    )
    asked = _asked(Endpoint.CHAT, parsed, (request,))
    if parsed.logprobs:
        if tools.told:
            raise _not_told("logprobs are of an answer's content, and calls of tools are none; leave either out")
        asked = _with_log_probs(asked)
    return msgspec.structs.replace(
        asked,
        tools=tools.callable,
        strict_tools=tools.strict,
        max_calls=tools.max_calls(are_parallel=parsed.parallel_tool_calls),
        tool_choice=tools.forced,
        guide_param=tools.guide_param(wanted.type, param=asked.guide_param),
    )


def _common(parsed: _Generated, base: GenerateRequest, max_tokens: int) -> GenerateRequest:
    sampling = sampling_of(parsed)
    if parsed.top_k and sampling.get("temperature"):  # 0 is no limit, and what is greedy has none
        sampling["top_k"] = parsed.top_k
    stop = (parsed.stop,) if isinstance(parsed.stop, str) else tuple(parsed.stop or ())
    return msgspec.structs.replace(
        base,
        max_tokens=max_tokens,
        stop_words=stop or None,
        seed=None if parsed.seed is None else parsed.seed % _UINT64,
        presence_penalty=parsed.presence_penalty or None,
        frequency_penalty=parsed.frequency_penalty or None,
        num_return_sequences=parsed.n if parsed.n != 1 else None,
        end_id=_NO_END_ID if parsed.ignore_eos else None,
        min_tokens=parsed.min_tokens,
        repetition_penalty=parsed.repetition_penalty,
        **sampling,
    )


def _asked(endpoint: Endpoint, parsed: _Generated, requests: tuple[GenerateRequest, ...]) -> Asked:
    return Asked(
        endpoint=endpoint,
        requests=requests,
        model=parsed.model,
        n=parsed.n or 1,
        is_streaming=bool(parsed.stream),
        includes_usage=includes_usage(parsed),
        session=parsed.prompt_cache_key or "",
    )


def _with_log_probs(asked: Asked) -> Asked:
    requests = tuple(
        msgspec.structs.replace(request, return_log_probs=True, return_token_ids=True) for request in asked.requests
    )
    return msgspec.structs.replace(asked, requests=requests, log_probs=True)


def _not_told(message: str) -> ApiError:
    return ApiError(message, code="unsupported_parameter", param="logprobs")


def _with_plain_messages(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a body of which no message has a null."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    return {**body, "messages": [without_nulls(message) for message in messages]}


def _for_server(messages: list[ChatMessage]) -> list[dict[str, object]]:
    found = []
    for index, message in enumerate(messages):
        try:
            found.append(message.for_template())
        except ValueError as exc:
            param = f"messages[{index}].tool_calls"
            raise ApiError(f"{param}: {exc}", code="invalid_value", param=param) from exc
    return found


def _texts(prompt: str | list[str | int | list[int]] | None) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        message = "prompt is missing or empty; it must be text or a list of texts"
        raise ApiError(message, code="missing_field", param="prompt")
    texts = [text for text in prompt if isinstance(text, str)]
    if len(texts) < len(prompt):
        raise ApiError(
            "prompt as token ids is not supported: the model that takes ids gives ids back; send text",
            code="unsupported_parameter",
            param="prompt",
        )
    return texts


def _one_limit(chat: ChatBody) -> int | None:
    if chat.max_tokens is not None and chat.max_completion_tokens not in {None, chat.max_tokens}:
        raise ApiError(
            f"max_tokens ({chat.max_tokens}) contradicts max_completion_tokens ({chat.max_completion_tokens}); send "
            "the latter alone",
            code="invalid_value",
            param="max_tokens",
        )
    return chat.max_completion_tokens or chat.max_tokens
