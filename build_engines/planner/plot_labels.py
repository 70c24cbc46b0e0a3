# SPDX-License-Identifier: Apache-2.0
"""Labels of points in a picture, placed where they cover no other label and as little of the lines as can be."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

_HALO = [withStroke(linewidth=2, foreground="white")]  # lines below a label do not run through its letters
_MARKER = 6  # half of a point's width in pixels
_GAP = 4  # pixels between two labels


class Place(NamedTuple):
    """A place beside a point: points to the right and up of it, and where the text is anchored."""

    right: float
    up: float
    side: str
    height: str


_PLACES = (
    Place(6, 5, "left", "bottom"), Place(0, 9, "center", "bottom"), Place(-6, -5, "right", "top"),
    Place(7, -3, "left", "top"), Place(-6, 5, "right", "bottom"), Place(0, -9, "center", "top"),
    Place(16, 14, "left", "bottom"), Place(-16, -14, "right", "top"), Place(0, 20, "center", "bottom"),
    Place(0, -20, "center", "top"),
)  # fmt: skip
_NEAR = 6  # so many of them are next to the point


class Label(NamedTuple):
    """A point in data's units, its text and color; an optional one is written only where it covers nothing."""

    xy: tuple[float, float]
    text: str
    color: str
    is_optional: bool = False


def place_labels(axes: Axes, labels: list[Label], lines: tuple[tuple[float, float], ...] = ()) -> list[Bbox]:
    """Write the labels in their order, and return their boxes; one that finds no free place is left out.

    Args:
        axes: where to; its figure was drawn, and does not change any more.
        labels: the labels, the most important first.
        lines: points in data's units that are better left visible.
    """
    canvas = axes.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    frame, legend = axes.get_window_extent(renderer), axes.get_legend()
    taken = [] if legend is None else [legend.get_window_extent(renderer)]
    visible = [_around(axes, xy) for xy in (*lines, *(label.xy for label in labels))]
    for label in labels:
        best = _best_place(axes, label, renderer, frame, taken, visible)
        if best is not None:
            taken.append(_written(axes, label, best).get_window_extent(renderer))
    return taken if legend is None else taken[1:]


def _best_place(
    axes: Axes, label: Label, renderer: RendererBase, frame: Bbox, taken: list[Bbox], visible: list[Bbox]
) -> Place | None:
    """Return the free place that covers least, or None."""
    covered: dict[Place, int] = {}
    for place in _PLACES[:_NEAR] if label.is_optional else _PLACES:
        text = _written(axes, label, place)
        box = text.get_window_extent(renderer).padded(_GAP)
        text.remove()
        is_inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        if is_inside and not any(box.overlaps(other) for other in taken):
            covered[place] = sum(box.overlaps(other) for other in visible)
    if label.is_optional:
        covered = {place: number for place, number in covered.items() if not number}
    return min(covered, key=lambda place: covered[place]) if covered else None


def _written(axes: Axes, label: Label, place: Place) -> Annotation:
    return axes.annotate(
        label.text, label.xy, (place.right, place.up), textcoords="offset points", ha=place.side, va=place.height,
        fontsize=7.5, color=label.color, path_effects=_HALO, zorder=5,
    )  # fmt: skip


def _around(axes: Axes, xy: tuple[float, float]) -> Bbox:
    x, y = axes.transData.transform(xy)
    return Bbox.from_extents(x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER)
