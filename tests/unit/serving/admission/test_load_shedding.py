# SPDX-License-Identifier: Apache-2.0
"""Tests of load shedding: what is given up under load, level by level, in virtual time."""

import heapq
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from admission_runs import AdmissionRun, request, small_engine
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ensemble_configs.spec.admission_spec import AdmissionSpec, LoadSheddingSpec, SloSpec
from serving.admission.budget import KvBudget
from serving.admission.load_shedding import LoadShedding
from serving.admission.offered_load import OfferedLoad

pytestmark = pytest.mark.slow

CAP = {"action": "cap_max_tokens", "priority_class": "batch", "max_tokens": 4, "enter": 1.1, "leave": 0.8}
NO_BATCH = {"action": "refuse", "priority_class": "batch", "enter": 1.4, "leave": 1.0}
NO_STANDARD = {"action": "refuse", "priority_class": "standard", "enter": 2.5, "leave": 1.8}
MIN_STEP_S = 2.0
LADDER = {"window_s": 2.0, "min_step_s": MIN_STEP_S, "steps": [CAP, NO_BATCH, NO_STANDARD]}
CAPACITY_PER_S = 200.0  # 16 seats, each for 8 steps of 10 ms
REFUSED_AT = {3: 2, 2: 3}  # by class: the step from which on it is not let in


@dataclass
class Shedding:
    """A run under a load that changes, and the load-shedding levels that it entered."""

    run: AdmissionRun = field(
        default_factory=lambda: AdmissionRun(
            AdmissionSpec.model_validate({"ladder": LADDER}),
            small_engine(num_kv_blocks=256, decode_us_per_seq=0.0, prefill_us_per_token=0.0),
        )
    )
    changes: list[tuple[float, int]] = field(default_factory=list)  # when, and the step since then
    shed: list[tuple[int, int]] = field(default_factory=list)  # class and step of those that were not let in
    key: int = 0

    @property
    def step(self) -> int:
        found = self.run.engine.stats().admission
        assert found is not None
        assert found.degradation_step is not None
        return found.degradation_step

    def go(self, seconds: float, load_at: Callable[[float], float], seed: int = 1) -> None:
        rng, clock = random.Random(seed), self.run.clock
        end_s, next_s = clock.now_s() + seconds, clock.now_s()
        while clock.now_s() < end_s:
            while next_s <= clock.now_s():
                self.arrive(rng.choices([1, 2, 3], [2, 5, 3])[0])
                next_s += rng.expovariate(CAPACITY_PER_S * max(0.01, load_at(next_s)))
            if self.run.engine.has_work:
                self.run.step()
            else:
                clock.sleep_s(min(0.1, next_s - clock.now_s()))
                self.run.engine.step()  # as the loop of an idle engine does
            self.note()

    def arrive(self, priority: int) -> None:
        self.key += 1
        use = self.run.engine.use()
        refusal = self.run.add(request(self.key, priority=priority, tenant=str(self.key % 4)))
        self.note()
        if refusal is not None and "reason=shedding" in refusal:
            self.shed.append((priority, self.step))
        if refusal is None and priority in REFUSED_AT:
            assert self.step < REFUSED_AT[priority] or use < 0.75, "it should have been refused"

    def note(self) -> None:
        before = self.changes[-1][1] if self.changes else 0
        if self.step != before:
            assert abs(self.step - before) == 1, "one step at a time"
            self.changes.append((self.run.clock.now_s(), self.step))

    def check(self) -> None:
        times = [at for at, _ in self.changes]
        apart_s = [after - before for before, after in itertools.pairwise(times)]
        assert min(apart_s, default=math.inf) >= MIN_STEP_S - 0.02  # noted when a step of the engine is over
        assert all(priority in REFUSED_AT and step >= REFUSED_AT[priority] for priority, step in self.shed)
        self.run.drain()


def test_what_is_given_up_follows_the_load_up_and_down() -> None:
    found = Shedding()
    found.go(5, lambda _: 0.5)
    assert found.step == 0
    found.go(10, lambda _: 1.25)
    assert found.step == 1
    found.go(10, lambda _: 2.0)
    assert found.step == 2
    found.go(10, lambda _: 4.0)
    assert found.step == 3
    found.go(20, lambda _: 0.5)
    assert [step for _, step in found.changes] == [1, 2, 3, 2, 1, 0]
    found.check()
    asked, output, ends = found.run.asked, found.run.output, found.run.ends
    for priority, lengths in ((1, {8}), (2, {8}), (3, {4, 8})):
        own = [key for key, one in asked.items() if one.scheduling.priority == priority and ends[key] == "length"]
        assert {len(output[key]) for key in own} == lengths


def test_an_engine_stands_idle_for_nobody_though_all_come_back_when_they_are_told() -> None:
    # 60 clients of a class that is refused from level 3 on; each asks again exactly when it is told to.
    found = Shedding()
    found.run = AdmissionRun(found.run.spec, found.run.engine_spec, SloSpec(ttft_ms=60.0))
    clock, engine = found.run.clock, found.run.engine
    due = [(0.0, client) for client in range(60)]
    heapq.heapify(due)
    idle_s = 0.0
    running: dict[int, int] = {}  # the client of each request
    while clock.now_s() < 30.0:
        while due and due[0][0] <= clock.now_s():
            _, client = heapq.heappop(due)
            found.key += 1
            refusal = found.run.add(request(found.key, priority=2, tenant="a"))
            if refusal is None:
                running[found.key] = client
            else:
                heapq.heappush(due, (clock.now_s() + hint_s(refusal), client))
        if engine.has_work:
            found.run.step()
        else:
            idle_s += 0.01
            clock.sleep_s(0.01)
            engine.step()
        for key in [key for key in running if key in found.run.ends]:
            heapq.heappush(due, (clock.now_s(), running.pop(key)))
    assert found.step > 0, "there was something to shed"
    assert idle_s < 3.0
    assert len(found.run.ends) > 0.5 * CAPACITY_PER_S * 30


