# SPDX-License-Identifier: Apache-2.0
"""The body that asks another server of OpenAI's API for the same; what that API has no name for is not asked."""

from typing import Any

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked
from ensemble_configs.render.tensors import AS_MANY_AS_FIT

_PENALTIES = ("presence_penalty", "frequency_penalty")
_CARRIED = frozenset(
    {
        "text_input", "messages", "tools", "max_tokens", "stop_words", "temperature", "top_p", "seed",
        "num_return_sequences", "guided_decoding_guide_type", "guided_decoding_guide", *_PENALTIES,
    }
)  # fmt: skip
# What the servers here are told, and what says nothing of the answer.
_OUR_OWN = frozenset(
    {
        "stream", "exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens",
        "return_num_cached_tokens", "return_finish_reason", "return_release", "priority", "tenant", "deadline_ms",
        "queue_timeout_ms",
    }
)  # fmt: skip


def managed_body(asked: Asked, *, model: str, limit_field: str) -> dict[str, Any]:
    """Return the body that asks another server for the same, as a stream.

    Nothing of the caller is in it but what the caller wants answered: no tenant, no key, no name of a conversation.

    Args:
        model: its name of the model.
        limit_field: its name of the most tokens of an answer.

    Raises:
        ApiError: there is something in the request that OpenAI's API has no name for.
    """
    request = asked.requests[0]
    _refuse_others(request)
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if asked.is_chat:
        body["messages"] = [_message(message) for message in request.messages or ()]
        body |= _tools(asked, request)
    else:
        body["prompt"] = [each.text_input for each in asked.requests]
    if request.max_tokens != AS_MANY_AS_FIT:
        body[limit_field if asked.is_chat else "max_tokens"] = request.max_tokens
    if not request.temperature:  # greedy, by the contract
        body["temperature"] = 0
    else:
        body |= {"temperature": request.temperature, "top_p": request.top_p}
    if request.stop_words:
        body["stop"] = list(request.stop_words)
    if request.seed is not None:
        body["seed"] = request.seed if request.seed < 1 << 63 else request.seed - (1 << 64)
    body |= {name: value for name in _PENALTIES if (value := getattr(request, name)) is not None}
    if asked.n > 1:
        body["n"] = asked.n
    if request.guided_decoding_guide is not None:
        schema = msgspec.json.decode(request.guided_decoding_guide)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        if schema == {"type": "object"}:
            body["response_format"] = {"type": "json_object"}
    return body


def _tools(asked: Asked, request: GenerateRequest) -> dict[str, Any]:
    if not request.tools:
        return {}
    body: dict[str, Any] = {"tools": request.tools}
    if asked.tool_choice is not None:
        body["tool_choice"] = asked.tool_choice
    return {**body, **({"parallel_tool_calls": False} if asked.max_calls == 1 else {})}


def _message(message: dict[str, object]) -> dict[str, object]:
    """Return a message as OpenAI has it: the arguments of its calls are text, which templates want as objects."""
    found = {name: value for name, value in message.items() if name != "reasoning_content"}
    calls: Any = found.get("tool_calls")
    if calls:
        found["tool_calls"] = [{**call, "function": _with_text(call["function"])} for call in calls]
    return found


def _with_text(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": msgspec.json.encode(function["arguments"]).decode()}


def _refuse_others(request: GenerateRequest) -> None:
    for name in request.__struct_fields__:
        if name not in _CARRIED and name not in _OUR_OWN and getattr(request, name) is not None:
            raise ApiError(f"{name} has no name in OpenAI's API", code="unsupported_parameter", param=name)
    guide = request.guided_decoding_guide_type
    if guide not in (None, "json_schema"):
        raise ApiError(f"a guide of {guide} has no name in OpenAI's API", code="unsupported_parameter")
