# SPDX-License-Identifier: Apache-2.0
"""Calls of Hermes and Qwen in `<tool_call>` tags, and what all styles with JSON calls share."""

import pytest
from joined_deltas import TOOLS, Part, read_style

from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content
from clients.openai_api.tool_calls.reader_choice import Style, call_reader

NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CITY = '{"city": "Köln 🌧", "days": [1, {"of": null}]}'
WEATHER = f'<tool_call>\n{{"name": "weather", "arguments": {CITY}}}\n</tool_call>'
TRICKY = r'{"text": "a } b ] \" c </tool_call> \\", "u": "\u00fc\ud83c\udf27"}'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("Hello, <b>you</b>", ["Hello, <b>you</b>"], id="no call"),
        pytest.param("", [], id="nothing"),
        pytest.param(" \n", [" \n"], id="white space alone"),
        pytest.param(NOW, [("now", "{}")], id="empty arguments"),
        pytest.param(WEATHER, [("weather", CITY)], id="nested arguments are as the model wrote them"),
        pytest.param(f"{WEATHER}\n{NOW}", [("weather", CITY), ("now", "{}")], id="two calls, a line break between"),
        pytest.param(NOW + NOW, [("now", "{}"), ("now", "{}")], id="two calls, nothing between"),
        pytest.param(f"\n\n{NOW}\n", [("now", "{}")], id="white space around a call"),
        pytest.param(f"Let me see.\n{NOW}", ["Let me see.\n", ("now", "{}")], id="content before"),
        pytest.param(f"A{NOW} B {WEATHER} C ", ["A", ("now", "{}"), " B ", ("weather", CITY), " C "], id="all around"),
        pytest.param(
            f'<tool_call>{{"name":"now","arguments":{TRICKY}}}</tool_call>', [("now", TRICKY)], id="quotes and braces"
        ),
        pytest.param(
            '<tool_call>{"id": 1.5e3, "arguments": {"a": 1}, "x": [{}], "name": "now"}</tool_call>',
            [("now", '{"a": 1}')],
            id="arguments before the name, and other keys",
        ),
        pytest.param(
            '<tool_call>{"name": "now", "arguments": {}, "id": "}", "ok": true}</tool_call>.',
            [("now", "{}"), "."],
            id="other keys after the arguments",
        ),
        pytest.param(
            r'<tool_call>{"name": "now", "arguments": "{\"a\": \"\\\"\"}"}</tool_call>',
            [("now", r'{"a": "\""}')],
            id="arguments as a string",
        ),
        pytest.param('<tool_call> { "name" : "now" , "arguments" : {} } </tool_call>', [("now", "{}")], id="spaces"),
        pytest.param(
            '<tool_call>{"name": "now", "arguments": {}, "arguments": {"a": 1}, "name": "rm"}</tool_call>',
            [("now", "{}")],
            id="keys that come again",
        ),
        pytest.param('<tool_call>{"name": "now", "parameters": {}}</tool_call>', [("now", "{}")], id="Llama's word"),
        pytest.param(f"{NOW[:-12]} and more", [("now", "{}"), "\n and more"], id="the end tag is missing"),
    ],
)
def test_calls_and_content_are_told_apart(text: str, parts: list[Part]) -> None:
    assert read_style(Style.HERMES, text) == parts


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<tool_call>", id="a tag alone"),
        pytest.param("<tool_call>now</tool_call>", id="no JSON"),
        pytest.param("<tool_call>[1]</tool_call>", id="no object"),
        pytest.param("<tool_call>{}</tool_call>", id="empty object"),
        pytest.param('<tool_call>{"name": "now"}</tool_call>', id="no arguments"),
        pytest.param('<tool_call>{"arguments": {}}</tool_call>', id="no name"),
        pytest.param('<tool_call>{"name": "", "arguments": {}}</tool_call>', id="empty name"),
        pytest.param('<tool_call>{"name": 5, "arguments": {}}</tool_call>', id="a number for a name"),
        pytest.param('<tool_call>{"name": ["now"], "arguments": {}}</tool_call>', id="an array for a name"),
        pytest.param('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', id="not offered"),
        pytest.param('<tool_call>{"arguments": {}, "name": "rm"}</tool_call>', id="not offered, name last"),
        pytest.param('<tool_call>{"name": "now", "arguments": [1]}</tool_call>', id="arguments are an array"),
        pytest.param('<tool_call>{"name": "now", "arguments": null}</tool_call>', id="arguments are null"),
        pytest.param('<tool_call>{"name": "now", "arguments": "text"}</tool_call>', id="arguments are text"),
        pytest.param('<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>', id="arguments are text of an array"),
        pytest.param('<tool_call>{"name": now, "arguments": {}}</tool_call>', id="name without quotes"),
        pytest.param('<tool_call>{"name" "now", "arguments": {}}</tool_call>', id="no colon"),
        pytest.param('<tool_call>{"name": "now" "arguments": {}}</tool_call>', id="no comma"),
        pytest.param('<tool_call>{name: "now", "arguments": {}}</tool_call>', id="key without quotes"),
        pytest.param('<tool_call>{"arguments": {oops}, "name": "now"}</tool_call>', id="broken before the name"),
        pytest.param('<tool_call>{"arguments": {]}, "name": "now"}</tool_call>', id="crossed before the name"),
        pytest.param(r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>', id="half a character"),
        pytest.param('<tool_call>{"a": ' + "[" * 5000 + "]" * 5000 + "}</tool_call>", id="too deep"),
        pytest.param("\ud800<tool_call>", id="text that UTF-8 cannot hold"),
        pytest.param('<tool_call>{"\ud800', id="a key that UTF-8 cannot hold"),
        pytest.param("</tool_call> <tool_calls> <tool_cal", id="other tags"),
    ],
)
def test_what_is_no_call_stays_content_as_it_was_written(text: str) -> None:
    assert read_style(Style.HERMES, text) == [text]


