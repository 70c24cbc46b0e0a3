# SPDX-License-Identifier: Apache-2.0
"""Reasoning before an answer, between `<think>` and `</think>`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joined_deltas import Part, joined, read_all

from clients.openai_api.tool_calls.deltas import Content, Reasoning
from clients.openai_api.tool_calls.reasoning import ReasoningReader, begins_inside

SHREDS = ["<think>", "</think>", "<thi", "</th", "a", " ", "\n", "ü", "<"]


def read(text: str, *, inside: bool = False) -> list[Part]:
    whole = read_all(ReasoningReader(begins_inside=inside), [text])
    assert read_all(ReasoningReader(begins_inside=inside), list(text)) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello", ["Hello"]),
        ("", []),
        (" \n", [" \n"]),
        ("<think>\nHm, so.\n</think>\n\nHello ", [("", "Hm, so."), "Hello "]),
        ("<think>a \n b</think>Hello", [("", "a \n b"), "Hello"]),
        ("\n<think>a</think>", [("", "a")]),
        ("<think>\n\n</think>\n\nHello", ["Hello"]),
        ("<think>a < b </thin > c", [("", "a < b </thin > c")]),
        ("<think>a\n</thi", [("", "a\n</thi")]),
        ("<think>a\n", [("", "a\n")]),
        ("<think>", []),
        ("<thi", ["<thi"]),
        ("Say <think>a</think>", ["Say <think>a</think>"]),
        ("<think>a</think><think>b</think>", [("", "a"), "<think>b</think>"]),
        ("a</think>b", ["a</think>b"]),
    ],
)
def test_reasoning_is_told_from_the_answer(text: str, parts: list[Part]) -> None:
    assert read(text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hm.\n</think>\n\nHello", [("", "Hm."), "Hello"]),
        ("\nHm.</think>Hello", [("", "Hm."), "Hello"]),
        ("<think>\nHm.</think>Hello", [("", "Hm."), "Hello"]),
        ("Hm.", [("", "Hm.")]),
        ("<thi", [("", "<thi")]),
        ("</think>\nHello", ["Hello"]),
        ("", []),
    ],
)
def test_an_answer_may_begin_inside(text: str, parts: list[Part]) -> None:
    assert read(text, inside=True) == parts


@pytest.mark.parametrize(
    ("prompt", "is_inside"),
    [("<｜Assistant｜><think>\n", True), ("<|im_start|>assistant\n", False), ("<think>\n\n</think>\n\n", False)],
    ids=["DeepSeek-R1", "Qwen3", "Qwen3 told not to think"],
)
def test_the_prompt_tells_where_the_answer_begins(prompt: str, is_inside: bool) -> None:
    assert begins_inside(prompt) is is_inside


def test_reasoning_streams_and_holds_back_what_may_be_its_end() -> None:
    reader = ReasoningReader()
    assert reader.read("<think>\n") == []
    assert reader.read("Hm, <") == [Reasoning("Hm,")]
    assert reader.read("b> ") == [Reasoning(" <b>")]
    assert reader.read("\n</think>") == []
    assert reader.read("\n\nHi") == [Content("Hi")]
    assert reader.read("<") == [Content("<")]
    assert reader.end() == []


@given(st.lists(st.sampled_from(SHREDS), max_size=15), st.booleans())
def test_only_marks_and_white_space_beside_them_are_left_out(shreds: list[str], inside: bool) -> None:
    text = "".join(shreds)
    parts = read(text, inside=inside)
    assert joined(ReasoningReader(begins_inside=inside).read(text)) is not None
    left = "".join(part if isinstance(part, str) else part[1] for part in parts)
    without_marks = text.replace("<think>", "").replace("</think>", "")
    assert "".join(left.replace("<think>", "").replace("</think>", "").split()) == "".join(without_marks.split())
