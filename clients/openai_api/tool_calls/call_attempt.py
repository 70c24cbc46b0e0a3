# SPDX-License-Identifier: Apache-2.0
"""A try to read text as a call: what is none after all becomes content, as the model wrote it."""

from clients.openai_api.tool_calls.delta_writer import DeltaWriter
from clients.openai_api.tool_calls.incoming_text import IncomingText, Waiting


class NotACall(Exception):
    """The text that follows cannot belong to a call."""


def attempt(incoming: IncomingText, writer: DeltaWriter, call: Waiting[None]) -> Waiting[bool]:
    """Read a call, and return whether the whole of it was one.

    Where it breaks before the call has begun, all that is held becomes content. Where it breaks later, nobody can take
    back what was sent: the call stays as it is, and what follows becomes content. An answer that is over in the middle
    of a call that has begun leaves it as it is.
    """
    num_calls = writer.num_calls
    try:
        yield from call
    except NotACall:
        held, has_begun = incoming.settle(), writer.num_calls > num_calls
        writer.content("" if has_begun and incoming.is_over else held)
        return False
    incoming.settle()
    return True


def expect(incoming: IncomingText, *texts: str) -> Waiting[str]:
    """Read one of these texts.

    Raises:
        NotACall: another text follows.
    """
    found = yield from incoming.literal(*texts)
    if not found:
        raise NotACall
    return found


def check_name(writer: DeltaWriter, name: object) -> str:
    """Return the name of a tool that is offered.

    Raises:
        NotACall: it is not offered, or no name.
    """
    if not isinstance(name, str) or not writer.offers(name):
        raise NotACall
    return name


def begin_call(incoming: IncomingText, writer: DeltaWriter, name: str) -> None:
    """Begin a call of which the held text is the head."""
    incoming.settle()
    writer.begin(name)
