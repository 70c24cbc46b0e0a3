# SPDX-License-Identifier: Apache-2.0
"""Tool calls of Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

There is no JSON here, so it is made. A value is a string where its schema says so, and else what it says as JSON; what
is no JSON is a string all the same. A parameter is sent when its end has come. The line break after `<parameter=...>`
and the one before `</parameter>` are the format's.

Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

import contextlib
import json
import re
from collections.abc import Mapping

from clients.openai_api.tool_calls.call_attempt import NotACall, attempt, begin_call, check_name, expect
from clients.openai_api.tool_calls.delta_writer import DeltaWriter
from clients.openai_api.tool_calls.hermes import BEGIN, END
from clients.openai_api.tool_calls.incoming_text import SPACE, IncomingText, Waiting
from clients.openai_api.tool_calls.json_value import decoded

_NAME = re.compile(r"[^\s<>]*")
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_PYTHON = {"True": "true", "False": "false", "None": "null"}  # what the template makes of these in earlier messages


def read_qwen3_coder(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    """Read an answer; text may stand before, between and after the calls."""
    while (yield from incoming.until(BEGIN, writer.content)):
        yield from attempt(incoming, writer, _call(incoming, writer))


def _call(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    yield from incoming.run(SPACE)
    yield from expect(incoming, _FUNCTION)
    name = check_name(writer, (yield from incoming.run(_NAME)))
    yield from expect(incoming, ">")
    begin_call(incoming, writer, name)
    writer.arguments("{")
    separator = ""
    while (yield from _has_parameter(incoming)):
        key = yield from incoming.run(_NAME)
        yield from expect(incoming, ">")
        parts: list[str] = []
        incoming.settle()
        is_whole = yield from incoming.until(_PARAMETER_END, parts.append)
        value = _json_of("".join(parts), is_string=_is_string(writer, name, key), is_whole=is_whole)
        incoming.settle()
        writer.arguments(f"{separator}{_string(key)}: {value}")
        separator = ", "
    writer.arguments("}")
    incoming.settle()
    yield from incoming.run(SPACE)
    yield from expect(incoming, END)


def _has_parameter(incoming: IncomingText) -> Waiting[bool]:
    yield from incoming.run(SPACE)
    return (yield from expect(incoming, _PARAMETER, _FUNCTION_END)) == _PARAMETER


def _is_string(writer: DeltaWriter, name: str, key: str) -> bool:
    properties = (writer.offered or {}).get(name, {}).get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def _json_of(text: str, *, is_string: bool, is_whole: bool) -> str:
    """Return a value as JSON; of one that was cut off its text, in a string without an end."""
    text = text.removeprefix("\n")
    if not is_whole:
        return _string(text)[:-1]
    text = text.removesuffix("\n")
    if not is_string:
        word = _PYTHON.get(text.strip(), text.strip())
        with contextlib.suppress(NotACall):
            decoded(word)
            return word
    return _string(text)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # not msgspec, which refuses lone surrogates
