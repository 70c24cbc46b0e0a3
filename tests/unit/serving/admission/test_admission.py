# SPDX-License-Identifier: Apache-2.0
"""Tests of which request runs next, which waits and which is refused, on the simulated engine in virtual time."""

import math
import random
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from admission_runs import AdmissionRun, random_run, request, small_engine, summary
from telling_engine import TellingEngine

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.admission.batch_prefill import BatchPrefill
from serving.admission.budget import KvBudget
from serving.admission.fair_shares import Backlog
from serving.admission.queued_request import QueuedRequest
from serving.admission.wait_estimate import WaitEstimate
from serving.engines.seam.base import FinishReason, PerfMetrics, TokenChunk
from serving.engines.seam.paged_batch import PlannedStep
from serving.engines.seam.scheduling import Priority
from serving.engines.simulated.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.slow


def spec(**parts: object) -> AdmissionSpec:
    return AdmissionSpec.model_validate(parts)


@pytest.mark.parametrize("seed", range(8))
def test_at_every_moment_of_a_random_load_the_budget_holds_and_each_request_ends_once(seed: int) -> None:
    ends = summary(random_run(seed, 1500))
    assert ends["stop"] + ends["length"] > 100
    assert ends["UNAVAILABLE"] > 0
    assert ends["cancelled"] > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_million_requests_keep_the_budget_at_every_moment(seed: int) -> None:
    assert sum(summary(random_run(seed, 50_000)).values()) == 50_000


def test_what_is_preempted_goes_on_where_it_was_stopped() -> None:
    learned = spec(budget={"forecast": "learned", "forecast_quantile": 0.3})
    run = random_run(5, 4000, budget=learned.budget.model_dump(), queue={"policy": "fifo"})
    assert run.engine.num_preemptions > 20
    alone = AdmissionRun()
    checked = 0
    for key, how in run.ends.items():
        if how not in ("stop", "length") or checked == 300:
            continue
        alone.add(request(key, len(run.asked[key].input_ids), run.asked[key].sampling.max_tokens, end_id=20))
        alone.drain()
        assert alone.output[key] == run.output[key]
        checked += 1
    assert checked == 300


def seat(**changes: object) -> AdmissionRun:
    """Return a run with one request at a time, each of which takes 8 steps of 10 ms and a little."""
    parts = dict(changes)
    slo = SloSpec.model_validate(parts.pop("slo", {}))
    return AdmissionRun(spec(**parts), small_engine(max_num_seqs=1), slo)


def started_order(run: AdmissionRun) -> list[int]:
    run.drain()
    return run.started


def test_higher_classes_start_first_and_a_class_in_order_of_arrival() -> None:
    run = seat()
    for key, priority in enumerate([3, 2, 1, 3, 2, 1]):
        run.add(request(key, priority=priority))
    assert started_order(run) == [2, 5, 1, 4, 0, 3]


def test_fifo_starts_in_order_of_arrival_whatever_the_class() -> None:
    run = seat(queue={"policy": "fifo"})
    for key, priority in enumerate([3, 2, 1]):
        run.add(request(key, priority=priority))
    assert started_order(run) == [0, 1, 2]


def test_tenants_share_by_weight_however_many_requests_each_has_waiting() -> None:
    run = seat(queue={"tenant_weights": {"large": 3.0}})
    for key in range(100):
        run.add(request(key, tenant="flood"))
    for key in range(100, 120):
        run.add(request(key, tenant="large"))
    for key in range(200, 207):
        run.add(request(key, tenant="small"))
    first = started_order(run)[:35]
    assert sum(key >= 200 for key in first) == 7
    assert sum(100 <= key < 200 for key in first) >= 19


def test_who_comes_back_has_not_saved_up_turns() -> None:
    run = seat()
    for key in range(40):
        run.add(request(key, tenant="always"))
    for _ in range(200):
        run.step()
    num_started = len(run.started)
    for key in range(100, 110):
        run.add(request(key, tenant="new"))
    run.drain()
    after = run.started[num_started : num_started + 10]
    assert sum(key >= 100 for key in after) == 5


def test_the_shortest_goes_first_if_asked() -> None:
    run = seat(queue={"is_shortest_first": True})
    for key, max_tokens in enumerate([40, 10, 30, 20]):
        run.add(request(key, max_tokens=max_tokens))
    assert started_order(run) == [1, 3, 2, 0]


