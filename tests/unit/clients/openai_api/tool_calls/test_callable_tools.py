# SPDX-License-Identifier: Apache-2.0
"""The tools that a call may name."""

import pytest

from clients.openai_api.tool_calls.callable_tools import callable_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "weather", "description": "Ask.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wait", "parameters": None}},
]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["now", "weather", "wait"]),
        ("auto", ["now", "weather", "wait"]),
        ("required", ["now", "weather", "wait"]),
        ("none", []),
        ({"type": "function", "function": {"name": "weather"}}, ["weather"]),
        ({"type": "function", "function": {"name": "rm"}}, []),
    ],
    ids=["not given", "auto", "required", "none", "named", "named and not there"],
)
def test_a_choice_offers_some_of_the_tools(choice: str | dict[str, object] | None, names: list[str]) -> None:
    assert list(callable_tools(TOOLS, choice)) == names


def test_each_tool_has_the_schema_of_its_parameters() -> None:
    assert callable_tools(TOOLS) == {"now": {}, "weather": SCHEMA, "wait": {}}
