# SPDX-License-Identifier: Apache-2.0
"""The value of one old setting, read as upstream read it: what cannot be read counts as not set, and says so."""

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
        """Somebody filled it."""
        return bool(self.text) and not self.is_unfilled

    @property
    def is_unfilled(self) -> bool:
        """A placeholder is still there."""
        return PLACEHOLDER.search(self.text) is not None

    def read(self, convert: Callable[[str], T]) -> T | None:
        """The value as a type; None where it is not set or not such a value, for which upstream takes its default."""
        if not self.is_set:
            return None
        try:
            return convert(self.text)
        except ValueError:
            return None

    @property
    def note(self) -> str:
        """What is to be said of the text itself."""
        if self.is_unfilled:
            return UNFILLED
        return "" if self.text else "empty"


def boolean(text: str) -> bool:
    """As both of upstream's backends read it."""
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError(text)


def integer(text: str) -> int:
    """A whole number."""
    return int(text.strip())


def integers(text: str) -> list[int]:
    """Numbers between commas."""
    return [int(part) for part in text.split(",")]


def fraction(text: str) -> float:
    """A number of 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError(text)
    return number


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def convert(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return convert


def absolute(path: str) -> str:
    """A path as the deployment holds it; a relative one was meant from where tritonserver was started."""
    return str(Path(path).expanduser().absolute())


def tree(text: str) -> list[list[int]]:
    """A tree of drafts: ``{0, 0}, {1}`` or ``[[0, 0], [1]]``."""
    paths = [[int(part) for part in match.split(",") if part.strip()] for match in _TREE_PATH.findall(text)]
    if not paths:
        raise ValueError(text)
    return paths
