# SPDX-License-Identifier: Apache-2.0
"""Tests of the shared ledger: never more held than there is, shares by weight, nothing lost with a member that dies."""

import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ledger_witness
import pytest
from manual_clock import ManualClock

import serving.shared_budget.shared_ledger
from serving.shared_budget import ledger_file
from serving.shared_budget.ledger_file import LedgerFile
from serving.shared_budget.shared_ledger import SharedLedger
from trireme.base.errors import ServerError, SpecError
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow


class Members:
    """The members of one ledger, on one clock."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, ManualClock()
        self.joined: list[SharedLedger] = []

    def join(self, name: str, weight: float = 1.0, **counts: int) -> SharedLedger:
        ledger = SharedLedger(
            self.path, member=name, weight=weight, counts=counts or {"units": 4}, monotonic_s=self.clock
        )
        self.joined.append(ledger)
        return ledger


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    made = Members(tmp_path / "ledger")
    yield made
    for ledger in made.joined:
        ledger.close()


def die(ledger: SharedLedger) -> None:
    """Leave a ledger as the kernel does for a killed process: its locks are gone, its words stay."""
    ledger._file.leave_to_parent()


def test_no_more_is_held_than_there_is_and_what_is_given_back_is_there_for_the_others(members: Members) -> None:
    one, other = members.join("one"), members.join("other")
    assert one.try_acquire({"units": 3})
    assert not other.try_acquire({"units": 2})
    assert other.try_acquire({"units": 1})
    assert other.resources()["units"].held == 4
    one.release({"units": 3})
    assert other.try_acquire({"units": 3})
    assert one.resources()["units"].high_water == 4
    assert other.held() == {"units": 4}


def test_amounts_of_several_resources_are_held_together_or_not_at_all(members: Members) -> None:
    one, other = (members.join(name, streams=4, memory=80) for name in ("one", "other"))
    assert one.try_acquire({"streams": 1, "memory": 60})
    assert not other.try_acquire({"streams": 1, "memory": 30})
    assert other.held() == {"streams": 0, "memory": 0}


def test_everybody_sees_who_holds_and_who_wants_what_since_when(members: Members) -> None:
    one, other = members.join("one", 2.0, memory=80), members.join("other", memory=80)
    assert one.try_acquire({"memory": 60})
    assert not other.try_acquire({"memory": 70})
    members.clock.now_s += 0.5
    first, second = one.members()
    assert (first.name, first.weight, first.held, first.wanted, first.waits_s) == ("one", 2.0, {"memory": 60}, {}, None)
    assert (second.name, second.pid, second.held) == ("other", os.getpid(), {})
    assert (second.wanted, second.waits_s, second.num_starts) == ({"memory": 70}, 0.5, 0)
    other.withdraw()
    assert one.members()[1].wanted == {}


def test_a_member_that_wants_much_is_not_passed_by_those_that_want_little(members: Members) -> None:
    large, small = members.join("large"), members.join("small")
    for _ in range(4):
        assert small.try_acquire({"units": 1})
    assert not large.try_acquire({"units": 4})
    for _ in range(3):
        small.release({"units": 1})
        assert not small.try_acquire({"units": 1})  # what comes free is kept
        assert not large.try_acquire({"units": 4})
    small.release({"units": 1})
    assert large.try_acquire({"units": 4})


def test_what_one_waits_for_does_not_hold_up_those_who_want_something_else(members: Members) -> None:
    one = members.join("one", streams=4, memory=80)
    other = members.join("other", streams=4, memory=80)
    third = members.join("third", streams=4)
    assert one.try_acquire({"memory": 80})
    assert not other.try_acquire({"memory": 10})
    assert third.try_acquire({"streams": 4})


def test_the_wish_of_a_member_that_hangs_keeps_no_room_free_for_long(members: Members) -> None:
    hung, other = members.join("hung"), members.join("other")
    assert other.try_acquire({"units": 1})
    assert not hung.try_acquire({"units": 4})
    members.clock.now_s += 0.9
    assert not other.try_acquire({"units": 1})
    members.clock.now_s += 0.2
    assert other.try_acquire({"units": 1})


def starts_under_saturation(
    ledgers: dict[str, SharedLedger], clock: ManualClock, *, num_steps: int, units: int
) -> Counter[str]:
    """Return the starts of members that each want one unit more at any time; each unit is held for `units` steps."""
    running: deque[tuple[int, str]] = deque()
    starts: Counter[str] = Counter()
    for step in range(num_steps):
        clock.now_s += 0.01
        while running and running[0][0] <= step:
            ledgers[running.popleft()[1]].release({"units": 1})
        for name, ledger in random.Random(step).sample(sorted(ledgers.items()), len(ledgers)):
            while ledger.try_acquire({"units": 1}, num_waiting=units):
                starts[name] += 1
                running.append((step + units, name))
    return starts


@pytest.mark.parametrize("units", [1, 4, 16], ids="{} units".format)
def test_starts_are_in_proportion_to_weights_while_all_want_more(members: Members, units: int) -> None:
    ledgers = {name: members.join(name, weight, units=units) for name, weight in (("a", 1), ("b", 2), ("c", 4))}
    starts = starts_under_saturation(ledgers, members.clock, num_steps=1400, units=units)
    total = starts.total()
    assert total > 1300  # little lies idle: those whose turn it is ask in the next step
    # Nobody is further from his share than what comes free at once, however long it goes on.
    for name, weight in (("a", 1), ("b", 2), ("c", 4)):
        assert starts[name] == pytest.approx(total * weight / 7, abs=units + 2)


def test_the_share_of_an_idle_member_is_used_and_given_back_and_not_owed(members: Members) -> None:
    a, b = members.join("a"), members.join("b")
    starts_under_saturation({"a": a}, members.clock, num_steps=400, units=4)
    a.release(a.held())
    assert [member.num_starts for member in a.members()] == [400, 0]
    a.withdraw()
    both = starts_under_saturation({"a": a, "b": b}, members.clock, num_steps=100, units=4)
    assert both["a"] == pytest.approx(both["b"], abs=2)


def test_work_that_was_more_than_expected_counts_afterwards(members: Members) -> None:
    ledgers = {name: members.join(name, units=1) for name in ("a", "b")}
    starts: Counter[str] = Counter()
    for _ in range(400):
        for name, work in (
            ("a", 3.0),
            ("b", 1.0),
        ):  # both want one more all the time; a's turn out to be three times as long
            if ledgers[name].try_acquire({"units": 1}, work=2.0, num_waiting=2):
                starts[name] += 1
                ledgers[name].charge(work - 2.0)
                ledgers[name].release({"units": 1})
    assert starts["b"] == pytest.approx(3 * starts["a"], abs=3)


def test_a_member_that_dies_frees_what_it_held_and_wanted(members: Members) -> None:
    one, other, third = (members.join(name) for name in ("one", "other", "third"))
    assert one.try_acquire({"units": 4})
    assert not other.try_acquire({"units": 4})
    die(one)
    die(other)
    assert third.try_acquire({"units": 4})
    assert [member.name for member in third.members()] == ["third"]
    fourth = members.join("fourth")
    assert not fourth.try_acquire({"units": 1})


def test_another_count_is_refused_while_somebody_uses_the_resource(members: Members) -> None:
    one = members.join("one", units=4)
    members.join("two", memory=80)
    with pytest.raises(SpecError, match="resource units: count 5 here and 4 in one; all models of a server must name"):
        members.join("three", units=5)
    one.close()
    members.joined.remove(one)
    assert members.join("three", units=5).try_acquire({"units": 5})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"member": ""}, "'' is no name"),
        ({"member": "a" * 73}, "is no name for a ledger: 1 to 72 bytes"),
        ({"weight": 0.0}, "weight 0 must be above 0"),
        ({"weight": float("inf")}, "weight inf must be"),
        ({"counts": {"units": 0}}, "resource units: count 0 must be at least 1"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    arguments: dict[str, Any] = {"member": "m", "weight": 1.0, "counts": {"units": 1}} | changes
    with pytest.raises(SpecError, match=named):
        SharedLedger(tmp_path / "ledger", **arguments)


def test_an_amount_that_can_never_be_held_is_refused_by_name(members: Members) -> None:
    ledger = members.join("one")
    with pytest.raises(SpecError, match="5 of units can never be held; there are 4"):
        ledger.try_acquire({"units": 5})
    with pytest.raises(SpecError, match="no resource 'memory' here; there are units"):
        ledger.try_acquire({"memory": 1})


def test_there_is_room_for_so_many_members_and_resources(members: Members) -> None:
    for number in range(ledger_file.MAX_MEMBERS):
        members.join(f"m{number}")
    with pytest.raises(ServerError, match="has 64 members already"):
        members.join("one more")
    members.joined.pop().close()
    with pytest.raises(ServerError, match="has 32 resources already"):
        members.join("greedy", **{f"r{number}": 1 for number in range(ledger_file.MAX_RESOURCES)})
    assert members.join("last").try_acquire({"units": 4})


def test_a_file_of_another_layout_is_emptied_by_the_first_member(members: Members) -> None:
    members.path.write_bytes(b"\xff" * 50_000)
    assert members.join("one").resources()["units"].high_water == 0


def test_a_member_that_was_stopped_with_the_lock_holds_nobody_up(members: Members) -> None:
    stopped, other = members.join("stopped"), members.join("other")
    assert other.try_acquire({"units": 1})
    assert stopped._file.try_lock(timeout_s=0)
    assert not other.try_acquire({"units": 1})  # not now
    other.release({"units": 1})
    die(stopped)
    assert other.try_acquire({"units": 4})


class Killed(BaseException):
    """A stand-in for the death of a process."""


class FatalWords:
    """The words of a file, until a given number has been written."""

    def __init__(self, words: Any, left: list[int]) -> None:
        self._words, self._left = words, left

    def __getitem__(self, at: int) -> Any:
        return self._words[at]

    def __setitem__(self, at: int, value: Any) -> None:
        if self._left[0] == 0:
            raise Killed
        self._left[0] -= 1
        self._words[at] = value

    def __len__(self) -> int:
        return len(self._words)

    def release(self) -> None:
        self._words.release()


def words_of(
    operation: str, members: Members, monkeypatch: pytest.MonkeyPatch, *, killed_after: int = 10**9
) -> int | None:
    """Return the number of words that an operation writes; None: it was killed before its end."""
    num_words = killed_after
    left = [10**9]

    class FatalFile(LedgerFile):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.words, self.floats = FatalWords(self.words, left), FatalWords(self.floats, left)  # type: ignore[assignment]

        def close(self) -> None:  # a killed process closes nothing
            self.leave_to_parent()

    with monkeypatch.context() as patched:
        patched.setattr(serving.shared_budget.shared_ledger, "LedgerFile", FatalFile)
        try:
            if operation == "join":
                left[0] = num_words
            ledger = SharedLedger(members.path, member="fatal", weight=1, counts={"units": 4, "more": 9})
            if operation == "acquire":
                left[0] = num_words
                assert ledger.try_acquire({"units": 2, "more": 3})
            elif operation == "be refused":
                left[0] = num_words
                assert not ledger.try_acquire({"units": 4})
            elif operation == "release":
                assert ledger.try_acquire({"units": 2, "more": 3})
                left[0] = num_words
                ledger.release({"units": 2, "more": 3})
        except Killed:
            return None
        finally:
            if operation != "join" or left[0]:
                ledger._file.leave_to_parent()
    return num_words - left[0]


OPERATIONS = [(each, True) for each in ("join", "acquire", "be refused", "release")]
OPERATIONS += [(each, False) for each in ("join", "acquire", "release")]  # alone nobody is refused
SOAK = [pytest.param("join", False, 1, marks=pytest.mark.soak)]  # the first member empties the file: thousands of words


@pytest.mark.parametrize(("operation", "has_others", "step"), [*((*each, 13) for each in OPERATIONS), *SOAK])
def test_a_member_killed_at_any_word_leaves_nothing_torn(
    members: Members, operation: str, has_others: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Killed at each of the first and last twenty words, and at each `step`th between.
    other = members.join("other") if has_others else None
    if other is not None:
        assert other.try_acquire({"units": 1})

    def check() -> None:
        witness = SharedLedger(members.path, member="witness", weight=1, counts={"units": 4, "more": 9})
        rest = 3 if has_others else 4
        assert {member.name for member in witness.members()} - {"other"} == {"witness"}
        assert witness.try_acquire({"units": rest, "more": 9})
        assert not witness.try_acquire({"units": 1})
        assert witness.resources()["units"].held == 4
        witness.close()

    words_of(operation, members, monkeypatch)  # the first finds no traces of another
    check()
    num_words = words_of(operation, members, monkeypatch)
    check()
    assert num_words is not None
    assert num_words >= (2 if operation == "release" else 4)
    for word in range(num_words):
        if word < 20 or word >= num_words - 20 or word % step == 0:
            assert words_of(operation, members, monkeypatch, killed_after=word) is None
            check()


def run_witnesses(folder: Path, *, num_kills: int, seed: int) -> None:
    """Run four processes at a time, each killed at a random moment and followed by another."""
    rng = random.Random(seed)
    env = {**os.environ, "PYTHONPATH": str(CODE_ROOT)}

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, ledger_witness.__file__, str(folder), f"w{number}", str(seed * 1_000_003 + number)]
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE)

    running = [start(number) for number in range(4)]
    try:
        for number in range(num_kills):
            time.sleep(rng.uniform(0.05, 0.3))
            victim = running.pop(rng.randrange(len(running)))
            victim.kill()
            _, output = victim.communicate()
            assert victim.returncode == -9, output
            running.append(start(4 + number))
        watcher = SharedLedger(folder / "ledger", member="watcher", weight=1, counts=ledger_witness.COUNTS)
        before = sum(member.num_starts for member in watcher.members())
        deadline_s = time.monotonic() + 30
        while sum(member.num_starts for member in watcher.members()) < before + 100:  # they go on
            assert time.monotonic() < deadline_s, watcher.members()
            time.sleep(0.01)
    finally:
        for process in running:
            process.kill()
            _, output = process.communicate()
            assert not output, output
    assert [member.name for member in watcher.members()] == ["watcher"]
    assert all(use.held == 0 and use.high_water <= use.count for use in watcher.resources().values())
    assert watcher.try_acquire(ledger_witness.COUNTS)
    watcher.close()


def test_processes_killed_at_random_moments_never_hold_more_than_there_is(tmp_path: Path) -> None:
    run_witnesses(tmp_path, num_kills=25, seed=5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_thousand_processes_killed_at_random_moments_never_hold_more_than_there_is(tmp_path: Path) -> None:
    run_witnesses(tmp_path, num_kills=2000, seed=6)


def test_a_child_that_was_forked_does_not_hold_what_its_dead_parent_held(members: Members) -> None:
    held = members.join("parent")
    assert held.try_acquire({"units": 4})
    theirs, ours = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        theirs.send(b"!")
        theirs.recv(1)  # until the test is over
        os._exit(0)
    theirs.close()
    with ours:
        ours.recv(1)
        die(held)
        assert members.join("other").try_acquire({"units": 4})
    os.waitpid(child, 0)
