# SPDX-License-Identifier: Apache-2.0
"""Stop strings, matched on text: the end of generation, and the text to hold back until the end is known.

A match is decided at the character that completes it; of two strings that are complete at one character the longer
counts. The text is cut before it. This rule reads one character after the other, so it does not matter how the text
is cut into deltas, and generation can end with the token that completes the match.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

from trireme.base.errors import RequestError

MAX_STOP_STRINGS = 4096
MAX_STOP_STRING_CHARS = 1000
# Together: they travel with the request from process to process, and are sorted in each.
MAX_STOP_STRINGS_CHARS = 65536
_FIELD = "stop_words"


def check_stop_strings(given: Iterable[bytes | str]) -> tuple[str, ...]:
    """Return the stop strings of a request, each once, without empty strings: upstream sends ``"stop_words": ""``.

    Raises:
        RequestError: there are too many strings, a string is too long or not UTF-8, or all together are too long.
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
    strings = tuple(dict.fromkeys(_text(value, index) for value, index in different.items()))
    num_chars = sum(map(len, strings))
    if num_chars > MAX_STOP_STRINGS_CHARS:
        raise RequestError(
            f"stop_words has {num_chars} characters in {len(strings)} strings; send at most {MAX_STOP_STRINGS_CHARS} "
            "together: fewer strings, or shorter ones",
            field=_FIELD,
            value=num_chars,
            max=MAX_STOP_STRINGS_CHARS,
        )
    return strings


def _text(value: bytes | str, index: int) -> str:
    try:
        # str too is checked: half a surrogate pair cannot be in any text that comes out.
        text = value.decode("utf-8") if isinstance(value, bytes) else value.encode("utf-8").decode("utf-8")
    except UnicodeError as exc:
        raise RequestError(f"stop_words[{index}] is not UTF-8; send UTF-8", field=_FIELD, index=index) from exc
    if len(text) > MAX_STOP_STRING_CHARS:
        raise RequestError(
            f"stop_words[{index}] has {len(text)} characters; send at most {MAX_STOP_STRING_CHARS}",
            field=_FIELD,
            value=len(text),
            max=MAX_STOP_STRING_CHARS,
        )
    return text


class StopStringMatcher:
    """The matcher that follows one text and ends it before the first stop string; for one thread at a time.

    Time for a character does not grow with the number of strings (Aho, Corasick), and the automaton is made while the
    text goes through it: a text visits few of its nodes, and a request waits for none of them. Held back is exactly the
    longest end of the text so far that is the beginning of a stop string.

    Attributes:
        stopped: whether a stop string ended the text.
        stopped_by: the string that did; "": none has.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        """Begin a text.

        Args:
            stop_strings: stop strings, checked by `check_stop_strings`; without strings all text passes.
        """
        self._strings = sorted(stop_strings)
        self._first_characters = frozenset(string[0] for string in stop_strings)
        self._nodes = [_Node(0, 0, len(self._strings))]
        self._node = self._node_ahead = self._nodes[_ROOT]
        self._held = ""
        self.stopped, self.stopped_by = False, ""

    def push(self, delta: str) -> str:
        """Return the text that is now certain; nothing more comes after a stop string."""
        if self.stopped:
            return ""
        node = self._node
        if not node.depth and self._first_characters.isdisjoint(delta):
            self._node_ahead = node
            return delta
        text = self._held + delta
        for end, character in enumerate(delta, start=len(self._held) + 1):
            node = self._after(node, character)
            if node.num_complete:
                self.stopped, self.stopped_by = True, text[end - node.num_complete : end]
                return text[: end - node.num_complete]
        self._node = self._node_ahead = node
        certain = len(text) - node.depth
        self._held = text[certain:]
        return text[:certain]

    def is_stopped_by(self, text: str) -> bool:
        """Return whether `text` completes a string, behind the texts asked before; `push` sets the real text."""
        for character in text:
            self._node_ahead = self._after(self._node_ahead, character)
            if self._node_ahead.num_complete:
                return True
        return False

    def finish(self) -> str:
        """Return the end of the text, which was held back; empty if a stop string ended the text."""
        held, self._held = self._held, ""
        return "" if self.stopped else held

    def _after(self, node: "_Node", character: str) -> "_Node":
        """Return the node of the longest end of the text that begins a string, when `character` follows `node`."""
        number = node.after.get(character)
        return self._nodes[self._find_after(node, character) if number is None else number]

    def _find_after(self, node: "_Node", character: str) -> int:
        """Return the number of `_after`'s node, found for the first time, for `node` and its shorter ends."""
        unknown = []
        end, found = node, node.after.get(character)
        while found is None:
            unknown.append(end)
            if not end.depth:
                found = _ROOT
            else:
                end = self._nodes[end.shorter]
                found = end.after.get(character)
        for end in reversed(unknown):
            child = self._child(end, character)
            if child is not None:
                child.shorter = found
                child.num_complete = child.num_complete or self._nodes[found].num_complete
                found = end.after[character] = len(self._nodes)
                self._nodes.append(child)
        node.after[character] = found
        return found

    def _child(self, node: "_Node", character: str) -> "_Node | None":
        """Return the beginning that is longer by `character`; None: no string has it."""
        place = itemgetter(node.depth)
        first = bisect_left(self._strings, character, node.first, node.last, key=place)
        last = bisect_right(self._strings, character, first, node.last, key=place)
        if first == last:
            return None
        child = _Node(node.depth + 1, first, last)
        if len(self._strings[first]) == child.depth:  # sorted, so it comes before those that go on
            child.num_complete = child.depth
        return child


_ROOT = 0


class _Node:
    """A beginning of stop strings, as a node of the automaton.

    Attributes:
        depth: length of the beginning.
        first: index of the first sorted string that has this beginning.
        last: index behind the last of these strings.
        after: number of the next node, by character; an absent character has not come yet.
        shorter: number of the longest proper end of this beginning that begins a string, too.
        num_complete: length of the longest string at the end of this beginning; 0: none. No node follows a string.
    """

    __slots__ = ("after", "depth", "first", "last", "num_complete", "shorter")

    def __init__(self, depth: int, first: int, last: int) -> None:
        self.depth, self.first, self.last = depth, first, last
        # Numbers, so that no node holds another one: each request would leave a circle to the garbage collector.
        self.after: dict[str, int] = {}
        self.shorter = _ROOT
        self.num_complete = 0
