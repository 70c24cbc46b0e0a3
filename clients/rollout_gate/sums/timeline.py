# SPDX-License-Identifier: Apache-2.0
"""The times at which blocks begin and end, equal for all metrics."""

import msgspec

BLOCK_REQUESTS = 20  # of each arm: the difference of fewer says next to nothing


class Timeline(msgspec.Struct):
    """The times of the blocks, in seconds of any one clock.

    Attributes:
        began_s: time of the first request; None: there was none.
        opened_s: when the open block began.
        requests: requests of the candidate and the baseline in the open block.
        num_closed: number of closed blocks.
    """

    began_s: float | None = None
    opened_s: float = 0.0
    last_s: float = 0.0
    requests: tuple[int, int] = (0, 0)
    num_closed: int = 0

    def reach(self, at_s: float | None, block_s: float) -> bool:
        """Move the time on, and return whether the open block ends; a clock that goes back stands still.

        Args:
            at_s: None: as if a block had passed since the last portion.
            block_s: how long a block is at least.
        """
        now_s = self.last_s + block_s if at_s is None else at_s
        if self.began_s is None:
            self.began_s = self.opened_s = self.last_s = now_s
        self.last_s = max(self.last_s, now_s)
        return self.last_s - self.opened_s >= block_s and self.is_full

    @property
    def is_full(self) -> bool:
        """Return whether the open block has enough requests to be closed."""
        return min(self.requests) >= BLOCK_REQUESTS

    def count(self, num_candidate: int, num_baseline: int) -> None:
        """Count requests in the open block."""
        candidate, baseline = self.requests
        self.requests = (candidate + num_candidate, baseline + num_baseline)

    def close(self) -> None:
        """Begin the next block."""
        self.opened_s, self.requests, self.num_closed = self.last_s, (0, 0), self.num_closed + 1

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the first request."""
        return self.last_s - (self.last_s if self.began_s is None else self.began_s)
