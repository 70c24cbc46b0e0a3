# SPDX-License-Identifier: Apache-2.0
"""The state of a shared ledger as a member sees it: what each holds and wants, and the most that was ever held."""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.shared_budget.ledger_file import (
    COUNT,
    HELD,
    HIGH_WATER,
    NUM_STARTS,
    NUM_WAITING,
    PID,
    WAITS_SINCE,
    WANTED,
    WEIGHT,
    LedgerFile,
)


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The use of a resource by all members together, in the resource's own units."""

    count: int
    held: int
    high_water: int  # the most that was ever held at once


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a member as the others see it."""

    name: str
    pid: int
    weight: float
    held: Mapping[str, int]
    wanted: Mapping[str, int]  # amounts for its next start
    num_waiting: int  # starts that it would make
    waits_s: float | None  # None: it wants nothing more
    num_starts: int


def look_at_members(file: LedgerFile, *, now_ns: int) -> list[MemberState]:
    """Return all living members; to be called under the ledger's lock."""
    file.forget_dead()
    names = [name for name, _ in file.resources()]
    return [_state(file, slot, names, now_ns) for slot in file.slots() if file.words[slot + PID]]


def look_at_resources(file: LedgerFile) -> dict[str, ResourceUse]:
    """Return all resources that any member has named; to be called under the ledger's lock."""
    file.forget_dead()
    words = file.words
    return {
        name: ResourceUse(
            count=words[at + COUNT],
            held=sum(words[slot + HELD + number] for slot in file.slots() if words[slot + PID]),
            high_water=words[at + HIGH_WATER],
        )
        for number, (name, at) in enumerate(file.resources())
    }


def _state(file: LedgerFile, slot: int, names: list[str], now_ns: int) -> MemberState:
    words = file.words
    num_waiting = words[slot + NUM_WAITING]

    def amounts(at: int) -> dict[str, int]:
        return {name: words[slot + at + number] for number, name in enumerate(names) if words[slot + at + number]}

    return MemberState(
        name=file.member_name(slot),
        pid=words[slot + PID],
        weight=file.floats[slot + WEIGHT],
        held=amounts(HELD),
        wanted=amounts(WANTED) if num_waiting else {},
        num_waiting=num_waiting,
        waits_s=max(0, now_ns - words[slot + WAITS_SINCE]) / 1e9 if num_waiting else None,
        num_starts=words[slot + NUM_STARTS],
    )
