# SPDX-License-Identifier: Apache-2.0
"""The blocks of time of one metric: the difference of the arms in each, from which a look tells what requests share.

Shocks that both arms share cancel within a block. Of pairs of blocks side by side, of pairs of such pairs, and so on,
there are the squares of what they differ by: Allan, "Statistics of atomic frequency standards", Proceedings of the IEEE
54(2), 1966. Differences by chance alone have the same squares at each scale; what fades slowly has larger ones at
longer scales. What they say is in `clients.rollout_gate.statistics.fading`.

The blocks are kept one by one, so that a look can take the work out of each difference by what is known then; when
there are too many, neighbours are joined.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from clients.rollout_gate.statistics.mean_test import Floats

MAX_BLOCKS = 32


class Block(NamedTuple):
    """The difference of the arms in a block; arrays [...].

    Attributes:
        difference: of the arms' means, candidate less baseline, without the work that was predicted then.
        weight: n m / (n + m) of the arms' numbers; 0: only one arm has any.
        predicted: difference of the arms' means of that prediction.
        work: [..., features] difference of the arms' means of the work.
    """

    difference: Floats
    weight: Floats
    predicted: Floats
    work: Floats


class Scale(NamedTuple):
    """The pairs of neighbouring blocks of one length: [...] number and sum of squares, as in `Pairs`."""

    num: Floats
    squares: Floats


class Pairs(NamedTuple):
    """The pairs of neighbouring blocks at each scale: [..., scales].

    Attributes:
        num: number of pairs of which both have a difference.
        squares: sum of squares of what the two differ by, each times w v / (w + v) of their weights: without any
            correlation in time its expectation is that of a block's difference times its weight.
    """

    num: Floats
    squares: Floats


@dataclass
class BlockList:
    """The closed blocks, the oldest first.

    Attributes:
        blocks: each is as long as 2^n of those that were closed, n the number of `finer` scales.
        finer: pairs of neighbours that have been joined since, the finest scale first, as they differed then.
    """

    blocks: list[Block] = field(default_factory=list)
    finer: list[Scale] = field(default_factory=list)
    open: list[Block] = field(default_factory=list)  # less than a block of today's length

    def __deepcopy__(self, memo: object) -> "BlockList":
        return BlockList(list(self.blocks), list(self.finer), list(self.open))

    def add(self, block: Block) -> None:
        """Add the next block; where there are too many, join neighbours first."""
        self.open.append(block)
        if len(self.open) < 2 ** len(self.finer):
            return
        blocks = self.open
        for scale in range(len(self.finer)):
            known, new = self.finer[scale], _scale(blocks)
            self.finer[scale] = Scale(known.num + new.num, known.squares + new.squares)
            blocks = _halved(blocks)
        self.blocks += blocks
        self.open = []
        if len(self.blocks) == MAX_BLOCKS:
            self.finer.append(_scale(self.blocks))
            self.blocks = _halved(self.blocks)

    def differences(self, coefficients: Floats | None, slope: Floats) -> tuple[Floats, Floats]:
        """Return the difference and the weight of each block, the shorter ones at the end too: [..., blocks] both.

        Args:
            coefficients: [..., 1 + features + 1] of the work, as they are known now; None: no work was taken out.
            slope: [...] by how much a mean moves when all figures move by 1.
        """
        blocks = self.blocks + self.open
        difference = np.stack([block.difference for block in blocks], axis=-1)
        weight = np.stack([block.weight for block in blocks], axis=-1)
        if coefficients is None:
            return difference, weight
        predicted = np.stack([block.predicted for block in blocks], axis=-1)
        work = np.stack([block.work for block in blocks], axis=-2)
        now = np.einsum("...bi,...i->...b", work, coefficients[..., 1:-1])
        return difference + slope[..., np.newaxis] * (predicted - now), weight

    def pairs(self, difference: Floats, weight: Floats) -> Pairs:
        """Return the pairs of neighbours at each doubling of the time.

        Args:
            difference, weight: of each block, as `differences` returns them.
        """
        scales = list(self.finer)
        difference, weight = difference[..., : len(self.blocks)], weight[..., : len(self.blocks)]
        while difference.shape[-1] > 1:
            scale, difference, weight = _paired(difference, weight)
            scales.append(scale)
        if not scales:
            nothing = np.zeros((*difference.shape[:-1], 0))
            return Pairs(nothing, nothing)
        return Pairs(*(np.stack(each, axis=-1) for each in zip(*scales, strict=True)))


def _halved(blocks: list[Block]) -> list[Block]:
    """Return an even number of blocks, neighbours joined."""
    return [_joined(*blocks[at : at + 2]) for at in range(0, len(blocks), 2)]


def _joined(one: Block, other: Block) -> Block:
    whole = one.weight + other.weight
    some = np.where(whole > 0, whole, 1.0)
    first, second = one.weight / some, other.weight / some
    return Block(
        one.difference * first + other.difference * second,
        whole,
        one.predicted * first + other.predicted * second,
        one.work * first[..., np.newaxis] + other.work * second[..., np.newaxis],
    )


def _scale(blocks: list[Block]) -> Scale:
    """Return the pairs of an even number of blocks."""
    difference, weight = (np.stack(each, axis=-1) for each in zip(*(block[:2] for block in blocks), strict=True))
    return _paired(difference, weight)[0]


def _paired(difference: Floats, weight: Floats) -> tuple[Scale, Floats, Floats]:
    """Return the pairs of [..., blocks] differences, and difference and weight of each pair together."""
    whole = difference.shape[-1] // 2
    pair = (*difference.shape[:-1], whole, 2)
    differences, weights = difference[..., : 2 * whole].reshape(pair), weight[..., : 2 * whole].reshape(pair)
    together = weights.sum(axis=-1)
    some = np.where(together > 0, together, 1.0)
    step = differences[..., 0] - differences[..., 1]
    num = (weights.min(axis=-1) > 0).sum(axis=-1).astype(np.float64)
    squares = (step**2 * weights.prod(axis=-1) / some).sum(axis=-1)
    return Scale(num, squares), (differences * weights).sum(axis=-1) / some, together
