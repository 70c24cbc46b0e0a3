# SPDX-License-Identifier: Apache-2.0
"""Sums of a metric by block of time, from which a look can tell what requests have in common.

A block has `BLOCK_REQUESTS` of each arm at least, and lasts an eighth of `GateSpec.fade_s` at least. Of a closed one
there is the difference of the arms' means within strata, so that shocks that both arms share cancel. Of pairs of
blocks side by side, of pairs of such pairs, and so on, there are the squares of what they differ by: Allan, "Statistics
of atomic frequency standards", Proceedings of the IEEE 54(2), 1966. Differences by chance alone have the same squares
at each scale; what fades slowly has larger ones at longer scales. That is a few numbers for each doubling of the
time. What they say is in `clients.rollout_gate.fading`.
"""

import copy

import msgspec

BLOCK_REQUESTS = 20  # of each arm: in fewer, strata that only one arm has would cost much of what is known


class Sums(msgspec.Struct):
    """The number, mean and sum of squared distances from the mean of some values."""

    num: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def add(self, value: float) -> None:
        """Add a value.

        Source: Welford, "Note on a method for calculating corrected sums of squares", Technometrics 4(3), 1962.
        """
        self.num += 1
        step = value - self.mean
        self.mean += step / self.num
        self.m2 += step * (value - self.mean)


class Within(msgspec.Struct):
    """The spread of one arm in one stratum within the closed blocks, and its part in the difference's variance.

    Attributes:
        freedom: values less one for each block that has any.
        m2: sum of squared distances from the block's own mean.
        weight: weight of a value's variance in the variance of the weighted sum of differences.
    """

    freedom: int = 0
    m2: float = 0.0
    weight: float = 0.0


class Scale(msgspec.Struct):
    """The pairs of neighbouring blocks, each 2^n base blocks long.

    Attributes:
        num: number of pairs of which both have a difference.
        squares: sum of squares of what the two differ by, each times w v / (w + v) of their weights: without any
            correlation in time its expectation is that of a base block's difference times its weight.
        waiting: difference and weight of a block whose neighbour is not complete.
    """

    num: int = 0
    squares: float = 0.0
    waiting: tuple[float, float] | None = None


class Blocks(msgspec.Struct):
    """The blocks of one metric; arms are (candidate, baseline).

    Attributes:
        opened: the values of the block that is open, by stratum.
        within: spread of both arms, by stratum.
        weight: sum of all closed blocks' weights.
        total: sum of their differences times their weights.
        scales: shortest first.
    """

    opened: dict[int, tuple[Sums, Sums]] = {}
    within: dict[int, tuple[Within, Within]] = {}
    weight: float = 0.0
    total: float = 0.0
    scales: list[Scale] = []

    def add(self, value: float, stratum: int, *, is_candidate: bool) -> None:
        """Add a value to the open block."""
        self.opened.setdefault(stratum, (Sums(), Sums()))[0 if is_candidate else 1].add(value)

    def close(self) -> None:
        """Close the open block and begin the next one.

        Each stratum of the closed block weighs n m / (n + m) of its arms' numbers.
        """
        weight = total = 0.0
        for stratum, arms in self.opened.items():
            within = self.within.setdefault(stratum, (Within(), Within()))
            candidate, baseline = arms
            shared = candidate.num * baseline.num / (candidate.num + baseline.num)
            weight += shared
            total += shared * (candidate.mean - baseline.mean)
            for known, one in zip(within, arms, strict=True):
                known.freedom += max(one.num - 1, 0)
                known.m2 += one.m2
                known.weight += shared**2 / max(one.num, 1)
        self.weight, self.total = self.weight + weight, self.total + total
        self._pair(total / weight if weight else 0.0, weight)
        self.opened = {}

    def _pair(self, difference: float, weight: float) -> None:
        for scale in self.scales:
            if scale.waiting is None:
                scale.waiting = (difference, weight)
                return
            other, other_weight = scale.waiting
            scale.waiting, whole = None, weight + other_weight
            if weight and other_weight:
                scale.num += 1
                scale.squares += (difference - other) ** 2 * weight * other_weight / whole
            difference = (difference * weight + other * other_weight) / whole if whole else 0.0
            weight = whole
        self.scales.append(Scale(waiting=(difference, weight)))


class Timeline(msgspec.Struct):
    """The times at which blocks begin and end, equal for all metrics, in seconds of any one clock.

    Attributes:
        began_s: time of the first request; None: there was none.
        opened_s: when the open block began.
        requests: requests of the candidate and the baseline in the open block.
        num_closed: number of closed blocks.
        blocks: blocks of each metric.
    """

    began_s: float | None = None
    opened_s: float = 0.0
    last_s: float = 0.0
    requests: tuple[int, int] = (0, 0)
    num_closed: int = 0
    blocks: dict[str, Blocks] = {}

    def reach(self, at_s: float | None, block_s: float) -> None:
        """Move the time on, which may end the open block; a clock that goes back stands still.

        Args:
            at_s: None: as if a block had passed since the last portion.
            block_s: how long a block is at least.
        """
        now_s = self.last_s + block_s if at_s is None else at_s
        if self.began_s is None:
            self.began_s = self.opened_s = self.last_s = now_s
        self.last_s = max(self.last_s, now_s)
        if self.last_s - self.opened_s >= block_s and self.is_full:
            self._close()

    @property
    def is_full(self) -> bool:
        """Return whether the open block has enough requests to be closed."""
        return min(self.requests) >= BLOCK_REQUESTS

    def count(self, *, is_candidate: bool) -> None:
        """Count a request in the open block."""
        candidate, baseline = self.requests
        self.requests = (candidate + is_candidate, baseline + (not is_candidate))

    def until_now(self) -> "Timeline":
        """Return a copy for a look, in which the open block is closed if it is full."""
        found = copy.deepcopy(self)
        if found.is_full:
            found._close()
        return found

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the first request."""
        return self.last_s - (self.last_s if self.began_s is None else self.began_s)

    def _close(self) -> None:
        for one in self.blocks.values():
            one.close()
        self.opened_s, self.requests, self.num_closed = self.last_s, (0, 0), self.num_closed + 1
