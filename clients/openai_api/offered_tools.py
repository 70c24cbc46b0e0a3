# SPDX-License-Identifier: Apache-2.0
"""The tools that a body offers: the fields of a request, and what may be asked of their use."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from clients.openai_api.api_error import ApiError, shown
from ensemble_configs.chat.chat_messages import Tool

ToolChoice = Literal["none", "auto", "required"] | dict[str, Any]
_AS_THE_MODEL_LIKES = "none", "auto"


def tools_of(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> dict[str, object]:
    """Return the fields of a request that offer tools; none where the model shall not call.

    Raises:
        ApiError: the choice is one that no engine here can be held to, or there is nothing to choose from.
    """
    if choice is not None and choice not in _AS_THE_MODEL_LIKES:
        raise ApiError(
            f"tool_choice must be none or auto, got {shown(choice)}: no model here can be made to call; offer the one "
            "tool, and say in a message that it is to be called",
            code="unsupported_parameter",
            param="tool_choice",
        )
    if choice is not None and not tools:
        raise ApiError("tool_choice is for tools; send these, or leave it out", code="invalid_value",
                       param="tool_choice")  # fmt: skip
    if not tools or choice == "none":
        return {}
    return {"tools": [msgspec.to_builtins(tool) for tool in tools]}
