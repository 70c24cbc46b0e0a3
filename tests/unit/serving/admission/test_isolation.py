# SPDX-License-Identifier: Apache-2.0
"""Tests that a flood of one tenant leaves the others as they were, and nobody starves, in virtual time."""

import heapq
import random
from collections.abc import Iterator

import pytest

from benchmarks.overload_figures import p99
from benchmarks.support.virtual_run import Record, VirtualRun
from clients.load.arrivals import arrivals_s
from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.admission.budget import KvBudget
from serving.admission.kv_budget import KvAmount
from serving.admission.tenant_reserve import TenantReserve
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.engines.seam.scheduling import Priority, Scheduling
from serving.engines.simulated.simulated_engine import SimulatedEngine

ENGINE = SimulatedEngineSpec(
    provider="simulated", max_num_seqs=32, num_kv_blocks=1024, max_num_batched_tokens=2048, step_ms=40.0
)  # fmt: skip
CAPACITY_PER_S = 15.0  # 32 seats, some 50 tokens of 40 ms and a little
TARGETS = SloSpec(ttft_ms=270.0, tpot_ms=80.0)

Arrivals = Iterator[tuple[float, GenerationRequest]]


def stream(number: int, per_s: float, seconds: float, **scheduling: object) -> Arrivals:
    """Yield the arrivals of one tenant or class, some 50 tokens long each."""
    rng = random.Random(number)
    for count, at in enumerate(arrivals_s(rng, "poisson", per_s, seconds)):
        yield (
            at,
            GenerationRequest(
                key=number * 1_000_000 + count,
                input_ids=[20] * rng.randrange(16, 128),
                sampling=SamplingParams(max_tokens=max(4, int(min(200, rng.lognormvariate(3.7, 0.7))))),
                scheduling=Scheduling(**scheduling),  # type: ignore[arg-type]
            ),
        )


def run(streams: list[Arrivals], seconds: float, spec: AdmissionSpec, slo: SloSpec) -> list[Record]:
    made = VirtualRun(lambda clock: AdmittingEngine(SimulatedEngine(ENGINE, clock), spec, slo, clock))
    return made.open_loop(heapq.merge(*streams, key=lambda due: due[0]), seconds)


def of_the_others(flood: float, **parts: object) -> tuple[float, float]:
    """Return the p99 TTFT and the answered share of three tenants beside one with `flood` times its share."""
    seconds, share_per_s = 120.0, 0.8 * CAPACITY_PER_S / 4
    streams = [stream(number, share_per_s, seconds, tenant=str(number)) for number in range(3)]
    streams.append(stream(3, flood * share_per_s, seconds, tenant="flood"))
    records = run(streams, seconds, AdmissionSpec.model_validate(parts), TARGETS)
    others = [one for one in records if one.request.scheduling.tenant != "flood" and 10 < one.sent_s < seconds - 10]
    return p99([one.ttft_s for one in others if one.ttft_s is not None]), sum(one.is_done for one in others) / len(
        others
    )


def test_who_floods_with_ten_times_his_share_moves_the_others_by_less_than_a_fifth() -> None:
    before_s, answered_before = of_the_others(1.0)
    after_s, answered_after = of_the_others(10.0)
    assert after_s < 1.2 * before_s
    assert answered_before > 0.97
    assert answered_after > 0.75
    _, answered_without = of_the_others(10.0, budget={"tenant_reserve": 0})
    assert answered_without < 0.5, "or the test would show nothing"


WHOLE = KvAmount(64, 640, 6400)


def seats(count: int) -> KvAmount:
    return KvAmount(count, 10 * count, 100 * count)


def test_who_holds_far_more_than_his_share_leaves_room_while_others_come() -> None:
    reserve = TenantReserve(1 / 16, {"gold": 3.0})
    reserve.note_arrival("flood", 0.0)
    reserve.hold("flood", seats(60))
    assert reserve.of("flood", WHOLE) == seats(0), "nobody else comes"
    reserve.note_arrival("small", 1.0)
    reserve.note_arrival("flood", 2.0)
    assert reserve.of("flood", WHOLE) == seats(4)
    assert reserve.of("small", WHOLE) == seats(0)
    reserve.note_arrival("flood", 62.0)
    assert reserve.of("flood", WHOLE) == seats(0), "nobody else comes any more"
    reserve.note_arrival("gold", 63.0)
    reserve.note_arrival("flood", 64.0)
    reserve.hold("flood", KvAmount(-60, -600, -6000))
    reserve.hold("flood", seats(30))
    reserve.hold("gold", seats(30))
    assert reserve.of("flood", WHOLE) == seats(4), "half, and a fourth is fair"
    assert reserve.of("gold", WHOLE) == seats(0), "half, and three fourths are fair"


