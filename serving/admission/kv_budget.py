# SPDX-License-Identifier: Apache-2.0
"""Amounts of KV budget: seats, blocks and tokens together, held, needed or free."""

import msgspec


class KvAmount(msgspec.Struct, frozen=True, gc=False):
    """Seats, KV blocks and tokens; below zero where more is reserved than allowed.

    A struct: some thirty are made for each request, and a frozen dataclass takes four times as long to make.
    """

    num_seats: int
    num_blocks: int
    num_tokens: int

    def __add__(self, other: "KvAmount") -> "KvAmount":
        return KvAmount(
            self.num_seats + other.num_seats, self.num_blocks + other.num_blocks, self.num_tokens + other.num_tokens
        )

    def __sub__(self, other: "KvAmount") -> "KvAmount":
        return KvAmount(
            self.num_seats - other.num_seats, self.num_blocks - other.num_blocks, self.num_tokens - other.num_tokens
        )

    def holds(self, other: "KvAmount") -> bool:
        """Return whether `other` fits into this amount."""
        return (
            other.num_seats <= self.num_seats
            and other.num_blocks <= self.num_blocks
            and other.num_tokens <= self.num_tokens
        )
