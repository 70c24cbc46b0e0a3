# SPDX-License-Identifier: Apache-2.0
"""The shares of a device that the processes of one server hold: named resources with a count each, and turns for them.

No process keeps the ledger: it is a file (`serving.shared_budget.ledger_file`), which says what each member holds and
wants of each resource, and which member is next.

**Never more than there is.** The holdings of all members never add up to more than a resource's count. A member that
ends, however, holds nothing any more.

**Which member is next.** Start-time fair queueing (Goyal, Vin, Cheng 1996). A member has a tag, its work so far by its
weight: its next start has that tag, and moves it on by work / weight. A start is granted if its amounts fit beside all
that is held *and* beside all waiting starts with lower tags, the first of a member as well as those that it would make
behind it. So

- among members that always want more, work started is in proportion to their weights;
- no member passes one that wants much because it wants little: what comes free is kept for the first until it is
  enough. Every member's turn comes, for each start moves a tag on, and holdings end;
- a member that wants nothing leaves its share to the others, and has it back as their holdings end; nothing is taken
  from any member. When it comes back its tag is at least that of the newest start: unused share is not owed to it.

A wish counts for `_PATIENCE_S` after it was told last: a member that hangs keeps no room free.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.shared_budget.ledger_file import (
    ASKED_LAST,
    COUNT,
    HELD,
    HIGH_WATER,
    MAX_NAME_BYTES,
    NEWEST_START,
    NUM_STARTS,
    NUM_WAITING,
    PID,
    TAG,
    USES,
    WAITS_SINCE,
    WANTED,
    WEIGHT,
    WORK,
    LedgerFile,
)
from serving.shared_budget.ledger_views import MemberState, ResourceUse, look_at_members, look_at_resources
from trireme.base.errors import SpecError

LEDGER_FILE = "shared-ledger"  # in the folder of a server (`serving.process.run_dir`)

_PATIENCE_S = 1.0  # seconds; longer than a step of an engine, in which it asks for nothing
_LOCK_TIMEOUT_S = 0.001
_NS = 1_000_000_000


class SharedLedger:
    """A member of a ledger; for one thread.

    Args:
        path: the ledger's file, one for all members; made by the first.
        member: name of the member, for people.
        weight: of this member's work against that of the others; above 0.
        counts: how much there is for all members of each resource that this member uses. All members must say the same.
        monotonic_s: a clock in seconds that is one for all processes.

    Raises:
        SpecError: a name, count or weight is out of its range, or a count is not that of a member that runs.
        ServerError: there are too many members or resources.
    """

    def __init__(
        self,
        path: Path,
        *,
        member: str,
        weight: float,
        counts: Mapping[str, int],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        _check(member, weight, counts)
        self._weight = weight
        self._counts = dict(counts)
        self._monotonic_s = monotonic_s
        self._is_backlogged = False  # the member has wanted more all the time since it was refused
        self._file = LedgerFile(path)
        try:
            with self._file.locked():
                self._join(member)
        except BaseException:
            self._file.close()
            raise

    def try_acquire(self, amounts: Mapping[str, int], *, work: float | None = None, num_waiting: int = 1) -> bool:
        """Hold `amounts` more, all or nothing; return False if they do not fit or other members are next.

        All members see what this member wants from now on, until it has it, asks for something else or withdraws. Ask
        again within a second, or the turn passes.

        Args:
            amounts: how much more to hold of each resource.
            work: what this start counts for, above 0; None: the largest part that it takes of any resource.
            num_waiting: such starts that this member would make, this one included.

        Raises:
            SpecError: an unknown resource, or an amount below 1 or above the count.
        """
        wanted = self._wanted(amounts)
        if work is None:
            work = max(amount / self._counts[name] for name, amount in amounts.items())
        file, words, floats = self._file, self._file.words, self._file.floats
        slot = file.slot
        if not file.try_lock(timeout_s=_LOCK_TIMEOUT_S):  # a member was stopped in the middle of this
            return False
        try:
            now_ns = int(self._monotonic_s() * _NS)
            if not self._is_backlogged:
                floats[slot + TAG] = max(floats[slot + TAG], floats[NEWEST_START])
            totals = self._totals_if_fits(wanted, now_ns)
            # The dead are looked for only where it makes a difference.
            if (totals is None or self._is_new_high(wanted, totals)) and file.forget_dead():
                totals = self._totals_if_fits(wanted, now_ns)
            if totals is None:
                self._is_backlogged = True
                self._want(wanted, num_waiting, work, now_ns)
                return False
            for (number, at, amount), total in zip(wanted, totals, strict=True):
                words[at + HIGH_WATER] = max(words[at + HIGH_WATER], total)  # before it is true
                words[slot + HELD + number] += amount
            floats[NEWEST_START] = max(floats[NEWEST_START], floats[slot + TAG])
            floats[slot + TAG] += work / self._weight
            words[slot + NUM_STARTS] += 1
            words[slot + WAITS_SINCE] = 0
            self._want(wanted, num_waiting - 1, work, now_ns)
            return True
        finally:
            file.unlock()

    def release(self, amounts: Mapping[str, int]) -> None:
        """Hold `amounts` less of the resources.

        No lock is taken: the others may see it a moment later, and never see too little.
        """
        words, held_at = self._file.words, self._file.slot + HELD
        for name, amount in amounts.items():
            number = self._numbers[name]
            assert words[held_at + number] >= amount, f"more of {name} is released than is held"
            words[held_at + number] -= amount

    def charge(self, work: float) -> None:
        """Add work to what has been started; negative: it took less than expected."""
        self._file.floats[self._file.slot + TAG] += work / self._weight

    def withdraw(self) -> None:
        """Want nothing more for now."""
        self._is_backlogged = False
        self._file.words[self._file.slot + NUM_WAITING] = 0

    def held(self) -> dict[str, int]:
        """Return what this member holds of the resources that it uses."""
        words, held_at = self._file.words, self._file.slot + HELD
        return {name: words[held_at + number] for name, number in self._numbers.items()}

    def members(self) -> list[MemberState]:
        """Return all living members, this one included."""
        with self._file.locked():
            return look_at_members(self._file, now_ns=int(self._monotonic_s() * _NS))

    def resources(self) -> dict[str, ResourceUse]:
        """Return all resources that any member has named."""
        with self._file.locked():
            return look_at_resources(self._file)

    def close(self) -> None:
        """Release all that is held, and leave the ledger."""
        self._file.close()

    def _join(self, member: str) -> None:
        file, words = self._file, self._file.words
        file.take_slot()
        file.forget_dead()
        known = {name: (number, at) for number, (name, at) in enumerate(file.resources())}
        for name, count in self._counts.items():
            if name not in known:
                file.add_resource(name, count)
            elif words[known[name][1] + COUNT] != count:
                number, at = known[name]
                self._refuse_other_count(name, number, at)
                words[at + COUNT], words[at + HIGH_WATER] = count, 0
        self._numbers = {name: number for number, (name, _) in enumerate(file.resources()) if name in self._counts}
        self._places = {name: at for name, at in file.resources() if name in self._counts}
        file.put_member_name(member)
        words[file.slot + USES] = sum(1 << number for number in self._numbers.values())
        file.floats[file.slot + WEIGHT] = self._weight
        words[file.slot + PID] = os.getpid()  # last: it is a member

    def _refuse_other_count(self, name: str, number: int, at: int) -> None:
        file, words = self._file, self._file.words
        users = [slot for slot in file.slots() if words[slot + PID] and words[slot + USES] >> number & 1]
        if users:
            others = ", ".join(file.member_name(slot) for slot in users)
            raise SpecError(
                f"resource {name}: count {self._counts[name]} here and {words[at + COUNT]} in {others}; "
                "all models of a server must name the same count",
                field="count",
                value=self._counts[name],
            )

    def _wanted(self, amounts: Mapping[str, int]) -> list[tuple[int, int, int]]:
        """Return the number, the place in the header and the amount of each resource.

        Raises:
            SpecError: an unknown resource, or an amount below 1 or above the count.
        """
        for name, amount in amounts.items():
            count = self._counts.get(name)
            if count is None:
                raise SpecError(f"no resource {name!r} here; there are {', '.join(sorted(self._counts))}")
            if not 1 <= amount <= count:
                raise SpecError(f"{amount} of {name} can never be held; there are {count}", field=name, value=amount)
        return [(self._numbers[name], self._places[name], amount) for name, amount in amounts.items()]

    def _totals_if_fits(self, wanted: list[tuple[int, int, int]], now_ns: int) -> list[int] | None:
        """Return the total then held of each resource; None: the amounts do not fit beside the other members."""
        file, words, floats = self._file, self._file.words, self._file.floats
        own, since_ns = file.slot, now_ns - int(_PATIENCE_S * _NS)
        members = [slot for slot in file.slots() if words[slot + PID]]
        before = [
            (slot, num_starts)
            for slot in members
            if slot != own
            and words[slot + NUM_WAITING]
            and words[slot + ASKED_LAST] >= since_ns
            and (num_starts := self._num_starts_before(slot, floats[own + TAG]))
        ]
        totals = []
        for number, at, amount in wanted:
            total = amount + sum(words[slot + HELD + number] for slot in members)
            if total + sum(num * words[slot + WANTED + number] for slot, num in before) > words[at + COUNT]:
                return None
            totals.append(total)
        return totals

    def _num_starts_before(self, slot: int, own_tag: float) -> int:
        """Return how many waiting starts of another member have lower tags; of equal tags the lower slot's go first."""
        words, floats = self._file.words, self._file.floats
        lead = own_tag - floats[slot + TAG]
        if lead < 0.0 or (lead == 0.0 and slot > self._file.slot):
            return 0
        num_starts = lead * floats[slot + WEIGHT] / floats[slot + WORK]  # of which the first is at its tag itself
        is_tie_before = slot < self._file.slot
        num_lower = math.floor(num_starts) + 1 if is_tie_before else max(1, math.ceil(num_starts))
        return min(words[slot + NUM_WAITING], num_lower)

    def _is_new_high(self, wanted: list[tuple[int, int, int]], totals: list[int]) -> bool:
        return any(total > self._file.words[at + HIGH_WATER] for (_, at, _), total in zip(wanted, totals, strict=True))

    def _want(self, wanted: list[tuple[int, int, int]], num_waiting: int, work: float, now_ns: int) -> None:
        file, slot = self._file, self._file.slot
        words = file.words
        if not num_waiting:
            words[slot + NUM_WAITING] = 0
            return
        for number in self._numbers.values():
            words[slot + WANTED + number] = 0
        for number, _, amount in wanted:
            words[slot + WANTED + number] = amount
        if not (words[slot + NUM_WAITING] and words[slot + WAITS_SINCE]):
            words[slot + WAITS_SINCE] = now_ns
        words[slot + ASKED_LAST] = now_ns
        file.floats[slot + WORK] = work
        words[slot + NUM_WAITING] = num_waiting  # last: until now it wanted nothing, or the same


def _check(member: str, weight: float, counts: Mapping[str, int]) -> None:
    for name in (member, *counts):
        if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
            raise SpecError(f"{name!r} is no name for a ledger: 1 to {MAX_NAME_BYTES} bytes", value=name)
    if not 0 < weight < float("inf"):
        raise SpecError(f"weight {weight:g} must be above 0 and finite", field="weight", value=weight)
    for name, count in counts.items():
        if not 1 <= count < 1 << 62:
            raise SpecError(f"resource {name}: count {count} must be at least 1", field="count", value=count)