def test_alone_in_the_engine_a_request_may_fill_it_though_others_come() -> None:
    reserve = TenantReserve(1 / 16, {})
    budget = KvBudget(num_blocks=16, block_tokens=8, max_num_seqs=1, reserve=reserve)
    for tenant in ("other", "large"):
        reserve.note_arrival(tenant, 0.0)
    assert budget.room_for(Priority.BATCH, "large").holds(budget.needs(1, 128))


def test_a_tenant_alone_fills_the_engine() -> None:
    streams = [stream(0, 3 * CAPACITY_PER_S, 30.0, tenant="one")]
    made = VirtualRun(lambda clock: AdmittingEngine(SimulatedEngine(ENGINE, clock), AdmissionSpec(), SloSpec(), clock))
    made.open_loop(iter(streams[0]), 30.0)
    assert made.engine.stats().num_running == ENGINE.max_num_seqs


@pytest.mark.parametrize("slo", [SloSpec(), TARGETS], ids=["no target", "targets"])
def test_under_endless_premium_load_every_batch_request_ends_within_its_deadline(slo: SloSpec) -> None:
    seconds, deadline_ms = 100.0, 12_000.0
    streams = [
        stream(0, 2 * CAPACITY_PER_S, seconds, priority=int(Priority.PREMIUM), tenant="premium"),
        stream(1, 1.0, seconds, priority=int(Priority.BATCH), tenant="batch", deadline_ms=deadline_ms),
    ]
    spec = AdmissionSpec.model_validate({"queue": {"ageing_s": 1.0, "max_requests": 64}})
    records = run(streams, seconds, spec, slo)
    batch = [one for one in records if one.request.scheduling.priority == Priority.BATCH]
    ended = [one for one in batch if one.sent_s < seconds - deadline_ms / 1000 - 1]
    assert len(ended) > 50
    for one in ended:
        end_s = one.last_s if one.is_done else one.refused_s
        assert end_s is not None, "it still waits"
        assert end_s - one.sent_s <= deadline_ms / 1000 + 0.1, "a step later at most"
    assert sum(one.is_done for one in ended) > 0.95 * len(ended), "each has its turn by its age"


@pytest.mark.parametrize("premium", [1.0, 2.0], ids=["at capacity", "twice the capacity"])
@pytest.mark.parametrize("slo", [SloSpec(), TARGETS], ids=["no target", "targets"])
def test_who_is_let_in_because_its_age_gives_it_a_turn_has_that_turn_in_time(premium: float, slo: SloSpec) -> None:
    seconds, patience_ms = 100.0, 8_000.0
    streams = [
        stream(0, premium * CAPACITY_PER_S, seconds, priority=int(Priority.PREMIUM), tenant="premium"),
        stream(1, 1.0, seconds, priority=int(Priority.BATCH), tenant="batch", queue_timeout_ms=patience_ms),
        stream(2, 0.2, seconds, priority=int(Priority.BATCH), tenant="hasty", queue_timeout_ms=2_000.0),
    ]
    spec = AdmissionSpec.model_validate({"queue": {"ageing_s": 3.0, "max_requests": 64}})
    records = [one for one in run(streams, seconds, spec, slo) if one.sent_s < seconds - 20]

    def of(tenant: str) -> tuple[int, int, int]:
        """Return how many requests of a tenant were refused at once, started, and ran out of time waiting."""
        own = [one for one in records if one.request.scheduling.tenant == tenant]
        num_refused = sum(one.refused_s == one.sent_s for one in own)
        num_started = sum(one.first_s is not None for one in own)
        return num_refused, num_started, len(own) - num_refused - num_started

    num_refused, num_started, num_late = of("batch")
    assert num_started > 0.8 * (num_refused + num_started + num_late)
    assert num_late <= 0.02 * num_started
    if premium > 1:
        num_refused, num_started, num_late = of("hasty")
        assert num_refused > 0.6 * (num_refused + num_started + num_late), "its age gives it a turn after 3 s"
