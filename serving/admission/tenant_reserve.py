# SPDX-License-Identifier: Apache-2.0
"""The part of the budget that one tenant leaves free for others: a flood fills the engine, but not to its last seat."""

from collections.abc import Mapping

from serving.admission.kv_budget import KvAmount

EXPECTED_S = 60.0  # no room is kept for tenants that have sent nothing for this long

_FAR = 1.5  # times a fair share
_NOTHING = KvAmount(0, 0, 0)


class TenantReserve:
    """The amount that each tenant holds, and the part that a tenant far above its fair share leaves free for others.

    A part is kept free only while there are other tenants.
    The next seat goes to the others anyway, by their turns; but one that comes free in 20 ms is late for a first token
    in 30. The fair share is by weight, among the tenants that hold something.

    Args:
        share: fraction of the whole; 0: nothing is kept free.
        weights: of tenants; a tenant that is not named has 1.
    """

    def __init__(self, share: float, weights: Mapping[str, float]) -> None:
        self._share = share
        self._weights = weights
        self._held: dict[str, KvAmount] = {}
        self._weight = 0.0  # sum over the tenants that hold something
        self._last: tuple[str, float] | None = None  # the tenant of the last arrival, and its time
        self._last_other_s: float | None = None  # time of the last arrival of another tenant

    def note_arrival(self, tenant: str, now_s: float) -> None:
        """Note that a tenant's request has arrived."""
        if self._last is not None and tenant != self._last[0]:
            self._last_other_s = self._last[1]
        self._last = (tenant, now_s)

    def hold(self, tenant: str, room: KvAmount) -> None:
        """Add `room` to what a tenant has reserved; negative amounts release."""
        before = self._held.get(tenant)
        held = room if before is None else before + room
        if before is None:
            self._weight += self._weight_of(tenant)
        if held != _NOTHING:
            self._held[tenant] = held
            return
        del self._held[tenant]
        self._weight = self._weight - self._weight_of(tenant) if self._held else 0.0  # exactly

    def of(self, tenant: str, whole: KvAmount) -> KvAmount:
        """Return what must stay free of the amount that this tenant could take."""
        share = self._share
        if not share or not self._has_others(tenant) or not self.is_over(tenant, whole, _FAR):
            return _NOTHING
        return KvAmount(int(share * whole.num_seats), int(share * whole.num_blocks), int(share * whole.num_tokens))

    def is_over(self, tenant: str, whole: KvAmount, times: float = 1.0) -> bool:
        """Return whether a tenant with one more request holds more than `times` its fair share."""
        held = self._held.get(tenant, _NOTHING)
        weight = self._weight_of(tenant)
        fair = weight / max(self._weight, weight + 1.0)  # there is at least one other, though it may hold nothing now
        most = times * fair
        return held.num_seats + 1 > most * whole.num_seats or held.num_tokens > most * whole.num_tokens

    def _weight_of(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def _has_others(self, tenant: str) -> bool:
        if self._last is None:
            return False
        last, now_s = self._last
        return tenant != last or (self._last_other_s is not None and now_s - self._last_other_s < EXPECTED_S)
