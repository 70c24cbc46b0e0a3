# SPDX-License-Identifier: Apache-2.0
"""Stop strings, matched on text: where generation ends, and how much text must be held back until that is known.

A match is decided at the character that completes it; of two strings that are complete at the same character the longer
one counts. The text is cut before it. This rule reads one character after the other, so it does not matter how the text
is cut into deltas, and generation can end with the token that completes the match.
"""

from collections.abc import Iterable, Sequence

from ensemble_configs.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1000
_FIELD = "stop_words"


def check_stop_strings(given: Iterable[bytes | str]) -> tuple[str, ...]:
    """The stop strings of a request, each once. Empty ones are left out: upstream's examples send ``"stop_words": ""``.

    Raises:
        RequestError: more than 16 of them, one longer than 1,000 characters, or one that is not UTF-8.
    """
    different: dict[bytes | str, int] = {}
    for index, value in enumerate(given):
        if value:
            different.setdefault(value, index)
    if len(different) > MAX_STOP_STRINGS:  # before any of them is looked at: they may be a million
        raise RequestError(
            f"stop_words has {len(different)} strings; send at most {MAX_STOP_STRINGS}",
            field=_FIELD,
            value=len(different),
            max=MAX_STOP_STRINGS,
        )
    strings = {_text(value, index): index for value, index in different.items()}
    for string, index in strings.items():
        if len(string) > MAX_STOP_STRING_CHARS:
            raise RequestError(
                f"stop_words[{index}] has {len(string)} characters; send at most {MAX_STOP_STRING_CHARS}",
                field=_FIELD,
                value=len(string),
                max=MAX_STOP_STRING_CHARS,
            )
    return tuple(strings)


def _text(value: bytes | str, index: int) -> str:
    try:
        # str too is checked: half a surrogate pair cannot be in any text that comes out.
        return value.decode("utf-8") if isinstance(value, bytes) else value.encode("utf-8").decode("utf-8")
    except UnicodeError as exc:
        raise RequestError(f"stop_words[{index}] is not UTF-8; send UTF-8", field=_FIELD, index=index) from exc


class StopStringMatcher:
    """Follows one text and ends it before the first stop string; for one thread at a time.

    Time is O(number of strings) for a character, whatever the strings; text that starts none of them is skipped by
    `str.find`. Held back is exactly the longest end of the text so far that is the beginning of a stop string.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        """Args: `stop_strings` as `check_stop_strings` returns them; none at all lets all text through."""
        self._patterns = [_Pattern(string) for string in stop_strings]
        self._held = ""
        self.stopped = False

    def push(self, delta: str) -> str:
        """The text that is now certain; nothing more comes after a stop string."""
        if not self._patterns:
            return delta
        if self.stopped:
            return ""
        # The earliest end, and for equal ends the earliest start.
        matches = [(end, end - len(p.string)) for p in self._patterns if (end := p.find_end(delta)) is not None]
        text = self._held + delta
        if matches:
            self.stopped = True
            _, start = min(matches)
            return text[: len(self._held) + start]
        certain = len(text) - max(pattern.num_matched for pattern in self._patterns)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """The end of the text: what was held back, unless a stop string ended it."""
        held, self._held = self._held, ""
        return "" if self.stopped else held


class _Pattern:
    """One string and how much of it the text ends with (Knuth, Morris, Pratt)."""

    __slots__ = ("_borders", "num_matched", "string")

    def __init__(self, string: str) -> None:
        assert string, "check_stop_strings leaves no empty string"
        self.string = string
        self.num_matched = 0
        self._borders = _borders(string)

    def find_end(self, delta: str) -> int | None:
        """Where in `delta` the string is first complete, None where it is not."""
        string, borders, matched = self.string, self._borders, self.num_matched
        position = 0
        while position < len(delta):
            if matched == 0:
                position = delta.find(string[0], position)
                if position < 0:
                    break
            character = delta[position]
            while matched and string[matched] != character:
                matched = borders[matched - 1]
            matched += string[matched] == character
            position += 1
            if matched == len(string):
                return position
        self.num_matched = matched
        return None


def _borders(string: str) -> list[int]:
    """For each beginning of the string: the length of its longest proper beginning that is also its end."""
    borders = [0]
    for character in string[1:]:
        length = borders[-1]
        while length and string[length] != character:
            length = borders[length - 1]
        borders.append(length + (string[length] == character))
    return borders
