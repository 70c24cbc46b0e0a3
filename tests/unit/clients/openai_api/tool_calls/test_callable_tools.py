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
    ("allowed", "names"),
    [((), ["now", "weather", "wait"]), (("weather",), ["weather"]), (("wait", "now"), ["now", "wait"]), (("rm",), [])],
    ids=["any", "named", "two", "named and not there"],
)
def test_tools_that_are_named_are_the_only_ones_that_may_be_called(allowed: tuple[str, ...], names: list[str]) -> None:
    assert list(callable_tools(TOOLS, allowed)) == names


def test_each_tool_has_the_schema_of_its_parameters() -> None:
    assert callable_tools(TOOLS) == {"now": {}, "weather": SCHEMA, "wait": {}}
