# SPDX-License-Identifier: Apache-2.0
"""Tool calls of Mistral: `[TOOL_CALLS]`, and then a JSON array of calls, or a name and its arguments.

The older form is `[TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": ...}, ...]`. The newer one is
`[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}` for each call, the newest one the same without the id. `[ARGS]` may be missing,
as where a decoder leaves control tokens out. The model's ids are not used: in most answers there are none.

Source: mistral-common's tokenizers (v3 and v7 the array, v11 with the id, v13 without) and the chat template of
mistralai/Mistral-7B-Instruct-v0.3.
"""

import re

from clients.openai_api.tool_calls.call_attempt import NotACall, attempt, begin_call, check_name
from clients.openai_api.tool_calls.call_object import read_call_object
from clients.openai_api.tool_calls.delta_writer import DeltaWriter
from clients.openai_api.tool_calls.incoming_text import SPACE, IncomingText, Waiting
from clients.openai_api.tool_calls.json_value import pass_value

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[\w.:/-]*")


def read_mistral(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    """Read an answer; text may stand before, between and after the calls."""
    while (yield from incoming.until(TOOL_CALLS, writer.content)):
        yield from incoming.run(SPACE)
        if (yield from incoming.char()) == "[":
            yield from _array(incoming, writer)
        else:
            yield from attempt(incoming, writer, _named_call(incoming, writer))


def _array(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    separator = yield from incoming.literal("[")
    while separator and separator != "]":
        if not (yield from attempt(incoming, writer, _element(incoming, writer))):
            return
        yield from incoming.run(SPACE)
        separator = yield from incoming.literal(",", "]")
    # Without its end the array is read as one: all its calls were whole.
    writer.content("" if separator else incoming.settle())
    incoming.settle()


def _element(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    yield from incoming.run(SPACE)
    yield from read_call_object(incoming, writer)


def _named_call(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    name = check_name(writer, (yield from incoming.run(_NAME)))
    if (yield from incoming.literal(CALL_ID, ARGS)) == CALL_ID:
        yield from incoming.run(_NAME)
        yield from incoming.literal(ARGS)
    yield from incoming.run(SPACE)
    if (yield from incoming.char()) != "{":
        raise NotACall
    begin_call(incoming, writer, name)
    yield from pass_value(incoming, writer.arguments)
