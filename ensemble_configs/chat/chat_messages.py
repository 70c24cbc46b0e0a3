# SPDX-License-Identifier: Apache-2.0
"""Chat messages and tools in OpenAI's form, as far as models of text alone can read them."""

from typing import Annotated, Any, Literal

import msgspec

ROLES = ("system", "developer", "user", "assistant", "tool")  # OpenAI's; `function` went before `tool`
MAX_TOOLS = 128  # OpenAI's limit

_ToolName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message's content; there is no other type than text."""

    type: Literal["text"]
    text: str


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function's name and its arguments: JSON text as OpenAI has it, or an object as templates want it."""

    name: _ToolName
    arguments: str | dict[str, Any] = "{}"
    parsed_arguments: Any = None  # the same again, as OpenAI's clients keep it in a message that they send back


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A call that an assistant's message makes."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # of a call that was put together from a stream


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message of a conversation: its role and its content, or the calls of tools that it makes."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None  # of a message of the role `tool`
    reasoning_content: str | None = None
    # An assistant's answer as clients send it back; these say nothing.
    parsed: Any = None
    refusal: None = None
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None

    def __post_init__(self) -> None:
        """Check what the types cannot say."""
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing; only a message with tool_calls may do without")

    def for_template(self) -> dict[str, object]:
        """Return the message as templates expect it: its content one text, arguments an object.

        Raises:
            ValueError: the arguments of a call are no JSON object.
        """
        parts = self.content or ""
        found: dict[str, object] = {
            "role": self.role,
            "content": parts if isinstance(parts, str) else "".join(part.text for part in parts),
        }
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.tool_calls:
            found["tool_calls"] = [_call_for_template(call) for call in self.tool_calls]
        return found


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that a model may call.

    Attributes:
        parameters: JSON schema of the arguments.
    """

    name: _ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that a model may call."""

    type: Literal["function"]  # before the function, as models have seen it
    function: Function


Tools = Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)]


def without_nulls(message: object) -> object:
    """Return a message without the fields that are null: OpenAI's clients send back what they have got."""
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if value is not None}


def _call_for_template(call: ToolCall) -> dict[str, object]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as exc:
            raise ValueError(f"arguments of {call.function.name} are no JSON object: {exc}") from exc
    named = {} if call.id is None else {"id": call.id}
    return {**named, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