@pytest.mark.parametrize(("ageing_s", "is_starved"), [(1.0, False), (0.0, True)])
def test_who_has_waited_long_is_not_passed_for_ever(ageing_s: float, is_starved: bool) -> None:
    run = seat(queue={"ageing_s": ageing_s})
    run.add(request(0, priority=3))
    for key in range(1, 100):
        run.add(request(key, priority=1))
        while len(run.open) > 3:
            run.step()
    assert (0 in run.open) == is_starved


def test_the_aged_take_a_fourth_of_the_starts_and_no_more() -> None:
    run = seat(queue={"ageing_s": 0.001})
    for key in range(100):
        run.add(request(key, priority=3))
    for key in range(100, 140):
        run.add(request(key, priority=1))
    assert sum(key < 100 for key in started_order(run)[:40]) == 10


def test_a_large_request_is_not_passed_by_small_ones_of_its_class() -> None:
    run = AdmissionRun()
    for key in range(8):
        run.add(request(key, 32, 32))  # 8 of 64 blocks each
    run.step()
    run.add(request(8, 300, 100))
    for key in range(9, 20):
        run.add(request(key, 8, 8))
    order = started_order(run)
    assert order.index(8) == 8


def test_a_class_leaves_room_for_the_classes_above_it() -> None:
    run = AdmissionRun(spec(budget={"shares": {"standard": 0.75, "batch": 0.5}}))
    for key in range(64):
        run.add(request(key, priority=1 + key % 3, max_tokens=16))
    for key in (key for key in range(64) if key % 3 == 0):
        run.cancel(key)
    run.step()
    running = [key for key in run.started if key in run.open]
    assert len(running) == 12  # of 16 seats
    run.cancel(running[0])
    for key in (key for key in range(64) if key % 3 == 1 and key in run.open):
        run.cancel(key)
    for _ in range(3):
        run.step()
    assert run.num_running() == 8


def test_standard_requests_fill_the_engine_where_no_premium_ones_come() -> None:
    run = AdmissionRun(spec(budget={"shares": {"standard": 0.75, "batch": 0.5}}))
    for key in range(40):
        run.add(request(key, max_tokens=16))
    run.step()
    assert run.num_running() == 16
    run.drain()
    run.add(request(40, priority=1))
    for key in range(41, 80):
        run.add(request(key, max_tokens=16))
    run.step()
    assert run.num_running() == 12, "of standard so many that 12 run"
    run.drain()
    run.clock.sleep_s(60)
    for key in range(80, 120):
        run.add(request(key, max_tokens=16))
    run.step()
    assert run.num_running() == 16
    run.drain()


def test_a_request_that_could_never_run_is_refused_by_its_size() -> None:
    run = AdmissionRun(spec(budget={"max_tokens": 100}))
    refusal = run.add(request(1, 50, 52))
    assert refusal is not None
    assert refusal.startswith("[INVALID_ARG field=max_tokens value=52 max=100]")
    assert run.add(request(2, 50, 51)) is None  # the last token is never fed back
    run.drain()


def test_the_queue_is_bounded_by_requests_and_by_tokens_of_each_class() -> None:
    run = seat(queue={"max_requests": 10, "max_tokens": 100_000})
    refusals = [run.add(request(key, tenant=str(key))) for key in range(20)]
    assert [refusal is None for refusal in refusals] == [True] * 11 + [False] * 9, "one is about to start"
    assert "[UNAVAILABLE reason=queue_full retry_after_ms=" in str(refusals[11])
    assert run.add(request(100, priority=1)) is None  # another class has room of its own
    run.drain()
    run = seat(queue={"max_tokens": 100})
    refusals = [run.add(request(key, 20, 20, tenant=str(key))) for key in range(4)]
    assert [refusal is None for refusal in refusals] == [True, True, True, False]
    assert "80 tokens of standard requests wait already, of 100 for all" in str(refusals[3])
    run.drain()


def test_what_starts_with_the_next_step_does_not_count_as_waiting() -> None:
    run = AdmissionRun(spec(queue={"max_requests": 4}))  # 16 seats
    accepted = [run.add(request(key, tenant=str(key))) is None for key in range(40)]
    assert sum(accepted) == 20
    run.step()
    assert run.num_running() == 16
    assert run.add(request(100, tenant="late")) is not None
    run.drain()


