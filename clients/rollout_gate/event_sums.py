# SPDX-License-Identifier: Apache-2.0
"""The sums of one metric that is a share of requests: how many there were, and which of them belong together."""

import numpy as np

from clients.rollout_gate.block_sums import BlockSums
from clients.rollout_gate.incidents import Incidents
from clients.rollout_gate.mean_test import Floats
from clients.rollout_gate.rows import Rows, by_arm


class EventSums:
    """The sums of one share; arrays have any leading dimensions.

    Args:
        shape: leading dimensions.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.sums = BlockSums(shape)
        self.events: Floats = np.zeros((*shape, 2))
        self.incidents = Incidents.none(shape)

    def add(self, rows: Rows, happened: Floats, at_s: Floats) -> None:
        """Add requests to the open block.

        Args:
            happened: [..., rows] 1 or 0; nan: it could not have happened.
            at_s: [..., rows] time of each request's end.
        """
        self.sums.add(rows, happened)
        events = by_arm(rows, happened)
        self.events += events
        if not events.any():
            return
        is_event = happened == 1
        is_of = np.stack([is_event & rows.is_candidate, is_event & ~rows.is_candidate], axis=-2)
        times = at_s[..., np.newaxis, :]
        self.incidents.add(
            events,
            np.where(is_of, times, np.inf).min(axis=-1),
            np.where(is_of, times, -np.inf).max(axis=-1),
        )

    @property
    def num(self) -> Floats:
        """Return the number of requests to which it could have happened: [..., 2]."""
        return self.sums.num

    def close(self) -> None:
        """Close the open block."""
        self.sums.close()
