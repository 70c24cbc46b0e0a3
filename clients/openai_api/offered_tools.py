# SPDX-License-Identifier: Apache-2.0
"""The tools that a body offers, and what may be asked of their use."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from clients.openai_api.api_error import ApiError, shown
from ensemble_configs.chat.chat_messages import Tool

ToolChoice = Literal["none", "auto", "required"] | dict[str, Any]
_AS_THE_MODEL_LIKES = "none", "auto"


def offered_tools(tools: Iterable[Tool], choice: ToolChoice | None) -> list[dict[str, Any]]:
    """Return the tools that the model is told of; none where it shall not call.

    Raises:
        ApiError: two tools have one name, the choice is one that no model here can be held to, or there is nothing to
            choose from.
    """
    offered = [msgspec.to_builtins(tool) for tool in tools]
    names = [tool["function"]["name"] for tool in offered]
    for number, name in enumerate(names):
        if name in names[:number]:
            param = f"tools[{number}].function.name"
            raise ApiError(f"{param} ({name!r}) is that of another tool; each needs a name of its own",
                           code="invalid_value", param=param)  # fmt: skip
    if choice is not None and choice not in _AS_THE_MODEL_LIKES:
        raise ApiError(
            f"tool_choice must be none or auto, got {shown(choice)}: no model here can be made to call; offer the one "
            "tool, and say in a message that it is to be called",
            code="unsupported_parameter",
            param="tool_choice",
        )
    if choice is not None and not offered:
        raise ApiError("tool_choice is for tools; send these, or leave it out", code="invalid_value",
                       param="tool_choice")  # fmt: skip
    return [] if choice == "none" else offered
