# SPDX-License-Identifier: Apache-2.0
"""The blocks of time of one metric: the difference of the arms in each, from which a look tells what requests share.

Shocks that both arms share cancel within a block. Of pairs of blocks side by side, of pairs of such pairs, and so on,
there are the squares of what they differ by: Allan, "Statistics of atomic frequency standards", Proceedings of the IEEE
54(2), 1966. Differences by chance alone have the same squares at each scale; what fades slowly has larger ones at
longer scales. What they say is in `clients.rollout_gate.fading`.

The blocks are kept one by one, so that a look can take the work out of each difference by what is known then; when there
are too many, neighbours are joined.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from clients.rollout_gate.mean_test import Floats

MAX_BLOCKS = 256


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
    """The closed blocks, the oldest first."""

    blocks: list[Block] = field(default_factory=list)

    def add(self, block: Block) -> None:
        """Add the next block; where there are too many, join neighbours first."""
        if len(self.blocks) >= MAX_BLOCKS:
            self.blocks = [_joined(*self.blocks[at : at + 2]) for at in range(0, len(self.blocks), 2)]
        self.blocks.append(block)

    def differences(self, coefficients: Floats | None, slope: Floats) -> tuple[Floats, Floats]:
        """Return the difference and the weight of each block: [..., blocks] both.

        Args:
            coefficients: [..., 1 + features + 1] of the work, as they are known now; None: no work was taken out.
            slope: [...] by how much a mean moves when all figures move by 1.
        """
        difference = np.stack([block.difference for block in self.blocks], axis=-1)
        weight = np.stack([block.weight for block in self.blocks], axis=-1)
        if coefficients is None:
            return difference, weight
        predicted = np.stack([block.predicted for block in self.blocks], axis=-1)
        work = np.stack([block.work for block in self.blocks], axis=-2)
        now = np.einsum("...bi,...i->...b", work, coefficients[..., 1:-1])
        return difference + slope[..., np.newaxis] * (predicted - now), weight


def _joined(one: Block, other: Block | None = None) -> Block:
    if other is None:
        return one
    whole = one.weight + other.weight
    some = np.where(whole > 0, whole, 1.0)
    first, second = one.weight / some, other.weight / some
    return Block(
        one.difference * first + other.difference * second,
        whole,
        one.predicted * first + other.predicted * second,
        one.work * first[..., np.newaxis] + other.work * second[..., np.newaxis],
    )


def pairs_of(difference: Floats, weight: Floats) -> Pairs:
    """Return the pairs of [..., blocks] differences, at each doubling of the time."""
    num, squares = [], []
    while (whole := difference.shape[-1] // 2) > 0:
        pair = (*difference.shape[:-1], whole, 2)
        differences, weights = difference[..., : 2 * whole].reshape(pair), weight[..., : 2 * whole].reshape(pair)
        weight = weights.sum(axis=-1)
        some = np.where(weight > 0, weight, 1.0)
        step = differences[..., 0] - differences[..., 1]
        num.append((weights.min(axis=-1) > 0).sum(axis=-1).astype(np.float64))
        squares.append((step**2 * weights.prod(axis=-1) / some).sum(axis=-1))
        difference = (differences * weights).sum(axis=-1) / some
    shape = difference.shape[:-1]
    empty = np.zeros((*shape, 0))
    return Pairs(*(np.stack(each, axis=-1) if each else empty for each in (num, squares)))
