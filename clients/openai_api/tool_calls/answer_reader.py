# SPDX-License-Identifier: Apache-2.0
"""Several readers of one answer in a row, each of the content that the one before leaves; and why the answer ended."""

from collections.abc import Iterable

from clients.openai_api.tool_calls.deltas import CallBegun, Content, Delta, DeltaReader


class AnswerReader:
    """A reader of one answer, such as of its reasoning and then of its calls; without readers all is content."""

    def __init__(self, *readers: DeltaReader) -> None:
        self._readers = readers
        self.num_calls = 0

    def read(self, text: str) -> list[Delta]:
        """Return what is certain with the next piece of the text."""
        deltas: list[Delta] = [Content(text)] if text else []
        for reader in self._readers:
            deltas = _read_on(reader, deltas)
        return self._counted(deltas)

    def end(self) -> list[Delta]:
        """Return what was held back; nothing may be read after it."""
        deltas: list[Delta] = []
        for reader in self._readers:
            deltas = _read_on(reader, deltas) + reader.end()
        return self._counted(deltas)

    def finish_reason(self, reason: str) -> str:
        """Return OpenAI's word for why the answer ended, with its calls in mind.

        An answer that ended by itself is `tool_calls` where it has one. Any other reason stays: a caller who reads
        `length` knows that the last call may be cut off.
        """
        return "tool_calls" if self.num_calls and reason == "stop" else reason

    def _counted(self, deltas: list[Delta]) -> list[Delta]:
        self.num_calls += sum(isinstance(delta, CallBegun) for delta in deltas)
        return deltas


def _read_on(reader: DeltaReader, deltas: Iterable[Delta]) -> list[Delta]:
    read: list[Delta] = []
    for delta in deltas:
        read += reader.read(delta.text) if isinstance(delta, Content) else [delta]
    return read
