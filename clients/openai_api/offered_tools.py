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
_ALLOWED = "allowed_tools"


class OfferedTools(NamedTuple):
    """The tools of a body.

    Attributes:
        told: what the model is told of; empty where it shall not call.
        callable: the tools that a call may name.
        must_call: the answer is calls, one or more.
        only: name of the one tool that is called, once; "": any.
        allowed: names of those that may be called, where the choice lists them.
    """

    told: list[dict[str, Any]]
    callable: CallableTools
    must_call: bool = False
    only: str = ""
    allowed: tuple[str, ...] = ()

    @property
    def strict(self) -> frozenset[str]:
        """Return the names of the tools whose arguments must fit their schemas."""
        functions = (tool["function"] for tool in self.told)
        return frozenset(
            function["name"] for function in functions if function.get("strict") and function["name"] in self.callable
        )

    @property
    def forced(self) -> Any:
        """Return the choice as chats have it, where the answer must be calls; None: it need not."""
        if not self.must_call:
            return None
        if self.allowed:
            return {"type": _ALLOWED, _ALLOWED: {"mode": "required", "tools": [_named(name) for name in self.allowed]}}
        return _named(self.only) if self.only else "required"

    def max_calls(self, *, are_parallel: bool | None) -> int | None:
        """Return how many calls an answer may have; None: any number. Args: `are_parallel`, as the body says."""
        return 1 if self.only or are_parallel is False else None

    def guide_param(self, format_type: str, *, param: str) -> str:
        """Return the name of the body's field that a guide is made of. Args: `param`: that of the format."""
        if self.must_call:
            return PARAM
        return "tools" if self.strict and format_type == "text" else param

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
    if isinstance(choice, dict) and choice.get("type") == _ALLOWED:
        must_call, allowed = _allowed(choice, names)
        # Who must call is held to these, and knows of all, as the KV cache does; who need not is told of no others.
        told = offered if must_call else [tool for tool in offered if tool["function"]["name"] in allowed]
        return OfferedTools(told, callable_tools(offered, allowed), must_call=must_call, allowed=allowed)
    if isinstance(choice, dict):
        only = _only(choice, names)
        return OfferedTools(offered, callable_tools(offered, (only,)), must_call=True, only=only)
    return OfferedTools(offered, callable_tools(offered), must_call=choice == "required")


def _only(choice: dict[str, Any], names: list[str]) -> str:
    """Return the name of the tool in a choice.

    Raises:
        ApiError: the choice is of another kind, or the tool is not offered.
    """
    name = _name(choice)
    if name is None:
        raise ApiError(
            f"tool_choice must be none, auto, required, the name of a function or allowed_tools, got {shown(choice)}",
            code="unsupported_parameter",
            param=PARAM,
        )
    _check_is_offered(name, names)
    return name


def _allowed(choice: dict[str, Any], names: list[str]) -> tuple[bool, tuple[str, ...]]:
    """Return whether an answer must call, and which tools it may: in chats they are in an object of their own.

    Raises:
        ApiError: there is no mode and no list of functions, or a tool is not offered.
    """
    said = choice.get(_ALLOWED, choice)
    mode, tools = (said.get("mode"), said.get("tools")) if isinstance(said, dict) else (None, None)
    if mode not in ("auto", "required"):
        raise ApiError(f"{PARAM}: the mode of allowed_tools must be auto or required, got {shown(mode)}",
                       code="invalid_value", param=PARAM)  # fmt: skip
    found = [_name(tool) for tool in tools] if isinstance(tools, list) else []
    allowed = tuple(dict.fromkeys(name for name in found if name is not None))
    if not found or None in found:
        raise ApiError(f"{PARAM}: the tools of allowed_tools must be functions, one or more, got {shown(tools)}",
                       code="invalid_value", param=PARAM)  # fmt: skip
    for name in allowed:
        _check_is_offered(name, names)
    return mode == "required", allowed


def _name(tool: object) -> str | None:
    """Return the name of a function: in chats it is in an object `function`, in responses beside the type."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return None
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _check_is_offered(name: str, names: list[str]) -> None:
    if name not in names:
        raise ApiError(f"tool_choice ({shown(name)}) is none of the tools: {', '.join(names)}", code="invalid_value",
                       param=PARAM)  # fmt: skip
