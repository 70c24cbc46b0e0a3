# SPDX-License-Identifier: Apache-2.0
"""Calls of Mistral after `[TOOL_CALLS]`: an array, or names with their arguments."""

import pytest
from joined_deltas import TOOLS, Part, read_style

from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content
from clients.openai_api.tool_calls.reader_choice import Style, call_reader

NOW = '{"name": "now", "arguments": {}}'
ARGUMENTS = r'{"q": "] [TOOL_CALLS] \" }", "n": [{}]}'
SEARCH = f'{{"name": "search_web", "arguments": {ARGUMENTS}, "id": "abcDEF123"}}'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param(f"[TOOL_CALLS] [{NOW}]", [("now", "{}")], id="array of one"),
        pytest.param(f"[TOOL_CALLS][{SEARCH}]", [("search_web", ARGUMENTS)], id="with an id, without a space"),
        pytest.param(
            f"[TOOL_CALLS] [ {NOW} , {SEARCH} ]", [("now", "{}"), ("search_web", ARGUMENTS)], id="array of two"
        ),
        pytest.param(f"Hi[TOOL_CALLS] [{NOW}] Bye", ["Hi", ("now", "{}"), " Bye"], id="content around an array"),
        pytest.param(f"[TOOL_CALLS] [{NOW}", [("now", "{}")], id="array without its end"),
        pytest.param(f"[TOOL_CALLS] [{NOW} and", [("now", "{}"), " and"], id="array that goes on as text"),
        pytest.param(f"[TOOL_CALLS] [{NOW} {NOW}]", [("now", "{}"), f" {NOW}]"], id="array without its comma"),
        pytest.param(f"[TOOL_CALLS] [{NOW}, 5]", [("now", "{}"), ", 5]"], id="array with something else"),
        pytest.param(
            f'[TOOL_CALLS] [{NOW}, {{"name": "n', [("now", "{}"), ', {"name": "n'], id="array cut off in the second"
        ),
        pytest.param("[TOOL_CALLS]now[ARGS]{}", [("now", "{}")], id="name"),
        pytest.param("[TOOL_CALLS] now[ARGS] {}", [("now", "{}")], id="name and spaces"),
        pytest.param("[TOOL_CALLS]now{}", [("now", "{}")], id="name without [ARGS]"),
        pytest.param("[TOOL_CALLS] now [ARGS] {}", ["[TOOL_CALLS] now [ARGS] {}"], id="name with a space after it"),
        pytest.param(
            f"[TOOL_CALLS]search_web[CALL_ID]abcDEF123[ARGS]{ARGUMENTS}", [("search_web", ARGUMENTS)], id="name and id"
        ),
        pytest.param(
            f"Hi[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]search_web[ARGS]{ARGUMENTS} Bye",
            ["Hi", ("now", "{}"), ("search_web", ARGUMENTS), " Bye"],
            id="two names and content around",
        ),
        pytest.param('[TOOL_CALLS]now[ARGS]{"a": ]}', [("now", '{"a": '), "]}"], id="arguments that break"),
    ],
)
def test_calls_and_content_are_told_apart(text: str, parts: list[Part]) -> None:
    assert read_style(Style.MISTRAL, text) == parts


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(f"[{NOW}]", id="an array without the marker"),
        pytest.param("[TOOL_CALLS]", id="the marker alone"),
        pytest.param("[TOOL_CALLS] []", id="an empty array"),
        pytest.param("[TOOL_CALLS] [1]", id="an array of something else"),
        pytest.param("[TOOL_CALLS] none", id="a name alone"),
        pytest.param("[TOOL_CALLS]now[ARGS]", id="no arguments"),
        pytest.param("[TOOL_CALLS]now[ARGS][1]", id="arguments are an array"),
        pytest.param("[TOOL_CALLS]rm[ARGS]{}", id="not offered"),
        pytest.param('[TOOL_CALLS][{"name": "rm", "arguments": {}}]', id="not offered, in an array"),
        pytest.param("[TOOL_CALLS]now[CALL_ID]!{}", id="no id"),
        pytest.param("[TOOL_RESULTS]now{}", id="another marker"),
    ],
)
def test_what_is_no_call_stays_content_as_it_was_written(text: str) -> None:
    assert read_style(Style.MISTRAL, text) == ([text] if text else [])


@pytest.mark.parametrize(
    "head", ['[TOOL_CALLS] [{"name": "search_web", "arguments": ', "[TOOL_CALLS]search_web[CALL_ID]abcDEF123[ARGS]"]
)
def test_an_answer_that_is_cut_off_is_content_before_its_arguments_and_a_call_from_there_on(head: str) -> None:
    text = head + ARGUMENTS
    for length in range(1, len(text) + 1):
        arguments = ARGUMENTS[: max(0, length - len(head))]
        expected: list[Part] = [("search_web", arguments)] if arguments else [text[:length]]
        assert read_style(Style.MISTRAL, text[:length]) == expected


def test_ids_are_what_the_models_own_templates_take_back() -> None:
    (begun, first) = call_reader(Style.MISTRAL, TOOLS).read("[TOOL_CALLS]now[ARGS]{")
    assert isinstance(begun, CallBegun)
    assert first == Arguments(0, "{")
    assert len(begun.id) == 9
    assert begun.id.isalnum()


def test_text_is_held_back_only_while_it_may_become_the_marker() -> None:
    reader = call_reader(Style.MISTRAL, TOOLS)
    assert reader.read("see [1] and [TOOL") == [Content("see [1] and ")]
    assert reader.read("S] [") == [Content("[TOOLS] ")]
    assert reader.end() == [Content("[")]