def test_what_classes_above_took_is_forgotten_with_time_though_nothing_starts() -> None:
    budget = KvBudget(num_blocks=1000, block_tokens=8, max_num_seqs=10)
    estimate = WaitEstimate(budget, BatchPrefill(step_tokens=64, share=1.0))
    for key in range(10):
        budget.reserve(key, 80)
        estimate.note_start(Priority.PREMIUM, 0.0)
        estimate.ends.begin(key, num_output_tokens=10 + key)
    estimate.ends.note_step(0.01, tokens_per_seq=1.0)

    def wait_s(arrival_s: float) -> float:
        one = request(99)
        queued = QueuedRequest(
            request=one, arrival_s=arrival_s, priority=Priority.STANDARD, tenant="", num_queued_tokens=16,
            is_preemptible=False,
        )  # fmt: skip
        return estimate.wait_s(Backlog(), queued)

    assert wait_s(0.0) > 0.17, "premium takes ten of eleven"
    assert wait_s(30.0) == pytest.approx(0.09, abs=0.011), "the first that ends makes room"


def test_a_flood_of_one_tenant_leaves_the_others_room_to_wait() -> None:
    run = seat(queue={"max_requests": 100})
    accepted = [run.add(request(key, tenant="flood")) is None for key in range(200)]
    assert sum(accepted) == 81, "one is about to start"
    assert "tenant 'flood'" in str(run.add(request(300, tenant="flood")))
    assert all(run.add(request(key, tenant="other")) is None for key in range(400, 415))
    run.drain()


def after_warm_up(run: AdmissionRun) -> AdmissionRun:
    """Run requests until the time of a step is known, and the time of the first requests is forgotten."""
    for key in range(10_000, 10_005):
        run.add(request(key))
        run.drain()
    run.started.clear()
    return run


def test_who_would_get_its_first_token_too_late_is_refused_at_once_and_told_when_to_come_back() -> None:
    run = after_warm_up(seat(slo={"ttft_ms": 200}))
    refusals = [run.add(request(key)) for key in range(6)]  # each takes 80 ms
    assert [refusal is None for refusal in refusals[:3]] == [True] * 3
    assert "[UNAVAILABLE reason=overload retry_after_ms=" in str(refusals[3])
    hint_ms = int(str(refusals[3]).split("retry_after_ms=")[1].split("]")[0])
    assert hint_ms == pytest.approx(3 * 80 + 10 - 200, abs=3)  # three before it and a step, less its time
    until_s = run.clock.now_s() + hint_ms / 1000
    while run.clock.now_s() < until_s:
        run.step()
    assert run.add(request(6)) is None
    added_s = run.clock.now_s()
    run.drain()
    assert run.first_token_s[6] - added_s <= 0.2


def beside(run: AdmissionRun, after_s: float) -> dict[int, str]:
    """Return the errors told `after_s` seconds later, while the engine does not step."""
    run.clock.sleep_s(after_s)
    chunks = run.engine.refuse_late()
    for chunk in chunks:
        del run.open[chunk.key]
        run._end(chunk.key, "UNAVAILABLE")
    return {chunk.key: str(chunk.error) for chunk in chunks}


def test_who_has_no_room_when_it_is_to_be_decided_is_refused_then() -> None:
    run = after_warm_up(seat(slo={"ttft_ms": 500}))
    run.add(request(0))
    run.step()
    run.add(request(1))  # it would start in 80 ms, and might have its first token in time
    assert 0.0 < run.engine.next_late_in_s() <= 0.015
    assert beside(run, 0.014) == {}
    assert beside(run, 0.001)[1].startswith("[UNAVAILABLE reason=overload retry_after_ms=")
    assert run.engine.next_late_in_s() == math.inf
    run.drain()


def test_who_waits_for_nothing_but_the_end_of_a_step_is_not_refused_however_long_it_lasts() -> None:
    run = after_warm_up(seat(slo={"ttft_ms": 500}))
    run.add(request(1))
    for _ in range(5):
        assert beside(run, 0.015) == {}
    run.add(request(2, priority=1))  # it takes the seat
    assert list(beside(run, 0.015)) == [1]
    run.drain()
    assert run.ends[2] == "length"


