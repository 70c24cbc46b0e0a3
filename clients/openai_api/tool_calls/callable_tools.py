# SPDX-License-Identifier: Apache-2.0
"""The tools of a request that a call may name, by `tools` and `tool_choice`."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

CallableTools = Mapping[str, Mapping[str, object]]  # tools by name: the JSON schema of the parameters


def callable_tools(tools: Iterable[Mapping[str, Any]], names: Collection[str] = ()) -> CallableTools:
    """Return the tools that a call may name, each with the schema of its parameters.

    A reader makes content of a call that names anything else: a client looks the name up among its own tools, and JSON
    that is an answer and only looks like a call has such a name too. Nothing but the name is checked. That there is
    a call at all (`required`, a named tool), and that arguments fit their schema (`strict`), cannot be had by reading,
    but by a guide.

    Args:
        tools: in OpenAI's form, checked before: `{"type": "function", "function": {"name": ..., "parameters": ...}}`.
        names: those of the tools that may be called; none: all may be.
    """
    functions = [tool["function"] for tool in tools]
    return {
        function["name"]: function.get("parameters") or {}
        for function in functions
        if not names or function["name"] in names
    }
