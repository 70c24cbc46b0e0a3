# SPDX-License-Identifier: Apache-2.0
"""The value of one old setting, read as upstream read it.

A value that cannot be read counts as not set, and says so.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from build_engines.migration.import_report import UNFILLED

T = TypeVar("T")

PLACEHOLDER = re.compile(r"\$\{(\w+)\}")

_TRUE, _FALSE = {"true", "1", "t", "y", "yes"}, {"false", "0", "f", "n", "no"}
_TREE_PATH = re.compile(r"[\[{(]([\d\s,]+)[\]})]")


@dataclass(frozen=True)
class Value:
    """A setting's text; "" or a whole placeholder is not set, and upstream takes its default."""

    text: str = ""

    @property
    def is_set(self) -> bool:
        """Return True if the setting was filled in."""
        return bool(self.text) and not self.is_unfilled

    @property
    def is_unfilled(self) -> bool:
        """Return True if a placeholder is still there."""
        return PLACEHOLDER.search(self.text) is not None

    def read(self, convert: Callable[[str], T]) -> T | None:
        """Return the value as a type.

        None: not set, or no such value, for which upstream takes its default.
        """
        if not self.is_set:
            return None
        try:
            return convert(self.text)
        except ValueError:
            return None

    @property
    def note(self) -> str:
        """Return a note on the text itself; empty if there is nothing to say."""
        if self.is_unfilled:
            return UNFILLED
        return "" if self.text else "empty"


def boolean(text: str) -> bool:
    """Return a boolean, read as both of upstream's back ends read it."""
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError(text)


def integer(text: str) -> int:
    """Return a whole number."""
    return int(text.strip())


def integers(text: str) -> list[int]:
    """Return the numbers between commas."""
    return [int(part) for part in text.split(",")]


def fraction(text: str) -> float:
    """Return a number of 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError(text)
    return number


def one_of(*words: str) -> Callable[[str], str]:
    """Return a converter that accepts only the given words."""

    def convert(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return convert


def absolute(path: str) -> str:
    """Return a path as the deployment holds it.

    A relative path was meant from where tritonserver was started.
    """
    return str(Path(path).expanduser().absolute())


def tree(text: str) -> list[list[int]]:
    """Return a tree of drafts from ``{0, 0}, {1}`` or ``[[0, 0], [1]]``."""
    paths = [[int(part) for part in match.split(",") if part.strip()] for match in _TREE_PATH.findall(text)]
    if not paths:
        raise ValueError(text)
    return paths
