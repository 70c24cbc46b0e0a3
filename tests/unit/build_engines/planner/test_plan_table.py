# SPDX-License-Identifier: Apache-2.0
"""The table of a plan: rows that are alike are one, and the serving host stands beside, not in the order."""

import json
from dataclasses import replace

import pytest

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.quantized_checkpoint import Quantized
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.option import Option, Plan
from build_engines.planner.plan_report import plan_as_data
from build_engines.planner.plan_table import folded, plan_table
from build_engines.planner.question import Question, Targets
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Machines, Wanted
from build_engines.planner.roofline.serving_limit import MEASURED_CORE_US, MEASURED_RESPONSES_PER_S, ServingLimit
from build_engines.planner.roofline.steady_state import Workload
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow


def plan_of(name: str = "llama-3.1-8b", num_gpus: int = 1, **changes: object) -> Plan:
    shape = read_model_shape(known_models()[name].config)
    question = Question(shape, Machines(gpu_named("h100"), num_gpus), Workload(1000, 1000))
    return make_plan(replace(question, **changes), [Roofline()], num_curves=0)  # type: ignore[arg-type]


def notes(plan: Plan, num_shown: int = 10) -> str:
    return "\n".join(plan_table(plan, num_shown).notes)


def test_formats_with_the_same_figures_are_one_row_and_each_is_in_the_data() -> None:
    made = plan_of()
    rows = folded(made.options)
    assert sorted(option.candidate.name for row in rows for option in row) == sorted(
        option.candidate.name for option in made.options
    )
    assert [option.weight_format for option in rows[0]] == ["fp8", "fp8_rowwise"]
    for row in rows:
        for option in row:
            assert option.candidate.layout == row[0].candidate.layout
            assert option.engine_output_tokens_per_s == pytest.approx(row[0].engine_output_tokens_per_s, rel=0.011)
            assert option.estimate.tpot_ms == pytest.approx(row[0].estimate.tpot_ms, rel=0.011)
    table = plan_table(made, 100)
    assert len(table.rows) == len(rows)
    data = plan_as_data(made, name="x")["options"]
    assert isinstance(data, list)
    assert len(data) == len(made.options)


def test_formats_that_differ_in_more_than_figures_are_rows_of_their_own() -> None:
    chunked = folded(plan_of(wanted=Wanted(kv_formats=("fp8",))).options)
    assert ["smoothquant"] in [[option.weight_format for option in row] for row in chunked], "it chunks no prompts"
    quantized = folded(plan_of(quantized=Quantized("fp8", None, "fp8")).options)
    assert ["fp8"] in [[option.weight_format for option in row] for row in quantized], "the others are made anew"


def test_the_serving_host_is_no_reason_for_a_place_nor_for_gpus() -> None:
    weak, strong = (plan_of(serving=ServingLimit(responses_per_s=most)) for most in (2000, 1e9))
    assert [option.candidate.name for option in weak.options] == [option.candidate.name for option in strong.options]
    first = weak.options[0]
    assert first.serving.is_over
    assert not strong.options[0].serving.is_over
    assert first.served_output_tokens_per_s < first.engine_output_tokens_per_s
    assert first.served_output_tokens_per_s == pytest.approx(2000 * max(1.0, 10 / first.estimate.tpot_ms))
    rates = [
        plan_of(num_gpus=16, load=Load(requests_per_s=40), serving=ServingLimit(most), wanted=Wanted(tp_sizes=(1,)))
        for most in (2000, 1e9)
    ]
    assert rates[0].options[0].num_gpus == rates[1].options[0].num_gpus
    assert rates[0].options[0].engine_output_tokens_per_s == pytest.approx(40 * 1000)


def test_what_the_host_cannot_carry_is_marked_and_priced_apart() -> None:
    made = plan_of(serving=ServingLimit(responses_per_s=2000), price_per_gpu_hour=2.0)
    table = plan_table(made, 1)
    row = dict(zip(table.headers, table.rows[0], strict=True))
    first = made.options[0]
    assert row["tokens/s"] == f"{first.engine_output_tokens_per_s:,.0f}*"
    hours = 1e6 / first.served_output_tokens_per_s / 3600
    assert row["$/M served"] == f"{2.0 * hours:.3f}"
    assert row["$/M tokens"] == f"{first.usd_per_million_tokens:.3f}"
    assert "* more than that: with more cores, or with several tokens in a response ($/M served" in notes(made, 1)
    assert "--serving-responses-per-s is 2,000/s" in notes(made, 1)
    calm = plan_table(plan_of(load=Load(concurrency=4), price_per_gpu_hour=2.0), 1)
    assert "$/M served" not in calm.headers
    assert not any(note.startswith("*") for note in calm.notes)
    assert "two cores, older and shared with the clients, carried 9,300/s" in "\n".join(calm.notes)


