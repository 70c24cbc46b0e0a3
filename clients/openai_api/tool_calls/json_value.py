# SPDX-License-Identifier: Apache-2.0
"""A JSON value within text that comes in pieces: where it ends, and what it says.

The end is found by strings and brackets alone. What stands between them is checked where a value is decoded, and not
where it is handed on as it comes.
"""

import re
from collections.abc import Callable

import msgspec

from clients.openai_api.tool_calls.call_attempt import NotACall
from clients.openai_api.tool_calls.incoming_text import IncomingText, Waiting

_OUTSIDE_STRINGS, _INSIDE_STRINGS = re.compile(r'[^"{}\[\]]*'), re.compile(r'[^"\\]*')
_NOTHING = re.compile("")
_SCALAR = re.compile(r'[^\s,:"{}\[\]]*')
_CLOSERS = {"{": "}", "[": "]"}


def pass_value(incoming: IncomingText, write: Callable[[str], None]) -> Waiting[None]:
    """Hand on an object, an array or a string that begins here, as it comes.

    Raises:
        NotACall: a bracket closes what is not open, or the answer is over; what is before that was handed on.
    """
    try:
        yield from _pass_value(incoming, lambda: write(incoming.settle()))
    finally:
        write(incoming.settle())


def read_value(incoming: IncomingText) -> Waiting[str]:
    """Read and hold a value, and return its text.

    Raises:
        NotACall: a bracket closes what is not open, or the answer is over.
    """
    place = incoming.num_held
    if (yield from incoming.char()) not in {'"', *_CLOSERS}:
        return (yield from incoming.run(_SCALAR))
    yield from _pass_value(incoming, lambda: None)
    return incoming.held_since(place)


def decoded(text: str) -> object:
    """Return what JSON says.

    Raises:
        NotACall: it is not JSON, or says what UTF-8 cannot hold.
    """
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise NotACall from exc
    return value


def _pass_value(incoming: IncomingText, at_end_of_piece: Callable[[], None]) -> Waiting[None]:
    closers: list[str] = []
    is_in_string = False
    while True:
        plain = _INSIDE_STRINGS if is_in_string else _OUTSIDE_STRINGS
        char = yield from _char_after(plain, incoming, at_end_of_piece)
        if char == '"':
            is_in_string = not is_in_string
        elif char == "\\":
            incoming.skip(1)
            yield from _char_after(_NOTHING, incoming, at_end_of_piece)
        elif char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif not closers or char != closers.pop():
            raise NotACall
        incoming.skip(1)
        if not closers and not is_in_string:
            return


def _char_after(plain: re.Pattern[str], incoming: IncomingText, at_end_of_piece: Callable[[], None]) -> Waiting[str]:
    while True:
        incoming.skip_run(plain)
        if incoming.has_unread:
            return (yield from incoming.char())
        at_end_of_piece()
        if not (yield from incoming.char()):
            raise NotACall
