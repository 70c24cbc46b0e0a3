# SPDX-License-Identifier: Apache-2.0
"""Anthropic's body of `/v1/messages` as a request of the serving contract.

A parameter is carried, or refused by name.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from clients.anthropic_api.content_blocks import (
    CacheControl,
    Message,
    Text,
    chat_messages,
    joined,
    plain_blocks,
    plain_messages,
)
from clients.infer_messages import GenerateRequest
from clients.openai_api.api_error import ApiError, shown
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.body_fields import NotNegative, Positive, Refused, TopP, guide_of, read_fields
from clients.openai_api.offered_tools import PARAM, ToolChoice, offered_tools
from ensemble_configs.chat.chat_messages import MAX_TOOLS, Function, Tool, without_nulls
from trireme.base.known_types import known

_FORMAT = "output_config.format"
_ITS_OWN = "whether and how long a model thinks is its own"
_NOT_CARRIED: Refused = {
    "container": ((), "the tools that it is for are not served here"),
    "context_management": ((), "a conversation is taken as it comes"),
    "inference_geo": ((), "the place is that of this server"),
    "mcp_servers": (([],), "tools of servers are not called here"),
    "speed": (("standard",), "there is one speed"),
    "thinking": (({"type": "adaptive"},), _ITS_OWN),
}


class _Metadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    user_id: str | None = None


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: _Format | None = None


class _Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None  # the input of a call always streams as it is written


class _ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    """The body of `/v1/messages`; null means not given."""

    max_tokens: Positive
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    model: str | None = None
    system: str | list[Text] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: NotNegative | None = None
    tools: Annotated[list[_Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: _ToolChoice | None = None
    output_config: _OutputConfig | None = None
    cache_control: CacheControl | None = None
    metadata: _Metadata | None = None  # for the provider's own records: it asks nothing of the answer
    service_tier: Literal["auto", "standard_only"] | None = None


def message_request_of(body: Mapping[str, Any], *, base: GenerateRequest) -> Asked:
    """Return the request of a body; the server renders the messages by its template.

    Args:
        base: what all requests have in common: class, tenant, limits.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    plain = {
        **body,
        "messages": plain_messages(body.get("messages")),
        "system": plain_blocks(body.get("system"), "system"),
        "tools": _plain_tools(body.get("tools")),
    }
    parsed = read_fields(plain, MessagesBody, _NOT_CARRIED)
    if parsed.messages[-1].role != "user":
        raise ApiError(
            "messages must end with one of the user: an answer whose beginning is given is not supported here",
            code="unsupported_parameter",
            param="messages",
        )
    choice = parsed.tool_choice
    wanted = None if parsed.output_config is None else parsed.output_config.format
    tools = offered_tools(map(_as_tool, parsed.tools or ()), _choice(choice))
    tools.check_format("text" if wanted is None else wanted.type, param=_FORMAT)
    request = msgspec.structs.replace(
        base,
        max_tokens=parsed.max_tokens,
        messages=chat_messages(parsed.messages, system=joined(parsed.system or "")),
        stop_words=tuple(parsed.stop_sequences or ()) or None,
        tools=tools.told or None,
        **_sampling(parsed),
        **({} if wanted is None else guide_of("json_schema", wanted.schema, param=_FORMAT)),
    )
    return Asked(
        endpoint=Endpoint.MESSAGES,
        requests=(request,),
        model=parsed.model,
        is_streaming=bool(parsed.stream),
        tools=tools.callable,
        strict_tools=tools.strict,
        max_calls=tools.max_calls(are_parallel=not (choice is not None and choice.disable_parallel_tool_use)),
        tool_choice=tools.forced,
        guide_param=tools.guide_param("text" if wanted is None else wanted.type, param=_FORMAT),
    )


def _sampling(parsed: MessagesBody) -> dict[str, object]:
    temperature = 1.0 if parsed.temperature is None else parsed.temperature
    if not temperature:  # without top_p the contract is greedy, which is what 0 asks for
        return {}
    found: dict[str, object] = {"temperature": temperature, "top_p": 1.0 if parsed.top_p is None else parsed.top_p}
    return {**found, "top_k": parsed.top_k} if parsed.top_k else found


def _choice(choice: _ToolChoice | None) -> ToolChoice | None:
    """Return the choice of tools as OpenAI's chats have it.

    Raises:
        ApiError: one tool is to be called, and it has no name; or there is a name, and any may be called.
    """
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        raise ApiError(
            f"{PARAM}.name is that of the one tool to call: it goes with the type tool, and with no other",
            code="invalid_value",
            param=f"{PARAM}.name",
        )
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _plain_tools(tools: object) -> object:
    """Return tools without nulls.

    Raises:
        ApiError: a tool is one that Anthropic's own servers run.
    """
    if not isinstance(tools, list):
        return tools
    found = [without_nulls(tool) for tool in tools]
    for number, tool in enumerate(found):
        kind = tool.get("type", "custom") if isinstance(tool, dict) else "custom"
        if kind != "custom":
            param = f"tools[{number}].type"
            raise ApiError(
                f"{param} must be custom, got {shown(kind)}: the tools of Anthropic's servers are not served here",
                code="unsupported_parameter",
                param=param,
            )
    return found


def _as_tool(tool: _Tool) -> Tool:
    try:
        function = msgspec.convert(
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": tool.strict,
            },
            known(Function),
        )
    except msgspec.ValidationError as exc:
        raise ApiError(f"tools: name: {exc}, got {shown(tool.name)}", code="invalid_value", param="tools") from exc
    return Tool(type="function", function=function)
