# SPDX-License-Identifier: Apache-2.0
"""OpenAI's body of `/v1/responses` as a request of the serving contract: a chat that nobody keeps."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.body_fields import Common, Positive, Refused, guide_of, read_fields, sampling_of
from clients.openai_api.offered_tools import ToolChoice, offered_tools
from clients.openai_api.response_items import Item, messages_of, with_types
from ensemble_configs.chat.chat_messages import MAX_TOOLS, Function, Tool

_NOT_KEPT = "nothing is kept here; send the whole conversation as input"
_OWN_TOKENS_ALONE = "the server tells the probability of the tokens that it chose alone"
_NOT_CARRIED: Refused = {
    "background": ((False,), "an answer is not waited for elsewhere"),
    "conversation": ((), _NOT_KEPT),
    "include": (([],), "an answer holds all that there is"),
    "max_tool_calls": ((), "the tools that it counts are not served here"),
    "previous_response_id": ((), _NOT_KEPT),
    "prompt": ((), "prompts are not kept here"),
    "reasoning": (({},), "how long a model thinks is its own"),
    "top_logprobs": ((0,), _OWN_TOKENS_ALONE),
    "truncation": (("disabled",), "a conversation that is too long is refused"),
}


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class _Text(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: _Format | None = None


class _FunctionTool(Function, kw_only=True):
    type: Literal["function"]


class ResponseBody(Common, kw_only=True):
    """The body of `/v1/responses`; null means not given."""

    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    text: _Text | None = None
    tools: Annotated[list[_FunctionTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


def response_request_of(body: Mapping[str, Any], *, base: GenerateRequest, chat_tokens: int) -> Asked:
    """Return the request of a body; the server renders the messages by its template.

    Args:
        base: what all requests have in common: class, tenant, limits.
        chat_tokens: limit of an answer that has none of its own.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    parsed = read_fields({**body, "input": with_types(body.get("input"))}, ResponseBody, _NOT_CARRIED)
    if parsed.stream_options is not None and parsed.stream_options.include_usage is not None:
        message = "stream_options.include_usage is not for responses: each ends with its usage; leave it out"
        raise ApiError(message, code="unsupported_parameter", param="stream_options.include_usage")
    wanted = (parsed.text and parsed.text.format) or _Format(type="text")
    tools = offered_tools(map(_as_tool, parsed.tools or ()), parsed.tool_choice)
    tools.check_format(wanted.type, param="text.format")
    request = msgspec.structs.replace(
        base,
        max_tokens=parsed.max_output_tokens or chat_tokens,
        messages=messages_of(parsed.input, instructions=parsed.instructions),
        **sampling_of(parsed),
        **guide_of(wanted.type, wanted.schema, param="text.format"),
        tools=tools.told or None,
    )
    return Asked(
        endpoint=Endpoint.RESPONSES,
        requests=(request,),
        model=parsed.model,
        is_streaming=bool(parsed.stream),
        tools=tools.callable,
        strict_tools=tools.strict,
        max_calls=tools.max_calls(are_parallel=parsed.parallel_tool_calls),
        tool_choice=tools.forced,
        guide_param=tools.guide_param(wanted.type, param="text.format"),
        session=parsed.prompt_cache_key or "",
        echo=_echo(parsed, wanted),
    )


def _as_tool(tool: _FunctionTool) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
    return Tool(type="function", function=function)


def _echo(parsed: ResponseBody, wanted: _Format) -> dict[str, Any]:
    """Return what an answer repeats of its request, with OpenAI's defaults."""
    return {
        "instructions": parsed.instructions,
        "max_output_tokens": parsed.max_output_tokens,
        "parallel_tool_calls": parsed.parallel_tool_calls is not False,
        "temperature": 1.0 if parsed.temperature is None else parsed.temperature,
        "text": {"format": {key: value for key, value in msgspec.to_builtins(wanted).items() if value}},
        "tool_choice": parsed.tool_choice or "auto",
        "tools": [{"parameters": None, "strict": None, **msgspec.to_builtins(tool)} for tool in parsed.tools or ()],
        "top_p": 1.0 if parsed.top_p is None else parsed.top_p,
        "user": parsed.user,
    }