def test_premium_waits_twice_as_long_for_a_seat() -> None:
    run = after_warm_up(seat(slo={"ttft_ms": 500}))
    run.add(request(0))
    run.step()
    run.add(request(1, priority=1))
    assert beside(run, 0.029) == {}
    assert list(beside(run, 0.001)) == [1]
    run.drain()


@pytest.mark.parametrize(
    "parts", [{"slo": {}}, {"slo": {"ttft_ms": 500}, "queue": {"refuse_within_ms": None}}], ids=["no target", "none"]
)
def test_who_may_wait_waits(parts: dict[str, Any]) -> None:
    run = after_warm_up(seat(**parts))
    run.add(request(0))
    run.step()
    run.add(request(1))
    assert beside(run, 0.060) == {}
    run.drain()
    assert run.ends[1] == "length"


@pytest.mark.parametrize("limit", ["deadline_ms", "queue_timeout_ms"])
def test_what_cannot_be_done_in_time_is_refused_at_once(limit: str) -> None:
    run = after_warm_up(seat())
    for key in range(10):
        run.add(request(key))
    within_300_ms: dict[str, Any] = {limit: 300.0}
    within_3_s: dict[str, Any] = {limit: 3000.0}
    assert "reason=overload" in str(run.add(request(10, **within_300_ms)))
    assert run.add(request(11, **within_3_s)) is None
    run.drain()
    assert run.ends[11] == "length"


def test_a_request_whose_time_passes_while_it_waits_is_told_so() -> None:
    run = seat()  # nothing is known yet: it is let in
    run.add(request(0, max_tokens=100))
    run.add(request(1, queue_timeout_ms=200.0))
    run.add(request(2, deadline_ms=300.0))
    errors = {chunk.key: chunk.error for _ in range(40) for chunk in run.step() if chunk.error}
    assert str(errors[1]).startswith("[DEADLINE reason=queue_timeout_ms]")
    assert str(errors[2]).startswith("[DEADLINE reason=deadline_ms]")
    run.drain()


def test_a_deadline_ends_a_running_request_and_a_queue_timeout_does_not() -> None:
    run = AdmissionRun()
    run.add(request(0, max_tokens=50, deadline_ms=200.0))
    run.add(request(1, max_tokens=50, queue_timeout_ms=200.0))
    run.drain()
    assert run.ends == {0: "DEADLINE", 1: "length"}
    assert len(run.output[0]) == 20, "steps of 10 ms in 200"


def most_at_once_when_warm(run: AdmissionRun) -> int:
    """Return the most requests at once in the engine, from the hundredth end on."""
    most = 0
    while run.engine.has_work:
        run.step()
        if len(run.ends) > 100:
            most = max(most, run.num_running())
    return most


def test_no_more_run_at_once_than_get_their_tokens_in_time() -> None:
    slow = small_engine(decode_us_per_seq=1000.0, num_kv_blocks=512)  # 10 ms + 1 ms a sequence
    run = AdmissionRun(engine_spec=slow, slo=SloSpec(tpot_ms=18.0))
    for key in range(300):
        run.add(request(key, max_tokens=20))
    assert most_at_once_when_warm(run) == 8
    without = AdmissionRun(engine_spec=slow)
    for key in range(30):
        without.add(request(key, max_tokens=20))
    without.step()
    assert without.num_running() == 16


def test_a_learned_forecast_lets_more_run_at_once() -> None:
    def most_at_once(forecast: str) -> int:
        run = AdmissionRun(spec(budget={"forecast": forecast, "forecast_quantile": 0.5}), small_engine(max_num_seqs=64))
        most = 0
        for key in range(200):
            run.add(request(key, 8, 200, end_id=20))
        while run.engine.has_work:
            run.step()
            most = max(most, run.num_running())
        return most

    assert most_at_once("learned") > 1.5 * most_at_once("max_tokens")


def test_what_the_engine_refuses_fails_alone_and_at_once() -> None:
    run = AdmissionRun()
    run.add(request(0))
    drafting = msgspec.structs.replace(request(2).sampling, num_draft_tokens=4)
    refusal = run.add(msgspec.structs.replace(request(2), sampling=drafting))
    assert str(refusal).startswith("[INVALID_ARG field=num_draft_tokens value=4 provider=simulated]")
    run.add(request(1))
    run.drain()
    assert run.ends == {0: "length", 1: "length", 2: "INVALID_ARG"}


