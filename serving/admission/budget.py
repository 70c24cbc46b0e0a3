# SPDX-License-Identifier: Apache-2.0
"""The KV budget: blocks, tokens and seats, reserved before they are used, so that use never exceeds them."""

from collections.abc import Callable, Mapping

import msgspec

from serving.admission.kv_budget import KvAmount
from serving.admission.tenant_reserve import TenantReserve
from serving.engines.seam.scheduling import Priority


class _Reservation(msgspec.Struct, frozen=True, gc=False):
    tenant: str
    num_blocks: int
    num_tokens: int


class KvBudget:
    """Reservations by request key. A sequence of n tokens takes ceil(n / block_tokens) blocks, shared or not.

    Args:
        num_blocks: blocks of the KV cache; all of them may be reserved.
        block_tokens: tokens in a block.
        max_num_seqs: most requests in flight.
        max_tokens: most tokens in flight, prompts and expected outputs; None: as many as the blocks hold.
        shares: fraction of each limit that a class may fill; the rest is kept free for the classes above the class.
        reserve: the part that a tenant leaves free for other tenants; None: nothing.
        on_free: called with the key of each request when its reservation ends; None: nothing is called.

    Attributes:
        num_seats: requests in flight that the TPOT target allows now.
        is_premium_expected: whether the standard class leaves premium its room.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_tokens: int,
        max_num_seqs: int,
        max_tokens: int | None = None,
        shares: Mapping[Priority, float] | None = None,
        on_free: Callable[[int], None] | None = None,
        reserve: TenantReserve | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.max_num_seqs = self.num_seats = max_num_seqs
        self.max_tokens = num_blocks * block_tokens if max_tokens is None else max_tokens
        self._shares = dict.fromkeys(Priority, 1.0) | dict(shares or {})
        self._on_free = on_free
        self._reserve = reserve or TenantReserve(0.0, {})
        self._reservations: dict[int, _Reservation] = {}
        self.num_reserved_blocks = 0
        self.num_reserved_tokens = 0
        self.is_premium_expected = True

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self._reservations)

    def blocks_of(self, num_tokens: int) -> int:
        """Return the number of KV blocks that `num_tokens` tokens take."""
        return -(-num_tokens // self.block_tokens)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Return whether a request of `num_tokens` tokens fits when it runs alone."""
        return self.blocks_of(num_tokens) <= self.num_blocks and num_tokens <= self.max_tokens

    def room_for(self, priority: Priority, tenant: str = "") -> KvAmount:
        """Return what a tenant may still reserve in a class; may be below zero. A request alone may fill everything."""
        if not self._reservations:
            return self._most(1.0)
        is_all_its_own = priority is Priority.STANDARD and not self.is_premium_expected
        most = self._most(1.0 if is_all_its_own else self._shares[priority])
        reserved = KvAmount(len(self._reservations), self.num_reserved_blocks, self.num_reserved_tokens)
        return most - reserved - self._reserve.of(tenant, most)

    def is_over_share(self, tenant: str) -> bool:
        """Return whether a tenant holds more than its fair share."""
        return self._reserve.is_over(tenant, self._most(1.0))

    def _most(self, share: float) -> KvAmount:
        return KvAmount(max(1, int(share * self.num_seats)), int(share * self.num_blocks), int(share * self.max_tokens))

    def needs(self, num_requests: int, num_tokens: int) -> KvAmount:
        """Return what `num_requests` requests with `num_tokens` tokens together take."""
        return KvAmount(num_requests, self.blocks_of(num_tokens), num_tokens)

    def reserve(self, key: int, num_tokens: int, tenant: str = "") -> None:
        """Reserve a seat and `num_tokens` tokens; the caller has asked for room (`room_for`)."""
        reservation = self._reservations[key] = _Reservation(tenant, self.blocks_of(num_tokens), num_tokens)
        self._count(tenant, KvAmount(1, reservation.num_blocks, reservation.num_tokens))

    def reserved_tokens(self, key: int) -> int:
        """Return the tokens that a request in flight has reserved."""
        return self._reservations[key].num_tokens

    def grow(self, key: int, num_tokens: int) -> bool:
        """Raise the reservation of a request in flight to `num_tokens` tokens; return False if there is no room.

        Without room nothing changes. Running requests go before waiting ones, so the shares of the classes do not
        count here.
        """
        reservation = self._reservations[key]
        num_blocks = self.blocks_of(num_tokens)
        num_new_blocks, num_new_tokens = num_blocks - reservation.num_blocks, num_tokens - reservation.num_tokens
        if (
            self.num_reserved_blocks + num_new_blocks > self.num_blocks
            or self.num_reserved_tokens + num_new_tokens > self.max_tokens
        ):
            return False
        self._reservations[key] = _Reservation(reservation.tenant, num_blocks, num_tokens)
        self._count(reservation.tenant, KvAmount(0, num_new_blocks, num_new_tokens))
        return True

    def free(self, key: int) -> None:
        """Release the reservation of a request."""
        reservation = self._reservations.pop(key)
        self._count(reservation.tenant, KvAmount(-1, -reservation.num_blocks, -reservation.num_tokens))
        if self._on_free is not None:
            self._on_free(key)

    def _count(self, tenant: str, room: KvAmount) -> None:
        self.num_reserved_blocks += room.num_blocks
        self.num_reserved_tokens += room.num_tokens
        self._reserve.hold(tenant, room)
