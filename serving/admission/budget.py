# SPDX-License-Identifier: Apache-2.0
"""What may be in flight: KV blocks, tokens and seats, promised before they are used, so that use never exceeds them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serving.scheduling import Priority


@dataclass(slots=True)
class _Promise:
    num_blocks: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Room:
    """What is not promised yet."""

    num_seats: int
    num_blocks: int
    num_tokens: int


class KvBudget:
    """Promises by key. A sequence of n tokens takes ceil(n / block_tokens) blocks, whatever it shares with others.

    Args:
        num_blocks: of the KV cache, all of which may be promised.
        block_tokens: tokens in a block.
        max_num_seqs: requests in flight.
        max_tokens: in flight, prompts and expected outputs; None: as many as the blocks hold.
        shares: of each of these, what a class may fill; the rest is kept free for the classes above it.
        on_free: called with the key of each whose promise ends.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_tokens: int,
        max_num_seqs: int,
        max_tokens: int | None = None,
        shares: Mapping[Priority, float] | None = None,
        on_free: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.max_num_seqs = max_num_seqs
        self.max_tokens = num_blocks * block_tokens if max_tokens is None else max_tokens
        self._shares = dict.fromkeys(Priority, 1.0) | dict(shares or {})
        self._on_free = on_free
        self._promises: dict[int, _Promise] = {}
        self.num_promised_blocks = 0
        self.num_promised_tokens = 0

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._promises)

    def blocks_of(self, num_tokens: int) -> int:
        """KV blocks of so many tokens."""
        return -(-num_tokens // self.block_tokens)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a request of so many tokens fits when it is alone."""
        return self.blocks_of(num_tokens) <= self.num_blocks and num_tokens <= self.max_tokens

    def room_for(self, priority: Priority) -> Room:
        """What is left for a class; may be below zero. Alone a request may fill everything, whatever its class."""
        share = self._shares[priority] if self._promises else 1.0
        return Room(
            max(1, int(share * self.max_num_seqs)) - len(self._promises),
            int(share * self.num_blocks) - self.num_promised_blocks,
            int(share * self.max_tokens) - self.num_promised_tokens,
        )

    def fits(self, num_tokens: int, priority: Priority) -> bool:
        """Whether one more request may be promised so many tokens."""
        room = self.room_for(priority)
        return room.num_seats >= 1 and room.num_blocks >= self.blocks_of(num_tokens) and room.num_tokens >= num_tokens

    def promise(self, key: int, num_tokens: int) -> None:
        """Take a seat and room for so many tokens; the caller has asked `fits`."""
        promise = self._promises[key] = _Promise(self.blocks_of(num_tokens), num_tokens)
        self.num_promised_blocks += promise.num_blocks
        self.num_promised_tokens += promise.num_tokens

    def promised_tokens(self, key: int) -> int:
        """What a request in flight may hold."""
        return self._promises[key].num_tokens

    def grow(self, key: int, num_tokens: int) -> bool:
        """Promise a request that is in flight so many tokens altogether; False: there is no room, and nothing changed.

        What runs goes before what waits, so the shares of the classes do not count here.
        """
        promise = self._promises[key]
        num_blocks = self.blocks_of(num_tokens)
        num_new_blocks, num_new_tokens = num_blocks - promise.num_blocks, num_tokens - promise.num_tokens
        if (
            self.num_promised_blocks + num_new_blocks > self.num_blocks
            or self.num_promised_tokens + num_new_tokens > self.max_tokens
        ):
            return False
        self._promises[key] = _Promise(num_blocks, num_tokens)
        self.num_promised_blocks += num_new_blocks
        self.num_promised_tokens += num_new_tokens
        return True

    def free(self, key: int) -> None:
        """A request has left."""
        promise = self._promises.pop(key)
        self.num_promised_blocks -= promise.num_blocks
        self.num_promised_tokens -= promise.num_tokens
        self._on_free(key)
