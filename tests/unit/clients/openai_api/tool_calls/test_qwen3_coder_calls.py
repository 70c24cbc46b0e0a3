# SPDX-License-Identifier: Apache-2.0
"""Calls of Qwen3-Coder, whose XML becomes JSON by the schemas of the tools."""

import json

import pytest
from joined_deltas import Part, joined, read_all

from clients.openai_api.tool_calls.deltas import Arguments
from clients.openai_api.tool_calls.reader_choice import Style, call_reader

FIELDS: dict[str, object] = {
    "text": {"type": "string"},
    "maybe": {"type": ["string", "null"]},
    "count": {"type": "integer"},
    "deep": {"type": "object"},
    "odd": 5,
    "odder": {"type": 5},
    "number": {"type": ["integer", "null"]},
}
TOOLS: dict[str, dict[str, object]] = {
    "now": {},
    "save": {"type": "object", "properties": FIELDS},
    "odd": {"properties": 5},
}


def read(text: str) -> list[Part]:
    whole = read_all(call_reader(Style.QWEN3_CODER, TOOLS), [text])
    assert read_all(call_reader(Style.QWEN3_CODER, TOOLS), list(text)) == whole
    return whole


def call(name: str, *parameters: tuple[str, str]) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "12", "12"),
        ("text", 'a "b"\n\n\\ <x> ü', 'a "b"\n\n\\ <x> ü'),
        ("text", "", ""),
        ("text", "\n  indented\n", "\n  indented\n"),
        ("maybe", "null", "null"),
        ("count", "12", 12),
        ("count", " -1.5e3 ", -1500.0),
        ("count", "twelve", "twelve"),
        ("count", "True", True),
        ("count", "None", None),
        ("deep", '{"a": [1, {"b": "}"}]}', {"a": [1, {"b": "}"}]}),
        ("deep", '{"a": ', '{"a": '),
        ("unknown", "[1]", [1]),
        ("odd", "word", "word"),
        ("odder", "5", 5),
        ("number", "5", 5),
    ],
)
def test_a_value_is_what_its_schema_says(key: str, value: str, expected: object) -> None:
    (part,) = read(call("save", (key, value)))
    assert part[0] == "save"
    assert json.loads(part[1]) == {key: expected}


def test_calls_and_content_are_told_apart() -> None:
    text = f"Hi {call('now')}\n{call('save', ('count', '1'), ('text', 'x'))}\n{call('odd', ('a', 'b'))} Bye"
    assert read(text) == ["Hi ", ("now", "{}"), ("save", '{"count": 1, "text": "x"}'), ("odd", '{"a": "b"}'), " Bye"]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<fun",
        "<tool_call>\n<function=now",
        "<tool_call><function=rm></function></tool_call>",
        "<tool_call><function=now x></function></tool_call>",
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        "<function=now></function>",
    ],
    ids=["cut off", "cut off in the name", "not offered", "no name", "JSON", "without its tag"],
)
def test_what_is_no_call_stays_content_as_it_was_written(text: str) -> None:
    assert read(text) == [text]


def test_a_call_that_breaks_after_its_begin_stays_as_it_is() -> None:
    text = "<tool_call><function=save><parameter=count>1</parameter>oops</function></tool_call>"
    assert read(text) == [("save", '{"count": 1'), "oops</function></tool_call>"]
    assert read("<tool_call><function=now></function> So.") == [("now", "{}"), " So."]


def test_a_parameter_that_is_cut_off_is_a_string_without_an_end() -> None:
    text = call("save", ("text", 'say "hi"'))
    assert read(text[: text.index('hi"')]) == [("save", r'{"text": "say \"')]


def test_a_parameter_is_sent_when_its_end_has_come() -> None:
    reader = call_reader(Style.QWEN3_CODER, TOOLS)
    assert joined(reader.read("<tool_call><function=save>")) == [("save", "{")]
    assert reader.read("<parameter=count>1</parameter") == []
    assert reader.read("></function>") == [Arguments(0, '"count": 1}')]