def test_one_slow_first_token_does_not_refuse_everybody_after_it() -> None:
    run = AdmissionRun(slo=SloSpec(ttft_ms=100))
    run.add(request(0))
    run.clock.sleep_s(0.0)
    slow = run.inner.step

    def stalled() -> list[TokenChunk]:
        run.clock.sleep_s(30.0)
        return slow()

    run.inner.step = stalled  # type: ignore[method-assign]
    run.step()
    run.inner.step = slow  # type: ignore[method-assign]
    run.drain()
    for key in range(1, 50):
        run.add(request(key))
        run.drain()
    assert summary(run) == {"length": 50}


def test_a_tight_pace_is_learned_from_one_sequence_upwards() -> None:
    run = AdmissionRun(slo=SloSpec(tpot_ms=14.0))  # a step takes 10 ms and 50 us a sequence
    run.add(request(0, max_tokens=100))
    run.drain()
    for key in range(1, 100):
        run.add(request(key))
    most = 0
    while run.engine.has_work:
        run.step()
        most = max(most, run.num_running())
    assert most == 16


class Asked(SimulatedEngine):
    """Returns every 2 ms, mostly with nothing, as an engine does that steps by itself."""

    def step(self) -> list[TokenChunk]:
        if not self.has_work:
            return []
        if not hasattr(self, "_due_s"):
            self._due_s = self._clock.now_s()
        self._clock.sleep_s(0.002)
        if self._clock.now_s() < self._due_s:
            return []
        num_seqs = len(self._batch.running) or 1
        self._due_s = self._clock.now_s() + 0.010 + 0.001 * num_seqs
        return super().step()

    def _duration_s(self, step: PlannedStep) -> float:
        return 0.0 * len(step.decoding)


def test_an_engine_that_is_asked_more_often_than_it_steps_has_the_same_bounds() -> None:
    slow = small_engine(num_kv_blocks=512)
    run = AdmissionRun(engine_spec=slow, slo=SloSpec(tpot_ms=18.0))
    run.inner = Asked(slow, run.clock)
    run.engine = AdmittingEngine(run.inner, AdmissionSpec(), run.slo, run.clock)
    for key in range(300):
        run.add(request(key, max_tokens=20))
    assert most_at_once_when_warm(run) in {7, 8}


class Lingering(SimulatedEngine):
    """Keeps the blocks of a cancelled request for two more steps, as the seam allows."""

    _lingering: list[list[Any]]

    def cancel(self, key: int) -> None:
        lingering = self.__dict__.setdefault("_lingering", [])
        if (running := self._sequences.pop(key, None)) is not None:
            self._batch.running = [one for one in self._batch.running if one is not running.sequence]
            if running.sequence in self._batch.waiting:
                self._batch.waiting.remove(running.sequence)
            elif running.sequence.num_blocks:
                lingering.append([2, running.sequence])

    def step(self) -> list[TokenChunk]:
        for one in list(self.__dict__.setdefault("_lingering", [])):
            one[0] -= 1
            if one[0] <= 0:
                self._lingering.remove(one)
                self._batch._free(one[1])
        return super().step()

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self.__dict__.get("_lingering"))


def test_room_of_what_is_stopped_is_not_promised_before_it_is_free() -> None:
    learned = spec(budget={"forecast": "learned", "forecast_quantile": 0.3})
    run = AdmissionRun(learned)
    run.inner = Lingering(run.engine_spec, run.clock)
    run.engine = AdmittingEngine(run.inner, learned, run.slo, run.clock)
    rng = random.Random(2)
    for key in range(1500):  # `AdmissionRun` checks after each event that nothing is used beyond its reservation
        run.add(request(key, rng.randrange(1, 40), int(min(180, 1 + rng.expovariate(1 / 40))), end_id=20))
        for _ in range(rng.randrange(3)):
            run.step()
        if rng.random() < 0.1 and run.open:
            run.cancel(rng.choice(sorted(run.open)))
    run.drain()
    assert run.engine.num_preemptions > 5


