# SPDX-License-Identifier: Apache-2.0
"""The blocks of Anthropic's messages as messages of a chat: text, thinking, uses of tools and their results."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec

from clients.openai_api.api_error import ApiError, shown
from ensemble_configs.chat.chat_messages import ChatMessage, FunctionCall, ToolCall, without_nulls
from trireme.base.known_types import known

_TEXT_ALONE = "the models served here read text alone"


class CacheControl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A wish to cache what comes before: the KV cache of a server keeps the beginnings of prompts without it."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Block(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    cache_control: CacheControl | None = None


class Text(_Block, kw_only=True, tag="text"):
    """A text of either side."""

    text: str
    citations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None


class Thinking(_Block, kw_only=True, tag="thinking"):
    """The model's thinking before its next block; nothing here signs it."""

    thinking: str
    signature: str | None = None


class ToolUse(_Block, kw_only=True, tag="tool_use"):
    """A call that the model made."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResult(_Block, kw_only=True, tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    content: str | list[Text] | None = None
    is_error: bool | None = None


_OF_USERS = ("text", "tool_result")
_OF_ASSISTANTS = ("text", "thinking", "tool_use")


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message of either side."""

    role: Literal["user", "assistant"]
    content: str | list[Text | Thinking | ToolUse | ToolResult]


def plain_messages(messages: object) -> object:
    """Return messages without nulls.

    Raises:
        ApiError: a block is of a kind that is not carried, or not of its message's side.
    """
    if not isinstance(messages, list):
        return messages
    return [_plain(message, f"messages[{number}]") for number, message in enumerate(messages)]


def plain_blocks(blocks: object, path: str, kinds: Iterable[str] = ("text",)) -> object:
    """Return blocks without nulls.

    Args:
        path: of the blocks in the body, for errors.
        kinds: that may be there.

    Raises:
        ApiError: a block is of another kind, or of none.
    """
    if not isinstance(blocks, list):
        return blocks
    found: list[object] = []
    for number, block in enumerate(map(without_nulls, blocks)):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(block, dict) and "type" not in block:  # where there is one kind alone, its type would do without
            param = f"{path}[{number}].type"
            raise ApiError(f"{param} is missing; it may be {', '.join(kinds)}", code="missing_field", param=param)
        if isinstance(kind, str) and kind not in kinds:
            param = f"{path}[{number}]"
            raise ApiError(
                f"{param}: a block of the type {shown(kind)} is not supported here, where there may be "
                f"{', '.join(kinds)}: {_TEXT_ALONE}",
                code="unsupported_parameter",
                param=param,
            )
        if isinstance(block, dict) and kind == "tool_result" and "content" in block:
            found.append({**block, "content": plain_blocks(block["content"], f"{path}[{number}].content")})
        else:
            found.append(block)
    return found


def chat_messages(messages: Iterable[Message], *, system: str) -> list[dict[str, object]]:
    """Return the messages of a conversation as chat templates have them. Args: `system`: before all; "": nothing."""
    found = [ChatMessage(role="system", content=system)] if system else []
    for message in messages:
        if isinstance(message.content, str):
            found.append(ChatMessage(role=message.role, content=message.content))
        elif message.role == "assistant":
            found.append(_of_assistant(message.content))
        else:
            found += _of_user(message.content)
    return [message.for_template() for message in found]


def joined(blocks: str | Iterable[Text]) -> str:
    """Return the text of blocks of text."""
    return blocks if isinstance(blocks, str) else "".join(block.text for block in blocks)


def _plain(message: object, path: str) -> object:
    plain = without_nulls(message)
    if not isinstance(plain, dict) or "content" not in plain:
        return plain
    kinds = _OF_ASSISTANTS if plain.get("role") == "assistant" else _OF_USERS
    return {**plain, "content": plain_blocks(plain["content"], f"{path}.content", kinds)}


def _of_user(blocks: Iterable[object]) -> Iterator[ChatMessage]:
    """Yield a message for each result of a call, and one for the texts between them."""
    text: list[str] = []
    for block in blocks:
        if isinstance(block, Text):
            text.append(block.text)
            continue
        if text:
            yield ChatMessage(role="user", content="".join(text))
            text = []
        if isinstance(block, ToolResult):
            said = joined(block.content or "")
            content = f"Error: {said}" if block.is_error else said  # templates have no other word for it
            yield ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id)
    if text:
        yield ChatMessage(role="user", content="".join(text))


def _of_assistant(blocks: Iterable[object]) -> ChatMessage:
    text, thought, calls = "", "", []
    for block in blocks:
        match block:
            case Text():
                text += block.text
            case Thinking():
                thought += block.thinking
            case ToolUse():
                try:
                    call = msgspec.convert({"name": block.name, "arguments": block.input}, known(FunctionCall))
                except msgspec.ValidationError as exc:
                    raise ApiError(f"messages: name of a tool_use: {exc}", code="invalid_value",
                                   param="messages") from exc  # fmt: skip
                calls.append(ToolCall(id=block.id, function=call))
    return ChatMessage(role="assistant", content=text, tool_calls=calls or None, reasoning_content=thought or None)
