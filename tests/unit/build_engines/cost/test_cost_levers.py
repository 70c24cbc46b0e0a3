# SPDX-License-Identifier: Apache-2.0
"""Levers: alone, last, together; and what is not said is asked for, not guessed."""

from pathlib import Path
from typing import Any

import pytest

from build_engines.cost.bill import bill
from build_engines.cost.cost_spec import CostSpec, MeasuredEngine, PlannedEngine, Traffic, load_document
from build_engines.cost.engine_rates import best_option, rates_of
from build_engines.cost.levers import FORMULAS, plan_levers
from build_engines.planner.roofline.steady_state import Workload
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

EXAMPLES = CODE_ROOT / "examples" / "cost"


def fleet(**changes: Any) -> CostSpec:
    """Return a large fleet, so that whole replicas do not blur the arithmetic.

    Its GPUs cost 0.15 s x 4 $ a request.
    """
    data = {
        "engine": {"kind": "rates", "prefill_tokens_per_s": 20_000, "decode_tokens_per_s": 2_000},
        "prices": {"on_demand_usd_per_gpu_hour": 4, "spot_usd_per_gpu_hour": 1.8, "spot_lost_fraction": 0.1},
        "traffic": {"requests_per_s": 1e6, "isl": 1000, "osl": 200, "peak_over_mean": 1.5},
        "fleet": {"spare_replicas": 0},
        **changes,
    }
    return validate(CostSpec, data, source=Path("a test"))


def test_each_lever_alone_saves_what_its_formula_says() -> None:
    levers = {
        "quantization": {"rate_factor": 2},
        "prefix_cache": {"cached_fraction": 0.6},
        "spot": {"fraction": 0.5},
        "off_hours": {},
    }
    plan = plan_levers(fleet(levers=levers))
    saved = {one.name: one.alone / plan.usd for one in plan.savings}
    assert saved["quantization"] == pytest.approx(1 / 2, rel=1e-3)
    assert saved["prefix_cache"] == pytest.approx(0.6 / 3, rel=1e-3)  # prompts are a third of the work
    assert saved["spot"] == pytest.approx(0.5 * (1 - 2 / 4), rel=1e-3)
    assert saved["off_hours"] == pytest.approx(1 - 1 / 1.5, rel=1e-3)
    # These change one factor of the price each, so together they multiply.
    assert plan.joint_usd / plan.usd == pytest.approx(1 / 2 * 0.8 * 0.75 / 1.5, rel=1e-3)


def test_savings_do_not_add_up_and_the_shares_do() -> None:
    levers = {"quantization": {"rate_factor": 2}, "batching": {"rate_factor": 2}}
    plan = plan_levers(fleet(levers=levers))
    assert plan.joint_usd == pytest.approx(plan.usd / 4, rel=1e-3)
    # Half and half would be everything; together they leave a quarter.
    assert sum(one.alone for one in plan.savings) == pytest.approx(plan.usd, rel=1e-3)
    assert plan.interaction_usd == pytest.approx(-plan.usd / 4, rel=1e-3)
    assert [one.share for one in plan.savings] == pytest.approx([0.375 * plan.usd] * 2, rel=1e-3)
    assert [one.last for one in plan.savings] == pytest.approx([0.25 * plan.usd] * 2, rel=1e-3)


def test_shares_of_the_worked_case_sum_to_what_is_saved() -> None:
    plan = plan_levers(load_document(CostSpec, EXAMPLES / "halve_500k.yaml"))
    assert {one.name for one in plan.savings} == set(FORMULAS)
    assert len(plan.usd_of) == 2**6
    assert sum(one.share for one in plan.savings) == pytest.approx(plan.usd - plan.joint_usd)
    assert sum(one.alone for one in plan.savings) > plan.usd  # more than everything, if one added
    assert plan.joint_usd == min(plan.usd_of.values())


def test_the_fewest_levers_for_a_target_are_the_cheapest_of_the_fewest() -> None:
    levers = {"quantization": {"rate_factor": 1.8}, "batching": {"rate_factor": 1.7}, "spot": {"fraction": 0.5}}
    plan = plan_levers(fleet(levers=levers))
    assert plan.fewest_for(plan.usd) == ()
    assert plan.fewest_for(plan.usd / 1.75) == ("quantization",)
    assert plan.fewest_for(plan.usd / 2) == ("quantization", "batching")
    assert plan.fewest_for(plan.usd / 10) is None


def test_a_planned_engine_has_the_planner_s_throughput() -> None:
    engine = PlannedEngine(kind="planned", model="llama-3.1-8b", weight_format="fp8", kv_format="fp8", slo_tpot_ms=30)
    found = rates_of(engine, Traffic(requests_per_s=1, isl=1000, osl=300))
    option = best_option(engine, Workload(1000, 300))
    replicas = option.num_gpus / option.candidate.layout.world_size
    requests_per_s = option.served_output_tokens_per_s / replicas / 300
    assert 1 / found.seconds(1000, 300) == pytest.approx(requests_per_s)
    assert option.estimate.tpot_ms <= 30
    assert found.uncertainty == option.uncertainty
    assert "llama" not in found.source
    assert found.source.startswith("planned: fp8 kv-fp8 tp1 on 1 x H100")


