# SPDX-License-Identifier: Apache-2.0
"""The reader of tool calls in an answer's text, by the grammar of a style."""

from collections.abc import Callable

from clients.openai_api.tool_calls.call_ids import new_call_id
from clients.openai_api.tool_calls.callable_tools import CallableTools
from clients.openai_api.tool_calls.delta_writer import DeltaWriter
from clients.openai_api.tool_calls.deltas import Delta
from clients.openai_api.tool_calls.incoming_text import IncomingText, Waiting

Grammar = Callable[[IncomingText, DeltaWriter], Waiting[None]]


class CallReader:
    """A reader of one answer: text to content and calls.

    Args:
        grammar: of the style, such as `read_hermes`.
        offered: the tools that may be called; a call of another name is content. None: any name may be called.
        max_calls: how many calls there may be; a further one is content. None: any number.
        new_id: makes the ids of calls.
    """

    def __init__(
        self,
        grammar: Grammar,
        *,
        offered: CallableTools | None = None,
        max_calls: int | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._incoming = IncomingText()
        self._writer = DeltaWriter(offered, max_calls=max_calls, new_id=new_id)
        self._reading = grammar(self._incoming, self._writer)

    def read(self, text: str) -> list[Delta]:
        """Return what is certain with the next piece of the text."""
        self._incoming.add(text)
        next(self._reading)
        return self._writer.take()

    def end(self) -> list[Delta]:
        """Return what was held back; nothing may be read after it."""
        self._incoming.is_over = True
        for _ in self._reading:
            raise AssertionError("a grammar waits for more of an answer that is over")
        self._writer.end()
        return self._writer.take()
