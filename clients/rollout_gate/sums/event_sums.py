# SPDX-License-Identifier: Apache-2.0
"""The sums of one metric that is a share of requests: how many there were, and which of them belong together."""

import numpy as np

from clients.rollout_gate.statistics.clusters import Clusters, Spread
from clients.rollout_gate.statistics.incidents import Incidents, Truths
from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import Rows, by_arm
from clients.rollout_gate.sums.block_sums import BlockSums


class EventSums:
    """The sums of one share; arrays have any leading dimensions.

    Args:
        shape: leading dimensions.
        fade_s: as `GateSpec.fade_s`.
        is_of_queue: events come together while an arm's queue is long; blocks of time tell how much.
    """

    def __init__(self, shape: tuple[int, ...], fade_s: float, *, is_of_queue: bool = False) -> None:
        self.blocks: BlockSums | None = BlockSums(shape) if is_of_queue else None
        self.clusters = Clusters(shape)
        self.num: Floats = np.zeros((*shape, 2))  # requests to which it could have happened
        self.events: Floats = np.zeros((*shape, 2))
        self.incidents = Incidents.none(shape, fade_s)
        self.run: Floats = np.zeros((*shape, 2))  # events since the newest request without one
        self.run_began_s: Floats = np.full((*shape, 2), np.inf)

    def add(self, rows: Rows, happened: Floats, at_s: Floats) -> None:
        """Add requests to the open block.

        Args:
            happened: [..., rows] 1 or 0; nan: it could not have happened.
            at_s: [..., rows] time of each request's end.
        """
        if self.blocks is not None:
            self.blocks.add(rows, happened)
        self.clusters.add(rows, happened)
        self.num += by_arm(rows, np.where(np.isfinite(happened), 1.0, np.nan))
        events = by_arm(rows, happened)
        self.events += events
        is_of = np.stack([rows.is_candidate, ~rows.is_candidate], axis=-2)
        times, is_event = at_s[..., np.newaxis, :], is_of & (happened == 1)[..., np.newaxis, :]
        self.incidents.tell(np.isfinite(happened), at_s)
        if events.any():
            self.incidents.add(is_event, at_s)
        if events.any() or self.run.any():
            self._note_run(is_event, is_of & (happened == 0)[..., np.newaxis, :], times)

    @property
    def is_empty(self) -> bool:
        """Return whether no request was added that says anything."""
        return not self.num.any()

    def _note_run(self, is_event: Truths, is_other: Truths, times: Floats) -> None:
        # Of requests at one time, those that came later are later.
        place = np.argsort(np.argsort(times, axis=-1, kind="stable"), axis=-1)
        newest_other = np.where(is_other, place, -1).max(axis=-1, keepdims=True)
        is_after = is_event & (place > newest_other)
        is_broken = newest_other[..., 0] >= 0
        began_s = np.where(is_after, times, np.inf).min(axis=-1)
        self.run = np.where(is_broken, 0.0, self.run) + is_after.sum(axis=-1)
        self.run_began_s = np.where(is_broken, began_s, np.minimum(self.run_began_s, began_s))

    def spread(self) -> Spread:
        """Return the spread of the share over keys."""
        rate = self.events / np.maximum(self.num, 1.0)
        return self.clusters.spread(rate * (1 - rate), self.num)

    def close(self) -> None:
        """Close the open block."""
        if self.blocks is not None:
            self.blocks.close()