def test_what_a_request_took_counts_for_its_tenant_and_not_what_was_expected() -> None:
    # Most requests of a tenant are tiny, so a large one is expected to be tiny: the tenant is charged for it in full.
    run = AdmissionRun()
    rng = random.Random(4)
    tokens = {"large": 0, "even": 0}
    key = 0
    waiting = dict.fromkeys(tokens, 0)
    while run.clock.now_s() < 60:
        for tenant in tokens:
            while waiting[tenant] < 40:
                key += 1
                size = 40 if tenant == "even" else 200 if rng.random() < 0.4 else 1
                if run.add(request(key, 8, size, tenant=tenant)) is None:
                    waiting[tenant] += 1
        for chunk in run.step():
            tenant = run.asked[chunk.key].scheduling.tenant
            tokens[tenant] += len(chunk.token_ids)
            waiting[tenant] -= chunk.finish_reason is not None
    assert tokens["large"] < 2.5 * tokens["even"]


def test_an_aged_request_that_does_not_fit_does_not_stop_the_classes_above() -> None:
    run = AdmissionRun(spec(queue={"ageing_s": 0.1}))
    for key in range(3):
        run.add(request(key, 300, 200, priority=3))  # all of the KV cache
    for key in range(100, 400):
        run.add(request(key, priority=1))
        run.step()
        run.step()
    assert len([key for key in run.started if key >= 100]) > 150
    run.drain()


def test_a_stop_string_is_an_end_that_is_learned_from() -> None:
    class Stopping(SimulatedEngine):
        """Ends every request below 100 at its third token."""

        def step(self) -> list[TokenChunk]:
            chunks = super().step()
            for chunk in chunks:
                made[chunk.key] += 1
                if chunk.key < 100 and made[chunk.key] == 3:
                    chunk.finish_reason = FinishReason.STOP_STRING
                    self.cancel(chunk.key)
            return chunks

    made: Counter[int] = Counter()
    run = AdmissionRun(spec(budget={"forecast": "learned"}))
    run.inner = Stopping(run.engine_spec, run.clock)
    run.engine = AdmittingEngine(run.inner, run.spec, run.slo, run.clock)
    for key in range(40):
        run.add(request(key, max_tokens=200))
        run.drain()
    for key in range(100, 130):
        run.add(request(key, max_tokens=200))
    run.step()
    assert run.num_running() == 16
    for key in range(100, 130):
        run.cancel(key)
    run.drain()


def test_names_of_tenants_that_were_refused_are_not_kept() -> None:
    run = seat(queue={"max_requests": 1})
    run.add(request(0))
    run.step()
    run.add(request(1))
    for key in range(2, 2000):
        assert run.add(request(key, tenant=f"tenant {key}")) is not None
    assert all(len(line._tenants) <= 1 for line in run.engine._queue._policy._classes.values())  # type: ignore[attr-defined]
    run.drain()


def test_a_context_only_request_is_promised_one_token() -> None:
    run = AdmissionRun(engine_of=TellingEngine)
    for key in range(16):
        one = request(key, 16, 400)
        run.add(msgspec.structs.replace(one, sampling=msgspec.structs.replace(one.sampling, is_context_only=True)))
    run.step()
    run.step()  # 128 prompt tokens each
    assert run.ends == dict.fromkeys(range(16), "length")


def test_what_is_told_of_a_preempted_request_begins_with_its_first_start() -> None:
    learned = spec(budget={"forecast": "learned", "forecast_quantile": 0.3})
    run = AdmissionRun(learned)
    rng = random.Random(9)
    seen_ns: dict[int, int] = {}
    told: dict[int, PerfMetrics] = {}
    for key in range(800):
        run.add(request(key, rng.randrange(1, 40), int(min(180, 1 + rng.expovariate(1 / 40))), end_id=20))
        for chunk in [*run.step(), *run.step()]:
            seen_ns.setdefault(chunk.key, time.time_ns())
            if chunk.perf is not None:
                told[chunk.key] = chunk.perf
    assert run.engine.num_preemptions > 5
    assert {perf.num_preemptions for perf in told.values()} == {0, 1}, "each at most once"
    assert all(perf.first_token_time_ns <= seen_ns[key] for key, perf in told.items())
    run.drain()