def test_cores_are_those_of_requests_and_of_responses() -> None:
    # By hand: 64 streams and more, 100 requests of 100 tokens a second, each token a response of its own.
    need = ServingLimit().need(10_000, 20.0, osl=100, batch_size=200)
    request_us, response_us = MEASURED_CORE_US[64]
    assert need.responses_per_s == 10_000
    assert need.cores == pytest.approx((100 * request_us + 10_000 * response_us) / 1e6)
    assert need.is_over
    # A token every 5 ms: two leave together after 10. Fewer streams: a response costs more.
    need = ServingLimit().need(1_000, 5.0, osl=100, batch_size=20)
    assert (need.responses_per_s, need.num_streams, need.is_over) == (500, 16, False)
    assert ServingLimit().need(100, 20.0, osl=100, batch_size=2).num_streams == 4


def test_the_figures_of_the_host_are_those_of_the_committed_results() -> None:
    result = json.loads((CODE_ROOT / "benchmarks/results/request_cost_ways_2026-11-28.json").read_text())
    costs = {
        row["streams"]: tuple(round(row["core_us"]["all"][kind]["median"]) for kind in ("request", "response"))
        for row in result["rows"]
        if row["way"] == "past Triton"
    }
    assert costs == MEASURED_CORE_US
    rows = json.loads((CODE_ROOT / "benchmarks/results/responses_2026-11-21.json").read_text())["rows"]
    [one_each] = [row for row in rows if row["offered_tokens_per_s"] == 10_000]
    assert round(one_each["responses_per_s"]["median"], -2) == MEASURED_RESPONSES_PER_S
    [joined] = [row for row in rows if row["offered_tokens_per_s"] == 12_000]
    assert round(joined["tokens_per_s"]["median"], -2) == 11_800
    assert joined["tokens_per_response"]["median"] == pytest.approx(1.14, abs=0.005)


# A checkpoint in the slowest format, so that a checkpoint for another would save something.
SLOW = Quantized("of a test", None, "bf16")
TWO_FORMATS = Wanted(weight_formats=("bf16", "fp8"), kv_formats=("fp8",), tp_sizes=(1,), pp_sizes=(1,))


def first_of(plan: Plan, weight_format: str) -> Option:
    return next(option for option in plan.options if option.weight_format == weight_format)


def test_what_the_checkpoint_in_16_bits_would_save_is_said() -> None:
    def notes_of(**asked: object) -> str:
        assert "16 bits" not in notes(plan_of(num_gpus=2, wanted=TWO_FORMATS, **asked))  # type: ignore[arg-type]
        return notes(plan_of(num_gpus=2, wanted=TWO_FORMATS, quantized=SLOW, **asked))  # type: ignore[arg-type]

    most = first_of(plan_of(wanted=TWO_FORMATS), "bf16").engine_output_tokens_per_s / 1000
    quick = first_of(plan_of(wanted=TWO_FORMATS, load=Load(concurrency=8)), "fp8").estimate.tpot_ms
    prefix = "Made from the checkpoint in 16 bits, fp8 kv-fp8 tp1 takes "
    assert f"{prefix}0." in notes_of()
    assert f"{prefix}1 GPU." in notes_of(load=Load(requests_per_s=1.05 * most))
    assert (
        "The first is made from the checkpoint in 16 bits, not from this one: the checkpoint as it is misses the "
        "targets by TPOT "
    ) in notes_of(load=Load(concurrency=16), targets=Targets(tpot_ms=1.02 * quick))


def test_a_first_option_that_may_not_keep_up_is_told_of() -> None:
    wanted = Wanted(weight_formats=("bf16",), kv_formats=("bf16",))
    first = plan_of(wanted=wanted).options[0]
    most = first.engine_output_tokens_per_s / 1000
    calm, tight = 0.95 * most / first.uncertainty, 0.98 * most
    assert "may not keep up" not in notes(plan_of(wanted=wanted, load=Load(requests_per_s=calm)))
    assert "The first may not keep up" in notes(plan_of(wanted=wanted, load=Load(requests_per_s=tight)))


def test_a_checkpoint_in_its_own_format_loses_nothing_more() -> None:
    wanted = Wanted(weight_formats=("fp8",))
    assert "fp8 is not free of loss" in notes(plan_of(wanted=wanted))
    assert "not free of loss" not in notes(plan_of(wanted=wanted, quantized=Quantized("fp8", None, "fp8")))
