# SPDX-License-Identifier: Apache-2.0
"""Stop strings on text: the same cut for every chunking, and nothing held back longer than needed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.text.stop_strings import (
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_STRINGS_CHARS,
    StopStringMatcher,
    check_stop_strings,
)
from trireme.base.errors import RequestError

# Two letters only: strings then overlap themselves and each other all the time.
TEXTS = st.text("ab", max_size=30)
DELTAS = st.lists(st.text("ab", max_size=5), max_size=12)
STRINGS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


def cut(text: str, strings: list[str]) -> str:
    """Return the text cut by the rule: at the first character that ends a string, before the longest such string."""
    for end in range(1, len(text) + 1):
        complete = [string for string in strings if text[:end].endswith(string)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def run(deltas: list[str], strings: list[str]) -> tuple[list[str], bool]:
    matcher = StopStringMatcher(strings)
    return [*map(matcher.push, deltas), matcher.finish()], matcher.stopped


@pytest.mark.parametrize(
    ("deltas", "strings", "texts"),
    [
        pytest.param(["one STOP two"], ["STOP"], ["one ", ""], id="inside one delta"),
        pytest.param(["a", "S", "T", "O", "P", "b"], ["STOP"], ["a", "", "", "", "", "", ""], id="over many deltas"),
        pytest.param(["ST", "ST", "OP"], ["STOP"], ["", "ST", "", ""], id="a new start inside a failed one"),
        pytest.param(["aa", "ab"], ["aab"], ["", "a", ""], id="a start that overlaps itself"),
        pytest.param(["ST", "ART"], ["STOP"], ["", "START", ""], id="what turns out to be none comes out"),
        pytest.param(["one ST"], ["STOP"], ["one ", "ST"], id="the end brings out what was held"),
        pytest.param(["a\n", "\nb"], ["\n\n", "\n\nUser:"], ["a", "", ""], id="one is the beginning of another"),
        pytest.param(["my END"], ["END", "my END"], ["", ""], id="one is the end of another: the longer counts"),
        pytest.param(["abcd"], ["abcd", "bc"], ["a", ""], id="one is inside another: the one complete first counts"),
        pytest.param(["x END y STOP"], ["STOP", "END"], ["x ", ""], id="the earlier one of two"),
        pytest.param(["STOP"], ["STOP"], ["", ""], id="all of the text"),
        pytest.param(["你好。再", "见"], ["再见"], ["你好。", "", ""], id="characters of several bytes"),
        pytest.param(["all", " of it"], [], ["all", " of it", ""], id="no stop strings"),
    ],
)
def test_the_text_is_cut_before_the_first_stop_string(deltas: list[str], strings: list[str], texts: list[str]) -> None:
    assert run(deltas, strings)[0] == texts


@given(DELTAS, STRINGS)
def test_the_text_is_the_same_for_every_chunking(deltas: list[str], strings: list[str]) -> None:
    text = "".join(deltas)
    expected = cut(text, strings)
    for chunking in (deltas, [text], list(text)):
        texts, stopped = run(chunking, strings)
        assert "".join(texts) == expected
        assert stopped == any(string in text for string in strings)


@given(DELTAS, STRINGS)
def test_only_what_may_become_a_stop_string_is_held_back(deltas: list[str], strings: list[str]) -> None:
    matcher = StopStringMatcher(strings)
    text, shown = "", ""
    for delta in deltas:
        text += delta
        shown += matcher.push(delta)
        if matcher.stopped:
            return
        beginnings = [string[:size] for string in strings for size in range(len(string))]
        assert len(text) - len(shown) == max(len(start) for start in beginnings if text.endswith(start))


@given(TEXTS, STRINGS)
def test_after_a_stop_string_nothing_comes_any_more(text: str, strings: list[str]) -> None:
    matcher = StopStringMatcher(strings)
    matcher.push(text + strings[0])
    assert matcher.stopped
    assert matcher.push("more") == ""
    assert matcher.finish() == ""


class _CountingString(str):
    """A string that counts the looks at its characters."""

    __slots__ = ("num_reads",)

    def __getitem__(self, key: object) -> str:
        self.num_reads = getattr(self, "num_reads", 0) + 1
        return super().__getitem__(key)  # type: ignore[index]


@pytest.mark.parametrize("text", ["a" * 5000, ("a" * 998 + "c") * 5, "ab" * 2500], ids=["almost", "never", "other"])
def test_the_work_for_a_character_is_bounded_however_repetitive_the_string(text: str) -> None:
    string = _CountingString("a" * 999 + "b")
    matcher = StopStringMatcher([string])
    reads_before = string.num_reads
    assert "".join(map(matcher.push, text)) + matcher.finish() == text
    assert string.num_reads - reads_before <= 4 * len(text)


def test_the_work_for_a_character_does_not_grow_with_the_number_of_strings() -> None:
    text = "".join(random.Random(5).choices("abcdefgh", k=3000))

    def reads_with(num_strings: int) -> int:
        seeded = random.Random(6)
        strings = [_CountingString("".join(seeded.choices("abcdefgh", k=40))) for _ in range(num_strings)]
        matcher = StopStringMatcher(strings)
        before = sum(getattr(string, "num_reads", 0) for string in strings)
        assert "".join(map(matcher.push, text)) + matcher.finish() == text
        return sum(string.num_reads for string in strings if hasattr(string, "num_reads")) - before

    few, many = reads_with(16), reads_with(4096)
    # Only nodes that are met for the first time are looked for, in a sorted list: 256 times as many, 8 steps more.
    assert many <= 24 * len(text)
    assert few <= 24 * len(text)


@given(DELTAS, STRINGS, st.lists(st.text("ab", max_size=3), max_size=3))
def test_what_may_come_can_be_asked_without_being_pushed(
    deltas: list[str], strings: list[str], ahead: list[str]
) -> None:
    matcher = StopStringMatcher(strings)
    text = ""
    for delta in deltas:
        matcher.push(delta)
        text += delta
        if matcher.stopped:
            return
        behind = text
        for piece in ahead:
            behind += piece
            expected = any(string in behind for string in strings)
            assert matcher.is_stopped_by(piece) == expected
            if expected:
                break
    assert matcher.finish() in {text[start:] for start in range(len(text) + 1)}


def test_strings_of_a_request_come_back_once_each_and_in_order() -> None:
    assert check_stop_strings(["。".encode(), b"END", "END", "User:"]) == ("。", "END", "User:")


def test_an_empty_string_asks_for_nothing_as_in_upstreams_examples() -> None:
    assert check_stop_strings([b""]) == ()
    assert check_stop_strings([b"", b"END"]) == ("END",)


@pytest.mark.parametrize(
    ("given_strings", "words"),
    [
        pytest.param(
            [b"%d" % n for n in range(MAX_STOP_STRINGS + 1)], "4097 strings; send at most 4096", id="too many"
        ),
        pytest.param(
            [b"", b"x" * (MAX_STOP_STRING_CHARS + 1)],
            r"stop_words\[1\] has 1001 characters; send at most 1000",
            id="too long",
        ),
        pytest.param(
            [b"%0999d" % n for n in range(66)],
            "65934 characters in 66 strings; send at most 65536 together",
            id="too long together",
        ),
        pytest.param([b"fine", b"\xff"], r"stop_words\[1\] is not UTF-8", id="not UTF-8"),
        pytest.param(["\ud800"], r"stop_words\[0\] is not UTF-8", id="half a surrogate pair"),
    ],
)
def test_a_bad_stop_string_is_refused_by_name(given_strings: list[bytes | str], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check_stop_strings(given_strings)
    assert caught.value.facts["field"] == "stop_words"


def test_the_largest_allowed_request_is_taken() -> None:
    num_chars = MAX_STOP_STRINGS_CHARS // MAX_STOP_STRINGS
    short = [chr(0x4E00 + n) * num_chars for n in range(MAX_STOP_STRINGS)]
    long = [chr(0x4E00 + n) * MAX_STOP_STRING_CHARS for n in range(MAX_STOP_STRINGS_CHARS // MAX_STOP_STRING_CHARS)]
    for strings in (short, long):
        assert check_stop_strings([string.encode() for string in strings]) == tuple(strings)
