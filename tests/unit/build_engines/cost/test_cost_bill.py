# SPDX-License-Identifier: Apache-2.0
"""A bill is arithmetic: worked out by hand, and what must hold for any fleet."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_engines.cost.bill import bill, hourly_requests_per_s, scaled, with_rates
from build_engines.cost.break_even import break_even, limit_usd_per_token, usd_at
from build_engines.cost.cost_spec import (
    CostSpec,
    Fleet,
    GpuPrices,
    OtherCosts,
    PlannedEngine,
    RatedEngine,
    Traffic,
    changed,
)
from build_engines.cost.managed_prices import ManagedPrice
from build_engines.cost.sensitivity import sensitivities


def scenario(
    *,
    prefill: float = 20_000,
    decode: float = 2_000,
    gpus: int = 2,
    prices: GpuPrices | None = None,
    traffic: Traffic | None = None,
    fleet: Fleet | None = None,
    other: OtherCosts | None = None,
) -> CostSpec:
    return CostSpec(
        engine=RatedEngine(kind="rates", gpus=gpus, prefill_tokens_per_s=prefill, decode_tokens_per_s=decode),
        prices=prices or GpuPrices(on_demand_usd_per_gpu_hour=3),
        traffic=traffic or Traffic(requests_per_s=10, isl=1000, osl=200),
        fleet=fleet or Fleet(),
        other=other or OtherCosts(),
    )


# One request/s of 1,000 in at 20,000/s and 200 out at 2,000/s: 0.05 + 0.1 s of a replica.
def test_a_bill_by_hand() -> None:
    other = OtherCosts(
        egress_usd_per_gb=0.1, egress_bytes_per_output_token=250, storage_gb=1000, storage_usd_per_gb_month=0.08,
        engineers=2, hours_per_engineer_month=10, usd_per_engineer_hour=100,
    )  # fmt: skip
    found = bill(scenario(fleet=Fleet(target_utilisation=0.5, spare_replicas=1), other=other))
    (pool,) = found.pools
    # 10 requests/s x 0.15 s = 1.5 replicas at work, at 0.5 of them 3, and a spare: 4 x 2 GPUs x 3 $ x 730 h.
    assert pool.replicas == (4,) * 24
    assert pool.mean_busy == pytest.approx(1.5)
    assert found.gpu_usd == pytest.approx(4 * 2 * 3 * 730)
    assert found.idle_usd == pytest.approx(2.5 * 2 * 3 * 730)
    # 730 x 3600 s x 10 requests x 200 tokens x 250 bytes.
    assert found.tokens.output == pytest.approx(5.256e9)
    assert found.egress_usd == pytest.approx(5.256e9 * 250 / 1e9 * 0.1)
    assert found.storage_usd == pytest.approx(80)
    assert found.engineers_usd == pytest.approx(2000)
    # Prompts are 0.05 of 0.15 s.
    assert found.input_usd == pytest.approx((found.gpu_usd + 2080) / 3)
    assert found.output_usd == pytest.approx((found.gpu_usd + 2080) * 2 / 3 + found.egress_usd)
    assert found.usd_per_million_input == pytest.approx(found.input_usd / 26_280)


def test_two_dollars_an_hour_at_a_thousand_tokens_a_second_is_56_cents_a_million() -> None:
    full = Traffic(requests_per_s=1, isl=0, osl=1000)
    one = scenario(
        decode=1000, gpus=1, prices=GpuPrices(on_demand_usd_per_gpu_hour=2), traffic=full,
        fleet=Fleet(target_utilisation=1, spare_replicas=0),
    )  # fmt: skip
    found = bill(one)
    assert found.usd_per_million_output == pytest.approx(2 / 3600 * 1000)  # 0.5556
    assert found.usd_per_million_input is None
    assert found.idle_usd == pytest.approx(0)
    half = bill(scaled(one, 0.5))
    assert half.usd_per_million_output == pytest.approx(2 * 0.55556, rel=1e-4)


def test_a_cosine_day_has_its_mean_and_its_peak() -> None:
    hours = hourly_requests_per_s(Traffic(requests_per_s=10, isl=1, osl=1, peak_over_mean=1.8))
    assert sum(hours) / 24 == pytest.approx(10)
    assert max(hours) == pytest.approx(18)
    assert min(hours) == pytest.approx(2)


def test_hours_of_ones_own_are_shares_in_any_unit() -> None:
    own = Traffic(requests_per_s=6, isl=1, osl=1, hourly=(0,) * 12 + (5,) * 12)
    assert hourly_requests_per_s(own) == (0,) * 12 + (12,) * 12


def test_a_fleet_that_follows_its_traffic_pays_each_hour_for_what_it_needs() -> None:
    day = Traffic(requests_per_s=20, isl=1000, osl=200, hourly=(0,) * 12 + (1,) * 12)
    fleet = Fleet(target_utilisation=1, spare_replicas=0)
    fixed = bill(scenario(traffic=day, fleet=fleet))
    following = bill(scenario(traffic=day, fleet=fleet.model_copy(update={"follows_traffic": True})))
    assert fixed.pools[0].replicas == (6,) * 24  # 40 requests/s x 0.15 s
    assert following.pools[0].replicas == (1,) * 12 + (6,) * 12
    assert following.gpu_usd / fixed.gpu_usd == pytest.approx(7 / 12)


def test_reserved_replicas_are_paid_every_hour_and_first() -> None:
    day = Traffic(requests_per_s=20, isl=1000, osl=200, hourly=(0,) * 12 + (1,) * 12)
    prices = GpuPrices(on_demand_usd_per_gpu_hour=4, reserved_usd_per_gpu_hour=2, reserved_replicas=4)
    fleet = Fleet(target_utilisation=1, spare_replicas=0, follows_traffic=True)
    found = bill(scenario(prices=prices, traffic=day, fleet=fleet))
    assert found.pools[0].replicas == (4,) * 12 + (6,) * 12
    assert found.gpu_usd == pytest.approx(2 * 730 * (4 * 2 + (2 * 4) / 2))


def test_lost_hours_of_spot_gpus_are_bought_again() -> None:
    prices = GpuPrices(
        on_demand_usd_per_gpu_hour=4, spot_usd_per_gpu_hour=1.8, spot_fraction=0.5, spot_lost_fraction=0.1
    )
    assert prices.flexible_usd_per_gpu_hour == pytest.approx(0.5 * 4 + 0.5 * 2)


def test_cached_tokens_take_no_time_of_prefill() -> None:
    cached = Traffic(requests_per_s=10, isl=1000, osl=200, cached_fraction=0.5)
    found = bill(scenario(traffic=cached))
    assert found.pools[0].mean_busy == pytest.approx(10 * (500 / 20_000 + 0.1))
    assert found.tokens.cached == pytest.approx(found.tokens.prefilled)


amounts = st.floats(0.01, 100)
scenarios = st.builds(
    scenario,
    prefill=st.floats(100, 1e6),
    decode=st.floats(10, 1e5),
    gpus=st.integers(1, 16),
    prices=st.builds(
        GpuPrices,
        on_demand_usd_per_gpu_hour=amounts,
        reserved_usd_per_gpu_hour=amounts,
        spot_usd_per_gpu_hour=amounts,
        reserved_replicas=st.integers(0, 5),
        spot_fraction=st.floats(0, 1),
        spot_lost_fraction=st.floats(0, 0.5),
    ),
    traffic=st.builds(
        Traffic,
        requests_per_s=st.floats(0.01, 1000),
        isl=st.floats(0, 1e5),
        osl=st.floats(1, 1e4),
        cached_fraction=st.floats(0, 0.9),
        peak_over_mean=st.floats(1, 2),
    ),
    fleet=st.builds(
        Fleet,
        target_utilisation=st.floats(0.1, 1),
        spare_replicas=st.integers(0, 3),
        min_replicas=st.integers(1, 3),
        follows_traffic=st.booleans(),
    ),
    other=st.builds(
        OtherCosts,
        egress_usd_per_gb=st.floats(0, 1),
        egress_bytes_per_output_token=st.floats(0, 1000),
        storage_gb=amounts,
        storage_usd_per_gb_month=amounts,
        engineers=st.floats(0, 10),
        hours_per_engineer_month=st.floats(0, 160),
        usd_per_engineer_hour=amounts,
    ),
)


@given(scenarios)
def test_input_and_output_are_all_of_it(one: CostSpec) -> None:
    found = bill(one)
    tokens = found.tokens
    whole = tokens.prefilled * (found.usd_per_million_input or 0) + tokens.output * found.usd_per_million_output
    assert whole / 1e6 == pytest.approx(found.total_usd)
    assert tokens.total * found.usd_per_million / 1e6 == pytest.approx(found.total_usd)
    assert 0 <= found.idle_usd <= found.gpu_usd * (1 + 1e-9)


@given(scenarios, st.floats(0.1, 10))
def test_gpu_cost_is_linear_in_the_price(one: CostSpec, factor: float) -> None:
    names = [name for name in GpuPrices.model_fields if name.endswith("_usd_per_gpu_hour")]
    dearer = bill(changed(one, {f"prices.{name}": lambda price: price * factor for name in names}))
    assert dearer.gpu_usd == pytest.approx(factor * bill(one).gpu_usd)
    assert dearer.engineers_usd == bill(one).engineers_usd


@given(scenarios, st.floats(1, 10), st.booleans())
def test_a_faster_replica_never_costs_more(one: CostSpec, factor: float, is_prefill: bool) -> None:
    name = "prefill_tokens_per_s" if is_prefill else "decode_tokens_per_s"
    faster = changed(one, {f"engine.{name}": lambda rate: rate * factor})
    assert bill(faster).total_usd <= bill(one).total_usd * (1 + 1e-12)


@given(scenarios, st.floats(1, 10))
def test_more_traffic_never_costs_less(one: CostSpec, factor: float) -> None:
    assert bill(scaled(one, factor)).total_usd >= bill(one).total_usd * (1 - 1e-12)


@given(scenarios)
def test_every_hour_has_the_replicas_that_its_work_needs(one: CostSpec) -> None:
    found, traffic = bill(one).pools[0], one.traffic
    request_s = found.rates.seconds(traffic.isl * (1 - traffic.cached_fraction), traffic.osl)
    for replicas, requests_per_s in zip(found.replicas, hourly_requests_per_s(traffic), strict=True):
        usable = (replicas - one.fleet.spare_replicas) * one.fleet.target_utilisation
        assert requests_per_s * request_s <= usable + 1e-6 or replicas == one.prices.reserved_replicas


def usd_with(one: CostSpec, tokens: float) -> float:
    return usd_at(one, tokens, bill(one).tokens.total)


managed_prices = st.builds(
    ManagedPrice,
    name=st.just("offer"),
    input_usd_per_million=st.floats(0.001, 100),
    output_usd_per_million=st.floats(0.001, 100),
    source=st.just("a test"),
)


@settings(max_examples=60)  # the nearer the two prices, the more steps
@given(scenarios, managed_prices)
def test_a_break_even_solves_its_equation_and_above_it_the_fleet_is_cheaper(one: CostSpec, price: ManagedPrice) -> None:
    found = break_even(one, price)
    per_token = found.managed_usd_per_million / 1e6
    if found.tokens is None:
        assert found.limit_usd_per_million >= found.managed_usd_per_million
        if found.first_tokens is None:
            for tokens in (1e3, 1e6, 1e7, 1e8, 1e9, 1e10, 1e12, 1e15):
                assert usd_with(one, tokens) >= tokens * per_token * (1 - 1e-9)
        else:  # as long as the reserved replicas last
            assert usd_with(one, found.first_tokens) == pytest.approx(found.first_tokens * per_token)
            assert one.prices.reserved_replicas
        return
    margin = 1 - found.limit_usd_per_million / found.managed_usd_per_million
    if margin > 0.01:  # closer than that, a bound is all there is
        assert found.first_tokens is not None
        assert found.first_tokens <= found.tokens * (1 + 1e-9)
        assert usd_with(one, found.tokens) == pytest.approx(found.tokens * per_token, rel=1e-6)
    for factor in (1 + 1e-6, 1.1, 1.5, 2, 3, 10, 100):
        tokens = found.tokens * factor
        assert usd_with(one, tokens) <= tokens * per_token * (1 + 1e-6)
    for factor in (0.1, 0.5, 0.9, 0.999):
        tokens = (found.first_tokens or 0.0) * factor
        assert usd_with(one, tokens) >= tokens * per_token * (1 - 1e-6)


def test_a_break_even_by_hand() -> None:
    # Fixed: 1,000 $ of engineers, and one replica of 730 $ a month that makes 1,000 tokens/s, 2.628e9 a month.
    one = scenario(
        decode=1000, gpus=1, prices=GpuPrices(on_demand_usd_per_gpu_hour=1),
        traffic=Traffic(requests_per_s=0.1, isl=0, osl=1000), fleet=Fleet(target_utilisation=1, spare_replicas=0),
        other=OtherCosts(engineers=1, hours_per_engineer_month=10, usd_per_engineer_hour=100),
    )  # fmt: skip
    offer = ManagedPrice(name="offer", input_usd_per_million=0, output_usd_per_million=0.8, source="a test")
    found = break_even(one, offer)
    # One replica: 1,730 / 0.8 = 2,162M, which it can make. Two: 2,460 / 0.8 = 3,075M, which is more than one makes
    # (2,628M): there the bill jumps over the line again. Three: 3,190 / 0.8 = 3,987M, less than two make already.
    assert found.first_tokens == pytest.approx(1730 / 0.8e-6)
    assert found.tokens == pytest.approx(2460 / 0.8e-6)
    assert found.limit_usd_per_million == pytest.approx(730 / 2628)
    assert limit_usd_per_token(one) == pytest.approx(730 / 2.628e9)


def test_reserved_replicas_may_be_cheaper_than_what_follows_them() -> None:
    # One reserved replica makes 2,628M tokens a month for 73 $, a further one for 730: 0.028 and 0.278 $/M.
    prices = GpuPrices(on_demand_usd_per_gpu_hour=1, reserved_usd_per_gpu_hour=0.1, reserved_replicas=1)
    one = scenario(
        decode=1000, gpus=1, prices=prices, traffic=Traffic(requests_per_s=0.1, isl=0, osl=1000),
        fleet=Fleet(target_utilisation=1, spare_replicas=0),
    )  # fmt: skip
    offer = ManagedPrice(name="offer", input_usd_per_million=0, output_usd_per_million=0.1, source="a test")
    found = break_even(one, offer)
    assert found.first_tokens == pytest.approx(730e6)
    assert found.tokens is None
    assert break_even(one, offer.model_copy(update={"output_usd_per_million": 0.02})).first_tokens is None


@given(scenarios)
def test_the_limit_is_what_an_endless_fleet_costs(one: CostSpec) -> None:
    endless = scaled(one, 1e13 / min(1, one.traffic.requests_per_s))
    per_token = bill(endless).total_usd / bill(endless).tokens.total
    assert limit_usd_per_token(one) == pytest.approx(per_token, rel=1e-3)


def test_the_price_moves_with_an_assumption_as_the_arithmetic_says() -> None:
    large = scenario(traffic=Traffic(requests_per_s=1e6, isl=1000, osl=200), other=OtherCosts())
    found = {one.name: one for one in sensitivities(large, fraction=0.2)}
    base = bill(large).usd_per_million
    assert found["price of a GPU hour"].low_usd == pytest.approx(0.8 * base)
    assert found["price of a GPU hour"].high_usd == pytest.approx(1.2 * base)
    # Decoding is two thirds of the work.
    assert found["decode tokens/s"].high_usd == pytest.approx(base * (1 / 3 + 2 / 3 / 1.2), rel=1e-4)
    assert found["target utilisation"].low_usd == pytest.approx(base / 0.8, rel=1e-4)
    assert "engineers' hours" not in found  # there are none
    swings = [one.swing_usd for one in sensitivities(large)]
    assert swings == sorted(swings, reverse=True)


def test_rates_stay_while_the_mix_of_tokens_moves() -> None:
    fleet = tiered({"on_demand_usd_per_gpu_hour": 4}, None)
    planned = changed(fleet, {"engine": PlannedEngine(kind="planned", model="llama-3.1-8b")})
    rated = with_rates(planned)
    assert bill(rated).total_usd == pytest.approx(bill(planned).total_usd)
    longer = bill(changed(rated, {"traffic.osl": lambda tokens: 8 * tokens}))
    assert longer.pools[0].rates.decode_s == pytest.approx(bill(planned).pools[0].rates.decode_s)


def tiered(prices: Mapping[str, float], tier_prices: Mapping[str, float] | None) -> CostSpec:
    engine = {"kind": "rates", "model": "large", "gpus": 4, "prefill_tokens_per_s": 1e4, "decode_tokens_per_s": 1e3}
    small = {**engine, "model": "small", "gpus": 1, "prefill_tokens_per_s": 1e5, "decode_tokens_per_s": 1e4}
    return CostSpec.model_validate(
        {
            "engine": engine,
            "prices": prices,
            "traffic": {"requests_per_s": 100, "isl": 1000, "osl": 100},
            "fleet": {"spare_replicas": 0, "target_utilisation": 1.0},
            "tier": {"engine": small, "request_fraction": 0.25, "prices": tier_prices},
        }
    )


def test_a_tier_takes_its_requests_and_has_its_own_price() -> None:
    found = bill(tiered({"on_demand_usd_per_gpu_hour": 4}, {"on_demand_usd_per_gpu_hour": 2}))
    # 75 and 25 requests/s of 0.2 and 0.02 s.
    assert [one.replicas[0] for one in found.pools] == [15, 1]
    assert found.gpu_usd == pytest.approx(730 * (15 * 4 * 4 + 1 * 1 * 2))
    assert math.isclose(found.input_usd + found.output_usd, found.total_usd)


def test_a_tier_without_prices_has_the_large_model_s_and_none_of_its_reserved_replicas() -> None:
    prices = {"on_demand_usd_per_gpu_hour": 4, "reserved_usd_per_gpu_hour": 2, "reserved_replicas": 12}
    found = bill(tiered(prices, None))
    assert [one.replicas[0] for one in found.pools] == [15, 1]
    assert found.gpu_usd == pytest.approx(730 * (12 * 4 * 2 + 3 * 4 * 4 + 1 * 1 * 4))
