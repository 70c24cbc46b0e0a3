# SPDX-License-Identifier: Apache-2.0
"""Reasoning and calls of one answer, read one after the other."""

import pytest
from joined_deltas import TOOLS, joined, read_all

from clients.openai_api.tool_calls.answer_reader import AnswerReader
from clients.openai_api.tool_calls.deltas import Content
from clients.openai_api.tool_calls.reader_choice import Style, call_reader
from clients.openai_api.tool_calls.reasoning import ReasoningReader

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
ANSWER = f"<think>\nI could write {CALL}.\n</think>\n\nI look.\n{CALL}"


@pytest.mark.parametrize("pieces", [[ANSWER], list(ANSWER)], ids=["whole", "streamed"])
def test_a_call_in_the_reasoning_is_no_call(pieces: list[str]) -> None:
    reader = AnswerReader(ReasoningReader(), call_reader(Style.HERMES, TOOLS))
    assert read_all(reader, pieces) == [("", f"I could write {CALL}."), "I look.\n", ("now", "{}")]
    assert reader.num_calls == 1
    assert reader.finish_reason("stop") == "tool_calls"


def test_what_both_readers_held_back_comes_at_the_end() -> None:
    reader = AnswerReader(ReasoningReader(), call_reader(Style.HERMES, TOOLS))
    assert reader.read("<think>a</think>b<tool") != []
    assert joined(reader.end()) == ["<tool"]
    reader = AnswerReader(ReasoningReader(), call_reader(Style.HERMES, TOOLS))
    assert reader.read("<thi") == []
    assert joined(reader.end()) == ["<thi"]


def test_without_readers_all_is_content() -> None:
    reader = AnswerReader()
    assert reader.read(ANSWER) == [Content(ANSWER)]
    assert reader.read("") == []
    assert reader.end() == []


@pytest.mark.parametrize(("text", "calls_reason"), [("Hi", "stop"), (CALL, "tool_calls")], ids=["no call", "a call"])
def test_calls_are_why_an_answer_ended_unless_it_was_cut_off(text: str, calls_reason: str) -> None:
    reader = AnswerReader(call_reader(Style.HERMES, TOOLS))
    reader.read(text)
    reader.end()
    assert reader.finish_reason("stop") == calls_reason
    assert reader.finish_reason("length") == "length"
