# SPDX-License-Identifier: Apache-2.0
"""Seats, KV blocks and tokens together: what is held, needed, or not promised yet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """Of the three that a request takes; below zero where more is promised than may be."""

    num_seats: int
    num_blocks: int
    num_tokens: int

    def __add__(self, other: "Room") -> "Room":
        return Room(
            self.num_seats + other.num_seats, self.num_blocks + other.num_blocks, self.num_tokens + other.num_tokens
        )

    def __sub__(self, other: "Room") -> "Room":
        return Room(
            self.num_seats - other.num_seats, self.num_blocks - other.num_blocks, self.num_tokens - other.num_tokens
        )

    def holds(self, other: "Room") -> bool:
        """Whether so much fits in it."""
        return (
            other.num_seats <= self.num_seats
            and other.num_blocks <= self.num_blocks
            and other.num_tokens <= self.num_tokens
        )
