# SPDX-License-Identifier: Apache-2.0
"""The events of another server's streamed answer, as pieces of our own."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, Reasoning
from trireme.base.errors import Unavailable
from trireme.base.known_types import known

_CHARS_PER_TOKEN = 4
_LONGEST_LINE = 1 << 24


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, at some
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _Begun(NamedTuple):
    """A tool call that has begun: its number from 0 in the order in which calls come, and its id."""

    number: int
    id: str


_EVENT = msgspec.json.Decoder(known(_Event))


class ManagedEvents:
    """The events of one answer.

    Args:
        name: of the API, for errors.

    Attributes:
        is_done: the server said that this is all.
    """

    def __init__(self, asked: Asked, *, name: str) -> None:
        self._name, self._num_choices = name, asked.num_choices
        self._num_prompt_chars = sum(request.num_prompt_chars for request in asked.requests)
        self._prefixes = {
            index: asked.prefixes[index // asked.n] for index in range(asked.num_choices) if asked.prefixes
        }
        self._calls: dict[tuple[int, int], _Begun] = {}  # by their choice and the API's number
        self._num_calls: dict[int, int] = {}  # by choice
        self._finish_reasons: dict[str, None] = {}
        self._ended: set[int] = set()
        self._usage: Usage | None = None
        self._num_chars = 0
        self._rest = b""
        self.is_done = False

    @property
    def usage(self) -> Usage:
        """Return the tokens as the server tells them; before it does, or where it never does, by the characters."""
        if self._usage is not None or not (self._num_chars or self._finish_reasons):
            return self._usage or Usage()
        return Usage(self._num_prompt_chars // _CHARS_PER_TOKEN, -(-self._num_chars // _CHARS_PER_TOKEN))

    @property
    def finish_reason(self) -> str:
        """Return the words for how the choices have ended, each once; "": none has."""
        return ",".join(self._finish_reasons)

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield the pieces that are known after more bytes of the body.

        Raises:
            Unavailable: an event is an error, or none that can be read.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise self._broken("sent a line that has no end")
        for line in lines:
            field, _, value = line.strip().partition(b":")
            value = value.strip()
            if field != b"data" or not value:
                continue
            if value == b"[DONE]":
                self.is_done = True
                return
            yield from self._pieces(value)

    def check_end(self) -> None:
        """Check that the answer is whole, once no more can come.

        Raises:
            Unavailable: a choice has no end.
        """
        if len(self._ended) < self._num_choices:
            raise self._broken(f"ended {len(self._ended)} of {self._num_choices} answers")

    def _pieces(self, data: bytes) -> Iterator[Piece]:
        try:
            event = _EVENT.decode(data)
        except msgspec.MsgspecError as exc:
            raise self._broken(f"sent an event that cannot be read ({exc})") from exc
        if event.error is not None:
            raise self._broken("broke off its answer")
        if (usage := event.usage) is not None:
            details = usage.prompt_tokens_details
            self._usage = Usage(
                usage.prompt_tokens, usage.completion_tokens, None if details is None else details.cached_tokens
            )
        for choice in event.choices or ():
            if not 0 <= choice.index < self._num_choices:
                raise self._broken(f"sent choice {choice.index} of {self._num_choices}")
            deltas = list(self._deltas(choice))
            self._num_chars += sum(len(delta.text) for delta in deltas if not isinstance(delta, CallBegun))
            if choice.index in self._prefixes:
                deltas = [Content(self._prefixes.pop(choice.index)), *deltas]
            if choice.finish_reason:
                self._finish_reasons[choice.finish_reason] = None
                self._ended.add(choice.index)
            if deltas or choice.finish_reason:
                yield Piece(choice.index, deltas, choice.finish_reason)

    def _deltas(self, choice: _Choice) -> Iterator[Delta]:
        if choice.text:
            yield Content(choice.text)
        said = choice.delta or _Message()
        if thought := said.reasoning_content or said.reasoning:
            yield Reasoning(thought)
        if text := said.content or said.refusal:
            yield Content(text)
        for call in said.tool_calls or ():
            function = call.function or _Function()
            place = (choice.index, call.index)
            begun = self._calls.get(place)
            if begun is None or (call.id and call.id != begun.id):  # some number all calls alike
                if not (call.id and function.name):
                    raise self._broken("sent a tool call without its id or name")
                number = self._num_calls.get(choice.index, 0)
                self._num_calls[choice.index] = number + 1
                begun = self._calls[place] = _Begun(number, call.id)
                yield CallBegun(number, call.id, function.name)
            if function.arguments:
                if begun.number < self._num_calls[choice.index] - 1:
                    raise self._broken("sent arguments of a tool call after the next one had begun")
                yield Arguments(begun.number, function.arguments)

    def _broken(self, how: str) -> Unavailable:
        return Unavailable(f"{self._name} {how}", reason="managed_api")
