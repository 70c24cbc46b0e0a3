# SPDX-License-Identifier: Apache-2.0
"""The text of an answer as far as it has come, for grammars that wait for more of it.

A grammar is a generator. It yields where the text that has come does not tell how to go on, and is resumed when there
is more, or when the answer is over.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

_T = TypeVar("_T")
Waiting = Generator[None, None, _T]  # a part of a grammar, and what it returns

SPACE = re.compile(r"\s*")


class IncomingText:
    """The text that has come: some of it read and held, the rest not read yet.

    Held text is neither content nor a call yet. `settle` decides on all of it.
    """

    def __init__(self) -> None:
        self._text = ""
        self._begin = self._at = 0  # [begin, at) is held, [at, end) is not read yet
        self.is_over = False

    def add(self, text: str) -> None:
        """Append a piece of the answer."""
        self._text = self._text[self._begin :] + text
        self._at -= self._begin
        self._begin = 0

    @property
    def has_unread(self) -> bool:
        """Return whether there is text that has come and is not read yet."""
        return self._at < len(self._text)

    @property
    def num_held(self) -> int:
        """Return how many characters are held: a place that `held_since` takes, also when more has come."""
        return self._at - self._begin

    def held_since(self, num_held: int) -> str:
        """Return the held text from a place on."""
        return self._text[self._begin + num_held : self._at]

    def settle(self) -> str:
        """Return the held text and hold it no longer."""
        held = self.held_since(0)
        self._begin = self._at
        return held

    def skip(self, num_chars: int) -> None:
        """Read and hold characters that have come."""
        self._at += num_chars

    def skip_run(self, pattern: re.Pattern[str]) -> None:
        """Read and hold the longest run of a pattern `[...]*` in what has come; more of it may follow."""
        if found := pattern.match(self._text, self._at):
            self._at = found.end()

    def char(self) -> Waiting[str]:
        """Return the next character without reading it; "" at the end of the answer."""
        while not self.has_unread:
            if self.is_over:
                return ""
            yield
        return self._text[self._at]

    def run(self, pattern: re.Pattern[str]) -> Waiting[str]:
        """Read, hold and return the longest run of a pattern `[...]*`."""
        place = self.num_held
        while True:
            self.skip_run(pattern)
            if self.has_unread or self.is_over:
                return self.held_since(place)
            yield

    def literal(self, *texts: str) -> Waiting[str]:
        """Read, hold and return the text that follows, of these; "" where none of them does.

        The begin of one at the end of the answer is read too: it was cut off there.
        """
        longest = max(map(len, texts))
        while True:
            rest = self._text[self._at : self._at + longest]
            found = next((text for text in texts if rest.startswith(text)), "")
            may_follow = any(text.startswith(rest) for text in texts)
            if found or self.is_over or not may_follow:
                self.skip(len(found) or (len(rest) if may_follow else 0))
                return found
            yield

    def until(self, marker: str, write: Callable[[str], None]) -> Waiting[bool]:
        """Hand on the text before a marker as it comes, and hold the marker; False: the answer is over without it."""
        while True:
            place = self._text.find(marker, self._at)
            if place >= 0:
                self._at = place
                write(self.settle())
                self.skip(len(marker))
                return True
            self._at = len(self._text) - (0 if self.is_over else self._num_begun(marker))
            write(self.settle())
            if self.is_over:
                return False
            yield

    def rest(self, write: Callable[[str], None]) -> Waiting[None]:
        """Hand on all that comes."""
        while True:
            self._at = len(self._text)
            write(self.settle())
            if self.is_over:
                return
            yield

    def _num_begun(self, marker: str) -> int:
        """Return how many characters at the end may be the begin of a marker."""
        longest = min(len(marker) - 1, len(self._text) - self._at)
        return next((num for num in range(longest, 0, -1) if self._text.endswith(marker[:num])), 0)