def test_what_broke_does_not_hide_the_call_after_it() -> None:
    text = f'<tool_call>{{"name": "now", {WEATHER}'
    assert read_style(Style.HERMES, text) == ['<tool_call>{"name": "now", ', ("weather", CITY)]
    assert read_style(Style.HERMES, "<tool_call>" + NOW) == ["<tool_call>", ("now", "{}")]


@pytest.mark.parametrize(
    ("inside", "arguments", "rest"),
    [
        ('{"a": ]}}', '{"a": ', "]}}</tool_call>"),
        ('{"a": [1}}', '{"a": [1', "}}</tool_call>"),
        ("{oops}}", "{oops}", ""),
        ("{}, 5}", "{}", ", 5}</tool_call>"),
        ('{}, "id": oops}', "{}", ', "id": oops}</tool_call>'),
        (r'{}, "id": "\ud800"}', "{}", r', "id": "\ud800"}</tool_call>'),
    ],
    ids=["closes what is not open", "crossed", "no JSON between braces", "no key", "no value", "half a character"],
)
def test_a_call_that_breaks_after_its_begin_stays_as_it_is(inside: str, arguments: str, rest: str) -> None:
    parts = read_style(Style.HERMES, f'<tool_call>{{"name": "now", "arguments": {inside}</tool_call>')
    assert parts == [("now", arguments), *([rest] if rest else [])]


def test_a_call_that_is_cut_off_is_content_before_its_arguments_and_a_call_from_there_on() -> None:
    begin = WEATHER.index(CITY)
    for length in range(len(WEATHER) + 1):
        text = WEATHER[:length]
        arguments = CITY[: max(0, length - begin)]
        expected: list[Part] = [("weather", arguments)] if arguments else [text] if text else []
        assert read_style(Style.HERMES, text) == expected, text


def test_text_is_held_back_only_while_it_may_become_a_tag() -> None:
    reader = call_reader(Style.HERMES, TOOLS)
    assert reader.read("1 < 2 and <tool") == [Content("1 < 2 and ")]
    assert reader.read("box> <") == [Content("<toolbox> ")]
    assert reader.read("tool_call>") == []
    assert reader.read("x") == [Content("<tool_call>x")]
    assert reader.read("<") == []
    assert reader.end() == [Content("<")]


def test_arguments_stream_as_they_come() -> None:
    reader = call_reader(Style.HERMES, TOOLS)
    assert reader.read('<tool_call>{"name": "now", "arguments": ') == []
    begun, first = reader.read('{"a')
    assert isinstance(begun, CallBegun)
    assert (begun.index, begun.name, begun.id[:5], len(begun.id)) == (0, "now", "call_", 29)
    assert first == Arguments(0, '{"a')
    assert reader.read('": "\\') == [Arguments(0, '": "\\')]
    assert reader.read('" }') == [Arguments(0, '" }')]
    assert reader.read('"') == [Arguments(0, '"')]
    assert reader.read("}}</tool_call>") == [Arguments(0, "}")]
    assert reader.end() == []


def test_a_name_that_is_not_offered_is_content_at_once_and_any_passes_where_nothing_is_said() -> None:
    reader = call_reader(Style.HERMES, TOOLS)
    assert reader.read('<tool_call>{"name": "rm"') == [Content('<tool_call>{"name": "rm"')]
    (begun, _) = call_reader(Style.HERMES).read('<tool_call>{"name": "rm", "arguments": {')
    assert isinstance(begun, CallBegun)
    assert call_reader(Style.HERMES, {}).read(NOW) == [Content(NOW)]
    for wrong in ('<tool_call>{"name": 5,', '<tool_call>{"name": ""'):
        assert call_reader(Style.HERMES).read(wrong) == [Content(wrong)]


def test_a_call_beyond_the_most_that_there_may_be_is_content() -> None:
    begun, arguments, content = call_reader(Style.HERMES, TOOLS, max_calls=1).read(f"{NOW}\n{WEATHER}")
    assert isinstance(begun, CallBegun)
    assert (arguments, content) == (Arguments(0, "{}"), Content(f"\n{WEATHER}"))
