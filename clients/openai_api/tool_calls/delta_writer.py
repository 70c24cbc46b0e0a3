# SPDX-License-Identifier: Apache-2.0
"""The deltas that a grammar writes, joined where they follow each other, with the indices and ids of calls."""

from collections.abc import Callable

from clients.openai_api.tool_calls.callable_tools import CallableTools
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta


class DeltaWriter:
    """The deltas of one answer.

    White space between two calls, before the first where nothing else is, and after the last belongs to the format of
    the calls: templates write it there, and OpenAI's `content` is null beside a call.

    Args:
        offered: the tools that may be called; None: any.
        max_calls: how many calls there may be; None: any number.
        new_id: makes the ids of calls.
    """

    def __init__(self, offered: CallableTools | None, *, max_calls: int | None, new_id: Callable[[], str]) -> None:
        self.offered, self._max_calls, self._new_id = offered, max_calls, new_id
        self.num_calls = 0
        self._deltas: list[Delta] = []
        self._space = ""  # since the begin or the last call, where there has been nothing else
        self._is_blank = True

    def offers(self, name: str) -> bool:
        """Return whether a call of this name may be the next one."""
        has_room = self._max_calls is None or self.num_calls < self._max_calls
        return has_room and bool(name) and (self.offered is None or name in self.offered)

    def content(self, text: str) -> None:
        """Write a piece of content."""
        if self._is_blank:
            text = self._space + text
            self._is_blank = not text or text.isspace()
            self._space = text if self._is_blank else ""
        if self._is_blank or not text:
            return
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, Content):
            self._deltas[-1] = Content(last.text + text)
        else:
            self._deltas.append(Content(text))

    def begin(self, name: str) -> None:
        """Begin a call; the one before is closed."""
        self._deltas.append(CallBegun(self.num_calls, self._new_id(), name))
        self.num_calls += 1
        self._space, self._is_blank = "", True

    def arguments(self, text: str) -> None:
        """Write a piece of the arguments of the last call."""
        if not text:
            return
        index = self.num_calls - 1
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, Arguments):
            self._deltas[-1] = Arguments(index, last.text + text)
        else:
            self._deltas.append(Arguments(index, text))

    def take(self) -> list[Delta]:
        """Return what was written since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def end(self) -> None:
        """Write white space that was the whole answer."""
        if self._space and not self.num_calls:
            self._deltas.append(Content(self._space))
