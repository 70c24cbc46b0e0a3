# SPDX-License-Identifier: Apache-2.0
"""The body that another API is sent: calls that must be made are asked for there by OpenAI's name, without a guide."""

from typing import Any

import pytest

from clients.openai_api.asked import Endpoint
from gateway.answering import asked_by
from gateway.fallback.managed_body import managed_body

FUNCTION = {"name": "weather", "parameters": {"type": "object"}}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("endpoint", "choice", "sent"),
    [
        (Endpoint.CHAT, "required", "required"),
        (Endpoint.CHAT, NAMED, NAMED),
        (Endpoint.RESPONSES, {"type": "function", "name": "weather"}, NAMED),
        (Endpoint.CHAT, "auto", None),
    ],
    ids=["required", "named", "named in a response", "auto"],
)
def test_a_choice_is_that_of_chats(endpoint: Endpoint, choice: Any, sent: Any) -> None:
    tool = {"type": "function", "function": FUNCTION}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    if endpoint is Endpoint.RESPONSES:
        body = {"input": "Hi", "tools": [{"type": "function", **FUNCTION}]}
    there = managed_body(asked_by(endpoint, body | {"tool_choice": choice}), model="theirs", limit_field="max_tokens")
    assert there.get("tool_choice") == sent
    assert there["tools"] == [tool]
    assert "response_format" not in there
