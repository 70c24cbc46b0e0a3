# SPDX-License-Identifier: Apache-2.0
"""Every error says its code, its facts and its sentence in one line of text that a program can read."""

import re

import pytest

from trireme.base import errors
from trireme.base.errors import QueueFull, RequestError, ServerError, ServingError, Unavailable, format_token


def every_error() -> list[type[ServingError]]:
    found, todo = [], [ServingError]
    while todo:
        found.append(todo.pop())
        todo += found[-1].__subclasses__()
    return [error for error in found if error.__module__ == errors.__name__]


def test_text_is_token_and_sentence() -> None:
    error = RequestError("top_p must be 0 to 1; got 1.5", field="top_p", value=1.5)
    assert str(error) == "[INVALID_ARG field=top_p value=1.5] top_p must be 0 to 1; got 1.5"
    assert error.message == "top_p must be 0 to 1; got 1.5"
    assert error.facts == {"field": "top_p", "value": 1.5}


def test_facts_that_are_none_are_left_out_and_those_that_are_nothing_are_not() -> None:
    assert str(ServerError("no", a=None, b=0, c="", d=False)) == '[INTERNAL b=0 c="" d=False] no'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("/a/path-1.json", "/a/path-1.json"),
        ("終", "終"),
        (-1.5, "-1.5"),
        ("two words", '"two words"'),
        ("a]b", '"a]b"'),
        ("[", '"["'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        ("line\nbreak", r'"line\nbreak"'),
        ("", '""'),
    ],
)
def test_a_value_that_would_break_the_token_is_quoted(value: object, shown: str) -> None:
    assert format_token("X", {"key": value}) == f"[X key={shown}]"


def test_a_token_is_one_line_whatever_is_in_it() -> None:
    assert "\n" not in format_token("X", {"a": "\n", "b": "\r\n"})


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^[ │├└─]*(\w+) +([A-Z_]+)(?: |$)", errors.__doc__, re.MULTILINE)
    assert dict(drawn) == {error.__name__: error.code for error in every_error()}


def test_whoever_catches_the_general_error_catches_the_special_one() -> None:
    with pytest.raises(Unavailable):
        raise QueueFull("full", retry_after_ms=5)
    with pytest.raises(ServerError):
        raise Unavailable("later")
    assert not issubclass(RequestError, ServerError)
