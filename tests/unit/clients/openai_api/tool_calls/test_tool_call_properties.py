# SPDX-License-Identifier: Apache-2.0
"""Rules that hold for every text in every style: cuts do not matter, nothing is lost, and nothing comes twice."""

import itertools
import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joined_deltas import TOOLS, Part, read_all

from clients.openai_api.tool_calls.reader_choice import Style, call_reader

SHREDS = [
    "<tool_call>", "</tool_call>", "<tool_", "<|python_tag|>", "<|python", "[TOOL_CALLS]", "[TOOL", "[ARGS]",
    "[CALL_ID]", "<function=now>", "<parameter=a>", "</parameter>", "</function>", "now", "rm", "ü", "\ud800", " ",
    "\n", "{", "}", "[", "]", '"', "\\", ":", ",", ";", "1.5", '{"a": "\\"}"}', '"name": ', '"arguments": ', "",
]  # fmt: skip
HEAD = ["{", '"name"', ":", ' "now"', ", ", '"arguments"', ": "]
VALUE = ["{", '"b"', ":", ' "\\"}', '<"', ",", '"c"', ":", "[", "{}", "]", "}"]
OBJECTS = [
    [*HEAD, *VALUE, "}"],
    ["{", '"id"', ":", "1.5", ",", '"parameters"', ":", *VALUE, ",", '"name"', ":", '"now"', "}"],
    [*HEAD, "{}", ",", ' "id"', ":", ' "x"', "}"],
]
CALLS = [
    *(["<tool_call>", "\n", *call, "\n", "</tool_call>"] for call in OBJECTS),
    *(["<|python_tag|>", *call, "; "] for call in OBJECTS),
    *(["[TOOL_CALLS]", " ", "[", *call, ",", *call, "]"] for call in OBJECTS),
    ["[TOOL_CALLS]", "now", "[CALL_ID]", "abc", "[ARGS]", *VALUE],
    [
        "<tool_call>",
        "<function=",
        "now",
        ">",
        "<parameter=",
        "a",
        ">",
        "1",
        "</parameter>",
        "</function>",
        "</tool_call>",
    ],
    *OBJECTS,
]


@st.composite
def damaged_calls(draw: st.DrawFn) -> str:
    """Return a call in some style, in which up to two tokens are something else, with its end cut off or not."""
    tokens = list(draw(st.sampled_from(CALLS)))
    for place in draw(st.lists(st.integers(0, len(tokens) - 1), max_size=2)):
        tokens[place] = draw(st.sampled_from(SHREDS))
    return "".join(tokens)[: draw(st.none() | st.integers(0, 60))]


texts = st.lists(damaged_calls() | st.sampled_from(SHREDS) | st.text(max_size=3), max_size=5).map("".join)
styles = pytest.mark.parametrize("style", Style)

# What a call is, beside its arguments, in the text of a style; qwen3_coder's arguments are not in its text.
STRING = r'"(?:[^"\\]|\\.)*"'
NESTED = r"[{\[][^{}\[\]]*[}\]]"
for _ in range(6):
    NESTED = rf'[{{\[](?:{STRING}|[^"{{}}\[\]]|{NESTED})*[}}\]]'
PAIR = rf'{STRING}\s*:\s*(?:{STRING}|{NESTED}|[^\s,:"{{}}\[\]]+)'
BEFORE = rf'\s*\{{\s*(?:{PAIR}\s*,\s*)*"(?:arguments|parameters)"\s*:\s*'
AFTER = rf"(?:(?:\s*,\s*{PAIR})*\s*\}}"
CUT = r"|\s*(?:,.*)?\Z|)"
NAMED = r"\[TOOL_CALLS\]\s*now(?:\[CALL_ID\][\w.:/-]*)?(?:\[ARGS\])?\s*"
GAPS = {
    Style.HERMES: (f"<tool_call>{BEFORE}", rf"{AFTER}\s*(?:</tool_call>|(?:</tool_call|</tool_|</)\Z)?{CUT}"),
    Style.LLAMA: (rf"(?:;|\s|<\|python_tag\|>)*{BEFORE}", AFTER + CUT),
    Style.MISTRAL: (rf"(?:(?:\[TOOL_CALLS\]\s*\[|,){BEFORE}|{NAMED})", rf"(?:{AFTER}\s*\]?{CUT})"),
}


def read_cut(style: Style, text: str, cuts: Sequence[int]) -> list[Part]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]
    return read_all(call_reader(style, TOOLS), pieces)


@styles
@given(text=texts, cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_joined_deltas_do_not_depend_on_the_cuts(style: Style, text: str, cuts: list[int]) -> None:
    assert read_cut(style, text, cuts) == read_cut(style, text, [])


@styles
@given(text=st.text().filter(lambda text: not text.lstrip().startswith("{")))
def test_text_without_a_marker_passes_unchanged(style: Style, text: str) -> None:
    assert read_cut(style, text, [len(text) // 2]) == ([text] if text else [])


@pytest.mark.parametrize("style", GAPS)
@given(text=texts)
def test_content_and_calls_are_the_whole_text_in_its_order(style: Style, text: str) -> None:
    parts = read_cut(style, text, [])
    before, after = GAPS[style]
    pattern = ""
    for part in parts:
        if isinstance(part, str):
            pattern += re.escape(part)
        else:
            whole, quoted = re.escape(part[1]), re.escape(json.dumps(part[1]))
            pattern += rf"\s*{before}(?:{whole}|{quoted}){after}\s*"
    assert re.fullmatch(pattern, text, re.DOTALL)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
calls = st.tuples(
    st.sampled_from(sorted(TOOLS)),
    st.builds(json.dumps, st.dictionaries(st.text(), json_values, max_size=3), ensure_ascii=st.booleans()),
)
words = st.sampled_from(["", "I look it up.", " {so} ", "1 < 2"])


def written(style: Style, name: str, arguments: str) -> str:
    if style is Style.HERMES:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    if style is Style.LLAMA:
        return f'<|python_tag|>{{"name": "{name}", "parameters": {arguments}}}'
    return f"[TOOL_CALLS]{name}[ARGS]{arguments}"


@pytest.mark.parametrize("style", GAPS)
@given(before=words, said=st.lists(st.tuples(calls, words), max_size=4), cuts=st.lists(st.integers(0, 999), max_size=9))
def test_every_call_that_was_written_is_read(
    style: Style, before: str, said: list[tuple[tuple[str, str], str]], cuts: list[int]
) -> None:
    text = before + "".join(written(style, *call) + after for call, after in said)
    expected: list[Part] = [part for call, after in said for part in (call, after) if part]
    assert read_cut(style, text, cuts) == ([before] if before else []) + expected


@pytest.mark.parametrize("style", GAPS)
@pytest.mark.parametrize(
    "shred", ["<tool_call>", "[TOOL_CALLS]", '<tool_call>{"a":[', "[TOOL_CALLS] [", '{"', "<", "[", ";{"]
)
def test_a_long_answer_of_begins_takes_no_more_than_its_length(style: Style, shred: str) -> None:
    text = shred * 20_000  # a reader that began again at each would not come to an end
    assert read_all(call_reader(style, TOOLS), [text]) == [text]
