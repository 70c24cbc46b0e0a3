# SPDX-License-Identifier: Apache-2.0
"""A wrapper with nothing overridden is the engine inside, in every member that the seam has."""

import inspect
from types import FunctionType
from typing import Any

import pytest

from serving.engines.seam.base import Engine
from serving.engines.seam.wrapped_engine import WrappedEngine

MEMBERS = [name for name in {**vars(Engine), **Engine.__annotations__} if not name.startswith("_")]


class Inside:
    """An engine that has every member it is asked for, and notes what each is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def called(*args: Any) -> str:
            self.calls.append((name, *args))
            return f"returned by {name}"

        return called if isinstance(vars(Engine).get(name), FunctionType) else f"value of {name}"


def test_the_seam_has_the_members_that_are_tested_below() -> None:
    assert {"info", "add", "cancel", "step", "has_work", "stats", "close"} < set(MEMBERS)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_wrapper_passes_every_member_of_the_seam_through(name: str) -> None:
    inside: Any = Inside()
    member = getattr(WrappedEngine(inside), name)
    if not callable(member):
        assert member == f"value of {name}"
        return
    args = [f"for {parameter}" for parameter in inspect.signature(member).parameters]
    returned = member(*args)
    assert inside.calls == [(name, *args)]
    if inspect.signature(member).return_annotation is not None:
        assert returned == f"returned by {name}"


def test_a_wrapper_may_say_that_it_is_something_else() -> None:
    inside: Any = Inside()
    told: Any = "another info"
    assert WrappedEngine(inside, told).info == told
