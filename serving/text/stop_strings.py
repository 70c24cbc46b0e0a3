# SPDX-License-Identifier: Apache-2.0
"""Stop strings, matched on text: where generation ends, and how much text must be held back until that is known.

A match is decided at the character that completes it; of two strings that are complete at the same character the longer
one counts. The text is cut before it. This rule reads one character after the other, so it does not matter how the text
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
    """The stop strings of a request, each once. Empty ones are left out: upstream's examples send ``"stop_words": ""``.

    Raises:
        RequestError: too many of them, one that is too long, all of them together, or one that is not UTF-8.
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
    """Follows one text and ends it before the first stop string; for one thread at a time.

    Time for a character does not grow with the number of strings (Aho, Corasick), and the automaton is made while the
    text goes through it: a text visits few of its nodes, and a request waits for none of them. Held back is exactly the
    longest end of the text so far that is the beginning of a stop string.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        """Args: `stop_strings` as `check_stop_strings` returns them; none at all lets all text through."""
        self._strings = sorted(stop_strings)
        self._first_characters = frozenset(string[0] for string in stop_strings)
        self._nodes = [_Node(0, 0, len(self._strings))]
        self._node = self._node_ahead = self._nodes[_ROOT]
        self._held = ""
        self.stopped = False

    def push(self, delta: str) -> str:
        """The text that is now certain; nothing more comes after a stop string."""
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
                self.stopped = True
                return text[: end - node.num_complete]
        self._node = self._node_ahead = node
        certain = len(text) - node.depth
        self._held = text[certain:]
        return text[:certain]

    def is_stopped_by(self, text: str) -> bool:
        """Whether a string is complete if this comes next, behind what was asked before; `push` says what did come."""
        for character in text:
            self._node_ahead = self._after(self._node_ahead, character)
            if self._node_ahead.num_complete:
                return True
        return False

    def finish(self) -> str:
        """The end of the text: what was held back, unless a stop string ended it."""
        held, self._held = self._held, ""
        return "" if self.stopped else held

    def _after(self, node: "_Node", character: str) -> "_Node":
        """The longest end of the text that begins a string, when `character` comes behind `node`'s."""
        number = node.after.get(character)
        return self._nodes[self._find_after(node, character) if number is None else number]

    def _find_after(self, node: "_Node", character: str) -> int:
        """Find it for the first time, with the node itself and all that it falls back to."""
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
        """The beginning of a string that is one character longer; None: no string goes on like this."""
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
    """One beginning of stop strings.

    Attributes:
        depth: its length.
        first: the sorted strings from here
        last: to before here begin with it.
        after: the number of the node that follows, by the character; what is not here has not come yet.
        shorter: the number of the longest proper end of it that begins a string, too.
        num_complete: the length of the longest string that it ends with; 0: none. Nothing follows one.
    """

    __slots__ = ("after", "depth", "first", "last", "num_complete", "shorter")

    def __init__(self, depth: int, first: int, last: int) -> None:
        self.depth, self.first, self.last = depth, first, last
        # Numbers, so that no node holds another one: each request would leave a circle to the garbage collector.
        self.after: dict[str, int] = {}
        self.shorter = _ROOT
        self.num_complete = 0
