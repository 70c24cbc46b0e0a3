# SPDX-License-Identifier: Apache-2.0
"""The shared ledger against a model that knows its rule only as a sentence: start by start, in the order of tags."""

import tempfile
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from serving.shared_budget.shared_ledger import SharedLedger

pytestmark = pytest.mark.slow

COUNTS = {"units": 5, "memory": 64}
PATIENCE_S = 1.0

# Powers of two, so that what the ledger computes in floating point is exact and the model can use fractions.
WORKS = st.sampled_from([0.25, 0.5, 1.0, 4.0])
AMOUNTS = st.one_of(
    st.fixed_dictionaries({"units": st.integers(1, 5)}),
    st.fixed_dictionaries({"memory": st.sampled_from([1, 20, 40, 64])}),
    st.fixed_dictionaries({"units": st.integers(1, 3), "memory": st.sampled_from([1, 20, 64])}),
)


@dataclass(eq=False)
class ModelMember:
    ledger: SharedLedger
    slot: int
    weight: Fraction
    tag: Fraction = Fraction(0)
    held: list[dict[str, int]] = field(default_factory=list)
    wanted: dict[str, int] = field(default_factory=dict)
    num_waiting: int = 0
    work: Fraction = Fraction(0)
    asked_s: float = 0.0
    is_backlogged: bool = False
    num_starts: int = 0

    def total(self, resource: str) -> int:
        return sum(amounts.get(resource, 0) for amounts in self.held)


class LedgerMachine(RuleBasedStateMachine):
    """Members join, ask, release, withdraw, leave and die; time passes."""

    members: Bundle[ModelMember] = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now_s = 0.0
        self.living: list[ModelMember] = []
        self.newest_start = Fraction(0)
        self.high_water = dict.fromkeys(COUNTS, 0)

    def teardown(self) -> None:
        for member in self.living:
            member.ledger.close()
        self.folder.cleanup()

    @initialize(target=members)
    def begin(self) -> MultipleResults[ModelMember]:
        return multiple(*(self.join(weight) for weight in (1, 2, 1)))

    @rule(target=members, weight=st.sampled_from([1, 2, 4]))
    def join_later(self, weight: int) -> ModelMember:
        return self.join(weight)

    def join(self, weight: int) -> ModelMember:
        if not self.living:
            self.newest_start, self.high_water = Fraction(0), dict.fromkeys(COUNTS, 0)
        slots = {member.slot for member in self.living}
        slot = next(number for number in range(len(slots) + 1) if number not in slots)
        ledger = SharedLedger(
            Path(self.folder.name) / "ledger", member=f"m{slot}", weight=weight, counts=COUNTS,
            monotonic_s=lambda: self.now_s,
        )  # fmt: skip
        member = ModelMember(ledger, slot, Fraction(weight))
        self.living.append(member)
        return member

    @rule(member=members, work=WORKS, num_waiting=st.integers(1, 8))
    def ask_for_a_unit(self, member: ModelMember, work: float, num_waiting: int) -> None:
        self.ask(member, {"units": 1}, work, num_waiting)

    @rule(member=members, amounts=AMOUNTS, work=WORKS, num_waiting=st.integers(1, 4))
    def ask_for_much(self, member: ModelMember, amounts: dict[str, int], work: float, num_waiting: int) -> None:
        self.ask(member, amounts, work, num_waiting)

    def ask(self, member: ModelMember, amounts: dict[str, int], work: float, num_waiting: int) -> None:
        if not member.is_backlogged:
            member.tag = max(member.tag, self.newest_start)
        is_granted = self.may_start(member, amounts)
        assert member.ledger.try_acquire(amounts, work=work, num_waiting=num_waiting) == is_granted
        member.wanted, member.work, member.asked_s = amounts, Fraction(work), self.now_s
        member.num_waiting = num_waiting - is_granted
        if is_granted:
            self.newest_start = max(self.newest_start, member.tag)
            member.tag += Fraction(work) / member.weight
            member.held.append(amounts)
            member.num_starts += 1
        else:
            member.is_backlogged = True

    def may_start(self, member: ModelMember, amounts: dict[str, int]) -> bool:
        kept = dict.fromkeys(COUNTS, 0)
        for other in self.living:
            if other is member or self.now_s - other.asked_s > PATIENCE_S:
                continue
            tag = other.tag
            for _ in range(other.num_waiting):
                if (tag, other.slot) < (member.tag, member.slot):
                    for resource, amount in other.wanted.items():
                        kept[resource] += amount
                tag += other.work / other.weight
        held = {resource: sum(each.total(resource) for each in self.living) for resource in COUNTS}
        return all(amount + held[name] + kept[name] <= COUNTS[name] for name, amount in amounts.items())

    @rule(member=members, which=st.integers(0, 100))
    def release(self, member: ModelMember, which: int) -> None:
        if member.held:
            member.ledger.release(member.held.pop(which % len(member.held)))

    @rule(member=members)
    def withdraw(self, member: ModelMember) -> None:
        member.ledger.withdraw()
        member.num_waiting, member.is_backlogged = 0, False

    @rule(member=members, work=st.sampled_from([-0.25, 2.0]))
    def charge(self, member: ModelMember, work: float) -> None:
        member.ledger.charge(work)
        member.tag += Fraction(work) / member.weight

    @precondition(lambda self: len(self.living) > 2)
    @rule(member=consumes(members), is_killed=st.booleans())
    def end(self, member: ModelMember, is_killed: bool) -> None:
        self.living.remove(member)
        if is_killed:
            member.ledger._file.leave_to_parent()  # its locks are gone, its words stay
        else:
            member.ledger.close()

    @rule(duration_s=st.sampled_from([0.125, 0.75, 2.0]))
    def wait(self, duration_s: float) -> None:
        self.now_s += duration_s

    @invariant()
    def no_more_is_held_than_there_is(self) -> None:
        for resource, count in COUNTS.items():
            held = sum(member.total(resource) for member in self.living)
            assert held <= count
            self.high_water[resource] = max(self.high_water[resource], held)

    @rule(member=members)
    def look(self, member: ModelMember) -> None:  # no invariant, for whoever looks sweeps out the dead
        for resource, use in member.ledger.resources().items():
            held = sum(each.total(resource) for each in self.living)
            assert (use.held, use.high_water) == (held, self.high_water[resource])
        seen = {state.name: state for state in member.ledger.members()}
        assert len(seen) == len(self.living)
        for each in self.living:
            state = seen[f"m{each.slot}"]
            assert state.held == {name: total for name in COUNTS if (total := each.total(name))}
            assert (state.num_waiting, state.num_starts) == (each.num_waiting, each.num_starts)
            assert state.wanted == (each.wanted if each.num_waiting else {})


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=50)
