# SPDX-License-Identifier: Apache-2.0
"""The reasoning that an answer begins with, between `<think>` and `</think>`, apart from the answer itself.

White space inside the marks and after them belongs to the format: templates write it there, and take it away again.

Source: the chat templates of Qwen/Qwen3-8B, Qwen/Qwen3-4B-Thinking-2507 and deepseek-ai/DeepSeek-R1. The last two put
`<think>` at the end of the prompt, so that answers begin inside.
"""

from clients.openai_api.tool_calls.deltas import Content, Delta, Reasoning
from clients.openai_api.tool_calls.incoming_text import SPACE, IncomingText, Waiting

BEGIN, END = "<think>", "</think>"


def begins_inside(prompt: str) -> bool:
    """Return whether the answer to a prompt begins with reasoning, as the prompt has its mark."""
    return prompt.rstrip().endswith(BEGIN)


class ReasoningReader:
    """A reader of one answer: text to reasoning and content.

    The marks count at the begin of the answer alone; in what follows they are content. Reasoning without its end is
    reasoning to the last character.

    Args:
        begins_inside: the prompt ends with `<think>`; an answer may write it all the same.
    """

    def __init__(self, *, begins_inside: bool = False) -> None:
        self._begins_inside = begins_inside
        self._incoming = IncomingText()
        self._deltas: list[Delta] = []
        self._space = ""  # at the end of the reasoning so far
        self._reading = self._read()

    def read(self, text: str) -> list[Delta]:
        """Return what is certain with the next piece of the text."""
        self._incoming.add(text)
        next(self._reading)
        return self._take()

    def end(self) -> list[Delta]:
        """Return what was held back; nothing may be read after it."""
        self._incoming.is_over = True
        next(self._reading, None)
        return self._take()

    def _read(self) -> Waiting[None]:
        yield from self._incoming.run(SPACE)
        has_mark = bool((yield from self._incoming.literal(BEGIN)))
        if has_mark or self._begins_inside:
            yield from self._read_reasoning(has_mark=has_mark)
        yield from self._incoming.rest(self._content)

    def _read_reasoning(self, *, has_mark: bool) -> Waiting[None]:
        if has_mark:
            yield from self._incoming.run(SPACE)
        begin = self._incoming.settle()
        self._reasoning("" if has_mark else begin.lstrip())
        is_whole = yield from self._incoming.until(END, self._reasoning)
        if not is_whole:
            self._write(Reasoning(self._space))
        yield from self._incoming.run(SPACE)
        self._incoming.settle()

    def _reasoning(self, text: str) -> None:
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._write(Reasoning(shown))

    def _content(self, text: str) -> None:
        self._write(Content(text))

    def _write(self, delta: Content | Reasoning) -> None:
        if delta.text:
            self._deltas.append(delta)

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas
