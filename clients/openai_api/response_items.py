# SPDX-License-Identifier: Apache-2.0
"""The items of a response's input: messages, calls of tools and their results, as messages of a chat."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from clients.openai_api.api_error import ApiError
from ensemble_configs.chat.chat_messages import ROLES, ChatMessage, FunctionCall, ToolCall, without_nulls
from trireme.base.known_types import known


class _Part(msgspec.Struct, kw_only=True, tag_field="type"):
    text: str


class InputText(_Part, kw_only=True, forbid_unknown_fields=True, tag="input_text"):
    """A text that was said to the model."""


class OutputText(_Part, kw_only=True, forbid_unknown_fields=True, tag="output_text"):
    """A text that the model said, as it was answered; annotations and probabilities say nothing to the model."""

    annotations: list[Any] = []
    logprobs: list[Any] = []
    parsed: Any = None  # the text again, as OpenAI's clients keep it in an item that they send back


class ReasoningText(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text of the model's thinking."""

    type: Literal["reasoning_text"]
    text: str


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """A message of either side."""

    role: str
    content: str | list[InputText | OutputText]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class Call(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    """A call that the model made."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    parsed_arguments: Any = None  # the same again, as OpenAI's clients keep it in an item that they send back


class CallOutput(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"
):
    """The result of a call."""

    call_id: str
    output: str | list[InputText | OutputText]
    id: str | None = None
    status: str | None = None


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """The model's thinking before its next item."""

    content: list[ReasoningText] | None = None
    summary: list[Any] | None = None
    id: str | None = None
    status: str | None = None


Item = Message | Call | CallOutput | Reasoning


def with_types(items: object) -> object:
    """Return the input with the type of each item, which a message may leave out, and without nulls."""
    if not isinstance(items, list):
        return items
    return [
        {"type": "message", **item} if isinstance(item, dict) and "role" in item else item
        for item in map(without_nulls, items)
    ]


def messages_of(items: str | Sequence[Item], *, instructions: str | None) -> list[dict[str, object]]:
    """Return the messages of a conversation; a call belongs to the message before it, as chat templates have it.

    Raises:
        ApiError: an item has a role that does not exist, or arguments that are no JSON object; or there is no item.
    """
    messages = [ChatMessage(role="system", content=instructions)] if instructions else []
    if isinstance(items, str):
        messages.append(ChatMessage(role="user", content=items))
        return [message.for_template() for message in messages]
    if not items:
        raise ApiError("input is empty; send text, or a list of items", code="invalid_value", param="input")
    thought: str | None = None
    for index, item in enumerate(items):
        if isinstance(item, Reasoning):
            thought = _joined(item.content or "") or None
            continue
        message = _message_of(item, f"input[{index}]")
        message.reasoning_content, thought = thought if message.role == "assistant" else None, None
        if message.tool_calls and messages and messages[-1].role == "assistant":
            messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), *message.tool_calls]
        else:
            messages.append(message)
    return [_for_template(message) for message in messages]


def messages_of_output(output: Sequence[object]) -> list[dict[str, object]]:
    """Return the items of a response's output as messages of a chat that goes on."""
    if not output:
        return []
    return messages_of(msgspec.convert(with_types(list(output)), known(list[Item])), instructions=None)


def _message_of(item: Message | Call | CallOutput, path: str) -> ChatMessage:
    if isinstance(item, Call):
        try:
            call = msgspec.convert({"name": item.name, "arguments": item.arguments}, known(FunctionCall))
        except msgspec.ValidationError as exc:
            raise ApiError(f"{path}.name: {exc}", code="invalid_value", param=f"{path}.name") from exc
        return ChatMessage(role="assistant", tool_calls=[ToolCall(id=item.call_id, function=call)])
    if isinstance(item, CallOutput):
        return ChatMessage(role="tool", content=_joined(item.output), tool_call_id=item.call_id)
    if item.role not in ROLES:
        raise ApiError(
            f"{path}.role must be one of {', '.join(ROLES)}, got {item.role[:32]!r}",
            code="invalid_value",
            param=f"{path}.role",
        )
    return ChatMessage(role=item.role, content=_joined(item.content))


def _for_template(message: ChatMessage) -> dict[str, object]:
    try:
        return message.for_template()
    except ValueError as exc:
        raise ApiError(f"input: {exc}", code="invalid_value", param="input") from exc


def _joined(content: str | Sequence[_Part | ReasoningText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
