# SPDX-License-Identifier: Apache-2.0
"""The tools that a body offers, and what may be asked of their use."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from clients.openai_api.api_error import ApiError, shown
from clients.openai_api.tool_calls.callable_tools import CallableTools, callable_tools
from ensemble_configs.chat.chat_messages import Tool

ToolChoice = Literal["none", "auto", "required"] | dict[str, Any]
PARAM = "tool_choice"


class OfferedTools(NamedTuple):
    """The tools of a body.

    Attributes:
        told: what the model is told of; empty where it shall not call.
        callable: the tools that a call may name.
        must_call: the answer is calls, one or more.
        only: name of the one tool that is called, once; "": any.
    """

    told: list[dict[str, Any]]
    callable: CallableTools
    must_call: bool = False
    only: str = ""

    @property
    def forced(self) -> Any:
        """Return the choice as chats have it, where the answer must be calls; None: it need not."""
        if not self.must_call:
            return None
        return {"type": "function", "function": {"name": self.only}} if self.only else "required"

    def max_calls(self, *, are_parallel: bool | None) -> int | None:
        """Return how many calls an answer may have; None: any number. Args: `are_parallel`, as the body says."""
        return 1 if self.only or are_parallel is False else None

    def check_format(self, format_type: str, *, param: str) -> None:
        """Check that an answer which must be calls is not asked to be something else, too.

        Raises:
            ApiError: it is.
        """
        if self.must_call and format_type != "text":
            raise ApiError(
                f"{PARAM} contradicts {param}: calls of tools have a form of their own; leave either out",
                code="invalid_value",
                param=PARAM,
            )


def offered_tools(tools: Iterable[Tool], choice: ToolChoice | None) -> OfferedTools:
    """Return the tools of a body.

    Raises:
        ApiError: two tools have one name, or the choice is none, or names a tool that is not offered.
    """
    offered = [msgspec.to_builtins(tool) for tool in tools]
    names = [tool["function"]["name"] for tool in offered]
    for number, name in enumerate(names):
        if name in names[:number]:
            param = f"tools[{number}].function.name"
            raise ApiError(f"{param} ({name!r}) is that of another tool; each needs a name of its own",
                           code="invalid_value", param=param)  # fmt: skip
    if choice is not None and not offered:
        raise ApiError("tool_choice is for tools; send these, or leave it out", code="invalid_value",
                       param=PARAM)  # fmt: skip
    if choice == "none":
        return OfferedTools([], {})
    if isinstance(choice, dict):
        only = _only(choice, names)
        return OfferedTools(offered, callable_tools(offered, only), must_call=True, only=only)
    return OfferedTools(offered, callable_tools(offered), must_call=choice == "required")


def _only(choice: dict[str, Any], names: list[str]) -> str:
    """Return the name of the tool in a choice: in chats it is in an object `function`, in responses beside the type.

    Raises:
        ApiError: the choice is of another kind, or the tool is not offered.
    """
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise ApiError(
            f"tool_choice must be none, auto, required or the name of a function, got {shown(choice)}",
            code="unsupported_parameter",
            param=PARAM,
        )
    if name not in names:
        raise ApiError(f"tool_choice ({shown(name)}) is none of the tools: {', '.join(names)}", code="invalid_value",
                       param=PARAM)  # fmt: skip
    return name