def test_static_batches_wait_for_their_longest_answer() -> None:
    engine = PlannedEngine(kind="planned", model="llama-3.1-8b", max_batch_size=16)
    static = engine.model_copy(update={"longest_over_mean_output": 3.0})
    traffic = Traffic(requests_per_s=1, isl=1000, osl=300)
    one, other = rates_of(engine, traffic), rates_of(static, traffic)
    assert other.decode_s == pytest.approx(3 * one.decode_s)
    assert other.prefill_s == one.prefill_s
    assert "static batches of 16" in other.source


def test_a_measured_mix_is_divided_by_its_weight() -> None:
    # A second is 6,000 input tokens and 1,000 output tokens of four times the time each: 10,000 shares.
    engine = MeasuredEngine(kind="measured", input_tokens_per_s=6000, output_tokens_per_s=1000, output_weight=4)
    found = rates_of(engine, Traffic(requests_per_s=1, isl=600, osl=100))
    assert found.prefill_s == pytest.approx(1e-4)
    assert found.decode_s == pytest.approx(4e-4)
    assert found.seconds(6000, 1000) == pytest.approx(1)


def test_prompts_have_no_price_where_only_output_was_measured() -> None:
    engine = MeasuredEngine(kind="measured", output_tokens_per_s=1000)
    with pytest.raises(SpecError, match=r"measured without input tokens, and traffic\.isl is 600; give input_"):
        rates_of(engine, Traffic(requests_per_s=1, isl=600, osl=100))
    assert rates_of(engine, Traffic(requests_per_s=1, isl=0, osl=100)).seconds(0, 1000) == pytest.approx(1)
    weighed = engine.model_copy(update={"output_weight": 4})
    assert rates_of(weighed, Traffic(requests_per_s=1, isl=600, osl=100)).seconds(4000, 0) == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"levers": {"quantization": {}}}, "levers.quantization: the engine's rates are given, .* give rate_factor"),
        ({"levers": {}}, "levers: none is given; there are quantization, batching"),
        (
            {"levers": {"spot": {"fraction": 0.5}}, "prices": {"on_demand_usd_per_gpu_hour": 4}},
            "levers.spot: give prices.spot_usd_per_gpu_hour",
        ),
        (
            {
                "levers": {"batching": {"rate_factor": 2}},
                "engine": {"kind": "planned", "model": "llama-3.1-8b"},
            },
            "levers.batching.rate_factor is 2, and what a planned engine would be is planned",
        ),
        (
            {"levers": {"spot": {"fraction": 0.5}}, "engine": {"kind": "planned", "model": "llama-9"}},
            "model 'llama-9' is neither a folder",
        ),
        (
            {
                "levers": {"spot": {"fraction": 0.5}},
                "engine": {"kind": "planned", "model": "llama-3.1-70b", "slo_ttft_ms": 1},
            },
            "no layout of llama-3.1-70b in bf16 on up to 8 x h100 meets the targets, not even for one client: TTFT",
        ),
        (
            {
                "levers": {"quantization": {"weight_format": "int3"}},
                "engine": {"kind": "planned", "model": "llama-3.1-8b"},
            },
            "engine.weight_format 'int3' is not known; there are",
        ),
    ],
    ids=["no factor", "no lever", "no spot price", "factor of a plan", "no such model", "no such speed", "format"],
)
def test_what_a_lever_lacks_is_named(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        plan_levers(fleet(**changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prices": {"on_demand_usd_per_gpu_hour": -1}}, "prices.on_demand_usd_per_gpu_hour: .* greater .* 0"),
        ({"prices": {"on_demand_usd_per_gpu_hour": 1, "spot_fraction": 0.5}}, "prices: .* give spot_usd_per_gpu_hour"),
        ({"prices": {"on_demand_usd_per_gpu_hour": 1, "reserved_replicas": 2}}, "give reserved_usd_per_gpu_hour"),
        ({"engine": {"kind": "measured", "input_tokens_per_s": 1, "output_tokens_per_s": 1}}, "give output_weight"),
        ({"engine": {"kind": "guessed"}}, "'planned', 'rates', 'measured'"),
        ({"traffic": {"requests_per_s": 1, "isl": 1, "osl": 1, "hourly": [1, 2]}}, "hourly has 2 numbers"),
        ({"traffic": {"requests_per_s": 0, "isl": 1, "osl": 1}}, "traffic.requests_per_s: .* greater than 0"),
        ({"fleet": {"target_utilization": 0.5}}, "did you mean target_utilisation"),
        ({"fleet": {"target_utilisation": 1.5}}, "less than or equal to 1"),
    ],
    ids=["price", "spot", "reserved", "weight", "kind", "day", "rate", "spelling", "utilisation"],
)
def test_a_wrong_assumption_is_refused_by_name(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        fleet(**changes)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_whole(file: Path) -> None:
    assert bill(load_document(CostSpec, file)).total_usd > 0
