# SPDX-License-Identifier: Apache-2.0
"""What a tenant leaves free for the others: who floods fills the engine, but not to its last seat."""

from collections.abc import Mapping

from serving.admission.kv_budget import Room

EXPECTED_S = 60.0  # who has asked for nothing for so long is not kept room for

_FAR = 1.5  # times a fair share
_NOTHING = Room(0, 0, 0)


class TenantReserve:
    """Who holds far more than its fair share leaves a part of the whole to the others, while there are some.

    The next seat is theirs anyway, by their turns; but one that comes free in 20 ms is late for a first token
    in 30. The fair share is by weight, among those who hold something.

    Args:
        share: of the whole; 0: nothing is kept free.
        weights: of tenants; others have 1.
    """

    def __init__(self, share: float, weights: Mapping[str, float]) -> None:
        self._share = share
        self._weights = weights
        self._held: dict[str, Room] = {}
        self._weight = 0.0  # of those who hold something
        self._last: tuple[str, float] | None = None  # who came last, and when
        self._last_other_s: float | None = None  # when somebody else came

    def note_arrival(self, tenant: str, now_s: float) -> None:
        """A tenant asks for something."""
        if self._last is not None and tenant != self._last[0]:
            self._last_other_s = self._last[1]
        self._last = (tenant, now_s)

    def hold(self, tenant: str, room: Room) -> None:
        """A tenant has been promised so much more, or less."""
        before = self._held.get(tenant)
        held = room if before is None else before + room
        if before is None:
            self._weight += self._weight_of(tenant)
        if held != _NOTHING:
            self._held[tenant] = held
            return
        del self._held[tenant]
        self._weight = self._weight - self._weight_of(tenant) if self._held else 0.0  # exactly

    def of(self, tenant: str, whole: Room) -> Room:
        """What stays free of what this tenant could take."""
        share = self._share
        if not share or not self._has_others(tenant) or not self.is_over(tenant, whole, _FAR):
            return _NOTHING
        return Room(int(share * whole.num_seats), int(share * whole.num_blocks), int(share * whole.num_tokens))

    def is_over(self, tenant: str, whole: Room, times: float = 1.0) -> bool:
        """Whether with one more it holds more than so many times its fair share."""
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