def hint_s(refusal: str) -> float:
    match = re.search(r"retry_after_ms=(\d+)", refusal)
    assert match is not None, refusal
    return int(match[1]) / 1000


def test_those_who_are_shed_are_not_told_to_come_back_all_at_once() -> None:
    found = Shedding()
    found.go(20, lambda _: 4.0)
    hints = [hint_s(str(found.run.add(request(10**6 + n, priority=3)))) for n in range(20)]
    assert max(hints) - min(hints) > 0.7 * (MIN_STEP_S + 2.0)


def test_who_is_shed_is_told_why_and_when_to_come_back() -> None:
    found = Shedding()
    found.go(12, lambda _: 2.0)
    refusal = str(found.run.add(request(10**6, priority=3)))
    assert "[UNAVAILABLE reason=shedding retry_after_ms=" in refusal
    assert "batch requests are not let in while" in refusal
    hint_s = int(refusal.split("retry_after_ms=")[1].split("]", maxsplit=1)[0]) / 1000
    found.run.drain()
    found.run.clock.sleep_s(hint_s + 0.1)
    found.run.engine.step()
    assert found.run.add(request(10**6 + 1, priority=3)) is None
    stats = found.run.engine.stats().admission
    assert stats is not None
    assert stats.num_refused["batch shedding"] == len(found.shed) + 1
    found.check()


def test_a_load_that_swings_between_enter_and_leave_changes_nothing() -> None:
    found = Shedding()
    found.go(10, lambda _: 1.7)
    assert found.step == 2
    found.changes.clear()
    found.changes.append((found.run.clock.now_s(), 2))
    found.go(40, lambda at: 1.55 + 0.35 * math.sin(4 * at))  # faded over 2 s it stays within 1.3 and 1.8
    assert len(found.changes) == 1
    found.check()


_SWINGS_S = (1.0, 8.0, *(pytest.param(period_s, marks=pytest.mark.soak) for period_s in (0.3, 3.0)))


@pytest.mark.parametrize("period_s", _SWINGS_S)
def test_no_swing_makes_it_flap(period_s: float) -> None:
    found = Shedding()
    found.go(40, lambda at: 4.0 if at % period_s < period_s / 2 else 0.1)
    assert len(found.changes) <= 40 / MIN_STEP_S
    assert any(priority == 3 for priority, _ in found.shed)
    found.check()


class Given(OfferedLoad):
    """A load that a test sets."""

    def __init__(self) -> None:
        super().__init__(KvBudget(num_blocks=1, block_tokens=1, max_num_seqs=1), 1.0)
        self.load = 0.0

    def at(self, now_s: float) -> float:
        del now_s
        return self.load


def moments() -> st.SearchStrategy[list[tuple[float, float]]]:
    return st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 4.0)), max_size=60)


@given(moments())
def test_whatever_the_load_does_steps_keep_their_order_their_time_and_their_thresholds(
    found: list[tuple[float, float]],
) -> None:
    load = Given()
    spec = LoadSheddingSpec.model_validate(LADDER)
    ladder = LoadShedding(spec, load)
    now_s, changed_s = 0.0, -math.inf
    for pause_s, load.load in found:
        now_s += pause_s
        before = ladder.step
        ladder.update(now_s)
        if ladder.step != before:
            assert now_s - changed_s >= MIN_STEP_S
            changed_s = now_s
        if ladder.step > before:
            assert (ladder.step, load.load >= spec.steps[before].enter) == (before + 1, True)
        if ladder.step < before:
            assert (ladder.step, load.load < spec.steps[before - 1].leave) == (before - 1, True)
        premium = request(1, max_tokens=100, priority=1)
        assert ladder.applied(premium, now_s, use=1.0) is premium


def test_the_offered_load_is_the_seats_that_all_that_arrive_would_take() -> None:
    load = OfferedLoad(KvBudget(num_blocks=1000, block_tokens=1, max_num_seqs=10), 5.0)
    for i in range(4000):
        load.note(i / 40, stay_s=0.5, num_tokens=10)  # 40/s of half a second: 20 at once, of 10
    assert load.at(100.0) == pytest.approx(2.0, rel=0.02)
    assert load.seconds_until(1.0, 100.0) == pytest.approx(5 * math.log(2), rel=0.02)
    for i in range(4000):
        load.note(100 + i / 40, stay_s=0.5, num_tokens=200)  # 4000 tokens of 1000
    assert load.at(200.0) == pytest.approx(4.0, rel=0.02)


def wrong_ladders() -> Iterator[tuple[list[dict[str, object]], str]]:
    yield [], "at least 1 item"
    yield [CAP | {"leave": 1.1}], r"leave \(1.1\) must be below enter \(1.1\)"
    yield [NO_BATCH, CAP], r"steps\[1\] must not be entered or left at a lower load"
    yield [NO_BATCH | {"priority_class": "standard"}], "batch before standard; got"
    yield [NO_BATCH | {"priority_class": "premium"}], "Input should be 'batch' or 'standard'"
    yield [NO_BATCH, NO_BATCH], "a class is refused once"
    yield [NO_BATCH | {"action": "sleep"}], "'cap_max_tokens', 'refuse'"
    yield [NO_BATCH | {"max_tokens": 3}], "Extra inputs are not permitted"


@pytest.mark.parametrize(("steps", "message"), list(wrong_ladders()))
def test_a_ladder_that_could_not_work_is_refused(steps: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LoadSheddingSpec.model_validate({"steps": steps})
