# SPDX-License-Identifier: Apache-2.0
"""A call as one JSON object, the form that most styles share: `{"name": ..., "arguments": {...}}`.

Llama calls the arguments `parameters`; both words are read in every style, as models mix them. The usual order streams.
Arguments that come before the name, and arguments that are a string with an object in it (Granite writes such), wait
for the end of the object. Other keys, such as Mistral's `id`, say nothing here.
"""

from clients.openai_api.tool_calls.call_attempt import NotACall, begin_call, check_name, expect
from clients.openai_api.tool_calls.delta_writer import DeltaWriter
from clients.openai_api.tool_calls.incoming_text import SPACE, IncomingText, Waiting
from clients.openai_api.tool_calls.json_value import decoded, pass_value, read_value

_ARGUMENTS = frozenset({"arguments", "parameters"})


def read_call_object(incoming: IncomingText, writer: DeltaWriter) -> Waiting[None]:
    """Read one object as a call, which begins as soon as its arguments come and its name is known.

    Raises:
        NotACall: it is no object, or has no name that is offered, or no arguments.
    """
    yield from expect(incoming, "{")
    name = arguments = None
    has_begun = False
    separator = ","
    while separator == ",":
        key = yield from _key(incoming)
        is_arguments = key in _ARGUMENTS
        if has_begun or not (is_arguments or key == "name"):
            decoded((yield from read_value(incoming)))
        elif key == "name":
            name = check_name(writer, decoded((yield from read_value(incoming))))
        elif name is not None and (yield from incoming.char()) == "{":
            begin_call(incoming, writer, name)
            has_begun = True
            yield from pass_value(incoming, writer.arguments)
        else:
            arguments = _whole_arguments((yield from read_value(incoming)))
        yield from incoming.run(SPACE)
        separator = yield from expect(incoming, ",", "}")
    if has_begun:
        incoming.settle()
    elif name is None or arguments is None:
        raise NotACall
    else:
        begin_call(incoming, writer, name)
        writer.arguments(arguments)


def _key(incoming: IncomingText) -> Waiting[object]:
    yield from incoming.run(SPACE)
    if (yield from incoming.char()) != '"':
        raise NotACall
    key = decoded((yield from read_value(incoming)))
    yield from incoming.run(SPACE)
    yield from expect(incoming, ":")
    yield from incoming.run(SPACE)
    return key


def _whole_arguments(text: str) -> str:
    value = decoded(text)
    if isinstance(value, str):
        text, value = value, decoded(value)
    if not isinstance(value, dict):
        raise NotACall
    return text
