# SPDX-License-Identifier: Apache-2.0
"""The check that the ranks of a plan together hold the whole model, and what they hold more than once."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, product

from build_engines.checkpoint.weight_table import Role, Weight, weights_of
from build_engines.sharding.shard_plan import ShardPlan
from build_engines.sharding.tensor_pieces import Piece, Range

Box = tuple[Range, ...]  # a range for each axis


@dataclass(frozen=True)
class Copies:
    """A part of a tensor that several ranks hold.

    Attributes:
        role: the purpose that the ranks use it for; that of a tied head differs from its tensor's.
        box: the part, a half-open range for each axis.
        times: how many ranks.
    """

    name: str
    role: Role
    box: Box
    times: int


def check_coverage(plan: ShardPlan) -> list[Copies]:
    """Check that nothing is missing, nothing is beyond a tensor's end, and pieces of several ranks meet without gaps.

    Returns:
        What is held more than once: norms, routers, biases of row-parallel layers, KV heads with more ranks than heads.

    Raises:
        AssertionError: a plan that is wrong, which is ours to mend.
    """
    holders: defaultdict[tuple[str, Role], list[Piece]] = defaultdict(list)
    for rank in range(plan.sizes.world_size):
        for piece in plan.pieces(rank):
            holders[piece.weight.name, piece.weight.role].append(piece)
    copies = []
    for weight in weights_of(plan.model):
        assert (weight.name, weight.role) in holders, f"no rank holds {weight.name}"
    for (name, role), pieces in holders.items():
        boxes = _held_times(pieces[0].weight, pieces)
        held = sum(math.prod(end - start for start, end in box) for box in boxes)
        assert held == pieces[0].weight.size, f"{held} of the {pieces[0].weight.size} numbers of {name} are held"
        copies += [Copies(name, role, box, times) for box, times in boxes.items() if times > 1]
    return copies


def _held_times(weight: Weight, pieces: Iterable[Piece]) -> Counter[Box]:
    """Return the tensor cut at every edge of a piece, and how many pieces hold each box."""
    pieces = list(pieces)
    edges = [
        sorted({edge for piece in pieces for held in piece.ranges(axis) for edge in held} | {0, length})
        for axis, length in enumerate(weight.shape)
    ]
    for axis, length in enumerate(weight.shape):
        assert edges[axis][0] == 0, f"{weight.name} begins before its begin"
        assert edges[axis][-1] == length, f"a piece of {weight.name} goes beyond its end"
    times: Counter[Box] = Counter()
    for piece, number in Counter(pieces).items():
        spans = [_between(piece.ranges(axis), edges[axis]) for axis in range(len(weight.shape))]
        for box in product(*spans):
            times[box] += number
    return times


def _between(ranges: tuple[Range, ...], edges: list[int]) -> list[Range]:
    """Return the ranges cut at the edges; a number that one piece names twice comes twice."""
    return [(start, end) for first, last in ranges for start, end in pairwise(edges) if first <= start and end <= last]
