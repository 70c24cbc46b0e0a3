# SPDX-License-Identifier: Apache-2.0
"""Calls of Llama, which are the whole answer as JSON."""

import pytest
from joined_deltas import TOOLS, Part, read_style

from clients.openai_api.tool_calls.deltas import Content
from clients.openai_api.tool_calls.reader_choice import Style, call_reader

NOW = '{"name": "now", "parameters": {}}'
ARGUMENTS = r'{"q": "a {b} \"; c\"", "n": {"m": [[]]}}'
SEARCH = f'{{"name": "search_web", "parameters": {ARGUMENTS}}}'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param(NOW, [("now", "{}")], id="empty arguments"),
        pytest.param(SEARCH, [("search_web", ARGUMENTS)], id="nested arguments and a ; in a string"),
        pytest.param(f"\n {NOW} \n", [("now", "{}")], id="white space around"),
        pytest.param(f"<|python_tag|>{NOW}", [("now", "{}")], id="tag before"),
        pytest.param(f" <|python_tag|> {NOW}", [("now", "{}")], id="tag and white space"),
        pytest.param(f"I look.<|python_tag|>{NOW}", ["I look.", ("now", "{}")], id="content and a tag"),
        pytest.param(f"{NOW};{SEARCH}", [("now", "{}"), ("search_web", ARGUMENTS)], id="two with ;"),
        pytest.param(f"{NOW} ; {NOW};\n{NOW}", [("now", "{}")] * 3, id="three, white space around ;"),
        pytest.param(f"{NOW}\n{NOW}", [("now", "{}")] * 2, id="two with a line break"),
        pytest.param(f"<|python_tag|>{NOW}; <|python_tag|> {NOW}", [("now", "{}")] * 2, id="two with tags"),
        pytest.param('{"name": "now", "arguments": {}}', [("now", "{}")], id="OpenAI's word"),
        pytest.param(f"{NOW} So it is.", [("now", "{}"), " So it is."], id="text after a call"),
        pytest.param(f"{NOW}; yes", [("now", "{}"), "; yes"], id="a separator and text after a call"),
        pytest.param(f'{NOW}; {{"a": 1}}', [("now", "{}"), '; {"a": 1}'], id="JSON after a call"),
        pytest.param(f"{NOW};", [("now", "{}"), ";"], id="a separator and nothing after it"),
    ],
)
def test_an_answer_that_is_json_becomes_calls(text: str, parts: list[Part]) -> None:
    assert read_style(Style.LLAMA, text) == parts


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("Hello {you}", id="text"),
        pytest.param(f"For example {NOW}", id="JSON further on, without a tag"),
        pytest.param('{"name": "Ada", "parameters": {}}', id="JSON with a name that is no tool"),
        pytest.param('{"name": "now"}', id="no arguments"),
        pytest.param('{"city": "Bonn", "rain": [1, 2.5, true]}', id="data"),
        pytest.param(f"[{NOW}]", id="an array"),
        pytest.param("<|python_tag|>search.call(query='x')", id="a Python call"),
        pytest.param("<|python_ta", id="half a tag"),
        pytest.param("<|python_tag|>", id="a tag alone"),
        pytest.param('{"name": "now", "parameters": ', id="cut off before the arguments"),
        pytest.param("; " + NOW, id="a separator first"),
    ],
)
def test_what_is_no_call_stays_content_as_it_was_written(text: str) -> None:
    assert read_style(Style.LLAMA, text) == ([text] if text else [])


def test_an_answer_that_is_cut_off_is_content_before_its_arguments_and_a_call_from_there_on() -> None:
    begin = SEARCH.index(ARGUMENTS)
    for length in range(1, len(SEARCH) + 1):
        arguments = ARGUMENTS[: max(0, length - begin)]
        expected: list[Part] = [("search_web", arguments)] if arguments else [SEARCH[:length]]
        assert read_style(Style.LLAMA, SEARCH[:length]) == expected


def test_text_that_does_not_begin_with_a_brace_is_not_held_back() -> None:
    reader = call_reader(Style.LLAMA, TOOLS)
    assert reader.read(" \n") == []
    assert reader.read("The set ") == [Content(" \nThe set ")]
    assert reader.read("{1} <") == [Content("{1} ")]
