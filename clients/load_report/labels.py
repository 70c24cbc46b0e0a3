# SPDX-License-Identifier: Apache-2.0
"""The places of marks' names in a diagram: beside the marks, within the diagram, and none on another."""

from collections.abc import Sequence
from typing import NamedTuple

_CHAR, _LINE = 4.2, 9.0  # of a small letter, in points
_GAP = 4.0
_NUM_LEVELS = 12


class Label(NamedTuple):
    """A name, in points from the lower left corner of the diagram.

    Attributes:
        left, bottom, width: of its box, `_LINE` high.
        text: shortened where it would take more than half of the diagram.
    """

    number: int  # of the mark
    left: float
    bottom: float
    width: float
    text: str

    def meets(self, other: "Label") -> bool:
        """Return whether one label stands on the other."""
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and abs(self.bottom - other.bottom) < _LINE
        )


def place(marks: Sequence[tuple[float, float]], names: Sequence[str], *, width: float, height: float) -> list[Label]:
    """Place the names of marks, those farthest to the left first; a name without room is left out.

    Args:
        marks: in points, as `width` and `height` of the diagram.
    """
    placed: list[Label] = []
    for number in sorted(range(len(marks)), key=lambda one: marks[one]):
        x, y = marks[number]
        text = _shortened(names[number], int((width / 2 - _GAP) / _CHAR))
        length = _CHAR * len(text)
        left = x + _GAP if x < width / 2 else x - _GAP - length
        levels = [
            bottom
            for level in range(_NUM_LEVELS)
            for bottom in (y + _GAP + level * _LINE, y - _GAP - (level + 1) * _LINE)
            if 0 <= bottom <= height - _LINE
        ]
        labels = (Label(number, left, bottom, length, text) for bottom in levels)
        if free := next((label for label in labels if not any(map(label.meets, placed))), None):
            placed.append(free)
    return placed


def _shortened(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"
