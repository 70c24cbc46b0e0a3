# SPDX-License-Identifier: Apache-2.0
"""AISimulate as an estimator: what it is asked, how its answers are read, and when the roofline stands in."""

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from aisimulate_recorded import __file__ as recorded_worker
from aisimulate_recorded import recording

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.planner.estimators import estimator_choice, uncertainty
from build_engines.planner.estimators.aisimulate_estimator import AiSimulate
from build_engines.planner.estimators.aisimulate_process import AiSimulateProcess, model_folder
from build_engines.planner.estimators.estimator import Load, Roofline
from build_engines.planner.estimators.estimator_choice import Wish, chosen, stated_errors
from build_engines.planner.estimators.strata import STRATA
from build_engines.planner.estimators.uncertainty import factor_of
from build_engines.planner.plan_report import plan_as_data, print_plan
from build_engines.planner.question import Question
from build_engines.planner.ranking import make_plan
from build_engines.planner.roofline.candidates import Candidate, Machines, Wanted, candidates
from build_engines.planner.roofline.efficiencies import TABLE as EFFICIENCIES
from build_engines.planner.roofline.steady_state import Estimate, Limits, Workload
from trireme.base.errors import ServerError, SpecError
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

LLAMA = known_models()["llama-3.1-8b"].config
SHAPE = read_model_shape(LLAMA)
CHAT = Workload(128, 128)
LIMITS = Limits(kv_tokens=64 * 256)  # 64 requests
WANTED = Wanted(weight_formats=("fp8", "int4_awq"), kv_formats=("fp8",), tp_sizes=(1,), pp_sizes=(1,))


def process_of(program: str) -> AiSimulateProcess:
    return AiSimulateProcess((sys.executable, program))


def candidate(weight_format: str = "fp8", gpu: str = "h100", **wanted: tuple[str, ...] | tuple[int, ...]) -> Candidate:
    chosen_ones = {"weight_formats": (weight_format,), "kv_formats": ("fp8",), "tp_sizes": (1,), "pp_sizes": (1,)}
    legal, _ = candidates(SHAPE, Machines(gpu_named(gpu), 2), Wanted(**(chosen_ones | wanted)))  # type: ignore[arg-type]
    return legal[0]


FP8 = candidate()


@pytest.fixture
def recorded() -> Iterator[AiSimulate]:
    process = process_of(recorded_worker)
    with model_folder(LLAMA) as folder:
        yield AiSimulate(folder, process)
    process.close()


def estimated(estimator: AiSimulate, load: Load, limits: Limits = LIMITS) -> Estimate:
    assert estimator.why_not(FP8, CHAT, limits) is None
    found = estimator.estimate(FP8, CHAT, load, limits)
    assert found is not None
    return found


def recorded_points() -> list[dict[str, float]]:
    [points, _] = [pair["answer"]["points"] for pair in recording() if pair["question"]["linear"] == "fp8"]
    return list(points)


def test_a_full_batch_is_ours_and_its_figures_are_as_recorded(recorded: AiSimulate) -> None:
    found, full = estimated(recorded, Load()), recorded_points()[-1]
    assert found.batch_size == 64
    assert found.ttft_ms == pytest.approx(full["ttft_ms"])
    assert found.tpot_ms == pytest.approx(full["tpot_ms"])
    assert found.output_tokens_per_s == pytest.approx(full["requests_per_s"] * 128)
    assert found.step is None
    assert found.bound_by == "(not said)"
    assert recorded.version == "1.3.0rc20"


# A process that answers by a formula: a batch of n has its first token after n ms, then one every 10 ms.
FORMULA = """
import json, sys
for line in sys.stdin:
    sizes = [point["batch_size"] for point in json.loads(line)["points"]]
    points = [{"ttft_ms": n, "tpot_ms": 10, "requests_per_s": n} for n in sizes]
    print(json.dumps({"version": "1", "points": points}), flush=True)
"""


@pytest.fixture
def by_formula(tmp_path: Path) -> Iterator[AiSimulate]:
    (tmp_path / "worker.py").write_text(FORMULA)
    process = process_of(str(tmp_path / "worker.py"))
    yield AiSimulate(str(tmp_path), process)
    process.close()


@pytest.mark.parametrize("full", [1, 2, 3, 64, 100, 127])
def test_a_full_batch_is_asked_for_whether_it_is_a_power_of_two_or_not(by_formula: AiSimulate, full: int) -> None:
    limits = Limits(kv_tokens=full * 256)
    found = estimated(by_formula, Load(), limits)
    assert found.batch_size == full
    assert found.ttft_ms == pytest.approx(full)  # nobody waits for a place
    assert found.output_tokens_per_s == pytest.approx(full * 128)
    assert by_formula.estimate(FP8, CHAT, Load(requests_per_s=0.99 * full), limits) is not None
    assert by_formula.estimate(FP8, CHAT, Load(requests_per_s=1.01 * full), limits) is None


def test_a_full_batch_that_the_stages_cannot_share_evenly_is_served_whole(by_formula: AiSimulate) -> None:
    staged, limits = candidate(pp_sizes=(2,)), Limits(kv_tokens=9 * 256)  # 9 sequences in two batches: of 4 and 5
    assert by_formula.why_not(staged, CHAT, limits) is None
    found = by_formula.estimate(staged, CHAT, Load(), limits)
    assert found is not None
    assert found.batch_size == 9
    assert 4 < found.ttft_ms < 5


def test_between_two_batches_it_is_interpolated_by_powers(recorded: AiSimulate) -> None:
    below, above = recorded_points()[-2:]  # of 32 and 64
    found = estimated(recorded, Load(concurrency=math.sqrt(32 * 64)))
    assert found.tpot_ms == pytest.approx(math.sqrt(below["tpot_ms"] * above["tpot_ms"]))


def test_clients_beyond_the_batch_wait(recorded: AiSimulate) -> None:
    full, twice = estimated(recorded, Load()), estimated(recorded, Load(concurrency=128))
    assert twice.output_tokens_per_s == full.output_tokens_per_s
    waiting_ms = 64 / (full.output_tokens_per_s / 128) * 1000
    assert twice.ttft_ms == pytest.approx(full.ttft_ms + waiting_ms)


def test_a_rate_is_served_by_littles_law_or_not_at_all(recorded: AiSimulate) -> None:
    most = estimated(recorded, Load()).output_tokens_per_s / 128
    found = estimated(recorded, Load(requests_per_s=most / 2))
    in_engine = most / 2 * (found.ttft_ms + 127 * found.tpot_ms) / 1000
    assert found.batch_size == pytest.approx(in_engine, rel=0.01)
    assert recorded.estimate(FP8, CHAT, Load(requests_per_s=most * 1.01), LIMITS) is None


@pytest.mark.parametrize("users", [1, 300])
def test_users_are_those_in_the_engine_and_those_who_think(recorded: AiSimulate, users: int) -> None:
    found = estimated(recorded, Load(users=users, think_time_s=30))
    assert found.batch_size + 30 * found.output_tokens_per_s / 128 == pytest.approx(users, rel=0.01)


def test_where_not_one_request_fits_there_is_no_estimate(recorded: AiSimulate) -> None:
    little = Limits(kv_tokens=255)
    assert recorded.why_not(FP8, CHAT, little) is None
    assert recorded.estimate(FP8, CHAT, Load(), little) is None


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (candidate("int4_awq"), "PerfDataNotAvailableError: .*GEMM perf data missing for quant 'int4_wo'; available: "),
        (candidate("fp8_rowwise"), "it has no tables of fp8_rowwise"),
        (candidate(gpu="l4"), "it has no tables of L4"),
        (candidate("nvfp4", gpu="b200", kv_formats=("nvfp4",)), "it has no tables of a KV cache in nvfp4"),
        (candidate(pp_sizes=(2,)), "it runs 2 batches at once, and there is room for 1 sequences"),
    ],
    ids=lambda value: value.name if isinstance(value, Candidate) else "",
)
def test_it_says_why_it_cannot(recorded: AiSimulate, one: Candidate, words: str) -> None:
    limits = Limits(256) if one.layout.pp_size > 1 else LIMITS
    assert re.search(words, str(recorded.why_not(one, CHAT, limits)))


def test_answers_of_one_token_have_no_steady_state(recorded: AiSimulate) -> None:
    assert recorded.why_not(FP8, Workload(128, 1), LIMITS) == ("it has no steady state of answers of one token")


def test_where_it_is_not_installed_it_names_the_way_to_install_it() -> None:
    absent = AiSimulateProcess(("/nowhere/python",))
    reason = AiSimulate("/nowhere", absent).why_not(FP8, CHAT, LIMITS)
    assert reason == "AISimulate is not installed; `make aisimulate` does it (1.5 GB in .tools/aisimulate)"
    with pytest.raises(SpecError, match="`make aisimulate` does it"), chosen("aisimulate", LLAMA, absent):
        pass


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not JSON", "answered what is not an answer"),
        ('{"version": "1", "points": [{"ttft_ms": 1, "tpot_ms": 1}]}', "missing required field `requests_per_s`"),
        ('{"version": "1", "points": [], "more": 1}', "unknown field `more`"),
        ('{"version": "1", "points": []}', "answered 0 points for 7"),
        ('{"version": "1", "points": [' + ", ".join(['{"ttft_ms": 0, "tpot_ms": 1, "requests_per_s": 1}'] * 7) + "]}",
         "answered what cannot be"),
        ('{"version": "1", "points": [{"ttft_ms": NaN, "tpot_ms": 1, "requests_per_s": 1}]}', "not an answer"),
    ],
    ids=["words", "a missing figure", "an unknown key", "too few", "a first token at once", "not a number"],
)  # fmt: skip
def test_another_answer_is_refused(tmp_path: Path, line: str, words: str) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(f"input()\nprint({line!r}, flush=True)\ninput()\n")
    process = process_of(str(worker))
    with pytest.raises(ServerError, match=words):
        AiSimulate(str(tmp_path), process).why_not(FP8, CHAT, LIMITS)
    process.close()


def test_a_process_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("input()\nraise ImportError('no module named jax')\n")
    with pytest.raises(ServerError, match="ended without an answer: ImportError: no module named jax"):
        AiSimulate(str(tmp_path), process_of(str(worker))).why_not(FP8, CHAT, LIMITS)


def test_the_config_is_handed_over_without_its_quantization() -> None:
    with model_folder(dict(LLAMA) | {"quantization_config": {"quant_method": "fp8"}}) as folder:
        assert json.loads((Path(folder) / "config.json").read_text()) == LLAMA
    assert not Path(folder).exists()


MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 96}


def test_a_mistral_is_asked_about_as_the_llama_that_it_is_but_for_its_window(by_formula: AiSimulate) -> None:
    with model_folder(MISTRAL | {"sliding_window": None}) as folder:
        handed_over = json.loads((Path(folder) / "config.json").read_text())
    assert handed_over == MISTRAL | {"architectures": ["LlamaForCausalLM"], "sliding_window": None}
    for window, why in (
        (None, None),
        (256, None),  # a sequence of CHAT has as many tokens
        (255, "it counts no sliding windows of MistralForCausalLM"),
    ):
        shape = read_model_shape(MISTRAL | {"sliding_window": window})
        legal, _ = candidates(shape, Machines(gpu_named("h100"), 1), WANTED)
        assert by_formula.why_not(legal[0], CHAT, LIMITS) == why


def test_windows_of_a_gpt_oss_are_counted_by_it(by_formula: AiSimulate) -> None:
    shape = read_model_shape(known_models()["gpt-oss-20b"].config)
    assert any(layer.sliding_window == 128 for layer in shape.layers)
    legal, _ = candidates(
        shape, Machines(gpu_named("h100"), 1), replace(WANTED, weight_formats=("bf16",), kv_formats=("bf16",))
    )
    assert by_formula.why_not(legal[0], CHAT, LIMITS) is None


# The choice.


def errors_with(theirs: float) -> dict[str, dict[str, dict[str, float]]]:
    """Return stated errors in which AISimulate's is another for plain engines, and worse for the rest."""
    ours = {"num_cells": 73, "median": 1.2}
    return {
        stratum: {"roofline": ours, "aisimulate": {"num_cells": 73, "median": theirs if stratum == "plain" else 2.0}}
        for stratum in STRATA
    }


@pytest.mark.parametrize(
    ("wish", "is_installed", "theirs", "first", "why"),
    [
        ("roofline", True, 1.01, "roofline", "roofline was asked for"),
        ("aisimulate", True, 9.0, "aisimulate", "aisimulate was asked for"),
        ("auto", True, 1.30, "aisimulate", ""),  # asked for each candidate
        ("auto", True, 1.10, "aisimulate", ""),
        ("auto", False, 1.10, "roofline", "but it is not installed"),
        ("auto", False, 1.30, "roofline", "in every stratum the roofline's median error is the smaller one"),
    ],
)
def test_the_first_estimator_is_chosen_by_wish_or_by_stated_errors(
    monkeypatch: pytest.MonkeyPatch, wish: Wish, is_installed: bool, theirs: float, first: str, why: str
) -> None:
    monkeypatch.setattr(estimator_choice, "stated_errors", lambda: errors_with(theirs))
    process = process_of(recorded_worker) if is_installed else AiSimulateProcess(("/nowhere/python",))
    with chosen(wish, LLAMA, process) as choice:
        assert choice.estimators[0].name == first
        assert choice.estimators[-1].name == "roofline"
        assert why in choice.why


@pytest.mark.parametrize(("theirs", "estimator"), [(1.10, "aisimulate"), (1.30, "roofline")])
def test_auto_asks_aisimulate_about_the_strata_in_which_it_is_nearer(
    monkeypatch: pytest.MonkeyPatch, theirs: float, estimator: str
) -> None:
    monkeypatch.setattr(estimator_choice, "stated_errors", lambda: errors_with(theirs))
    monkeypatch.setattr(uncertainty, "stated_errors", stated_errors)
    wanted = replace(WANTED, weight_formats=("fp8",), max_batch_size=64)
    question = Question(SHAPE, Machines(gpu_named("h100"), 1), CHAT, wanted=wanted)
    with chosen("auto", LLAMA, process_of(recorded_worker)) as choice:
        [option] = make_plan(question, choice.estimators).options
    assert option.estimator == estimator
    words = f"in the stratum 'plain' roofline's median error is x/÷ 1.20, AISimulate's {theirs:.2f}"
    assert option.why_estimator == (
        "" if estimator == "aisimulate" else f"aisimulate: {words}, on 73 published cells that both can do"
    )


def test_a_plan_says_who_estimated_what_and_why(recorded: AiSimulate, capsys: pytest.CaptureFixture[str]) -> None:
    question = Question(SHAPE, Machines(gpu_named("h100"), 1), CHAT, wanted=replace(WANTED, max_batch_size=64))
    made = make_plan(question, [recorded, Roofline()], why_estimator="aisimulate was asked for")
    by_format = {option.candidate.engine.formats.linear.name: option for option in made.options}
    assert {name: option.estimator for name, option in by_format.items()} == {
        "fp8": "aisimulate", "int4_awq": "roofline",
    }  # fmt: skip
    assert by_format["fp8"].why_estimator == ""
    assert by_format["int4_awq"].why_estimator.startswith("aisimulate: PerfDataNotAvailableError: ")
    assert len(by_format["fp8"].curve) == 7
    data = json.loads(json.dumps(plan_as_data(made, name="llama")))
    assert data["estimator"]["errors"] == stated_errors()
    assert {one["weight_format"]: one["why_estimator"][:10] for one in data["options"]} == {
        "fp8": "aisimulate", "int4_awq": "aisimulate",
    }  # fmt: skip
    print_plan(made, name="llama", num_shown=2)
    shown = capsys.readouterr().out
    assert "1 options by aisimulate" in shown
    assert "1 options by roofline" in shown
    assert "aisimulate was asked for" in shown
    assert "GEMM perf data missing for quant 'int4_wo'" in shown


def test_a_factor_is_of_the_estimator_that_was_used() -> None:
    ours, _ = factor_of(FP8)
    theirs, _ = factor_of(FP8, "aisimulate")
    assert theirs == pytest.approx(stated_errors()["plain"]["aisimulate"]["p90"])
    assert theirs != ours


def test_the_command_line_says_why_it_takes_an_estimator(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_command("plan", ["llama-3.1-8b", "--gpus", "1", "--format", "fp8", "--estimator", "roofline"])
    assert end.value.code == 0
    assert "roofline was asked for" in capsys.readouterr().out


def test_stated_errors_are_those_of_the_last_comparison() -> None:
    [*_, last] = sorted((CODE_ROOT / "benchmarks/results").glob("planner_estimators_*.json"))
    assert stated_errors() == json.loads(last.read_text())["shared"]


def test_the_constants_are_those_of_the_last_fit() -> None:
    [*_, last] = sorted((CODE_ROOT / "benchmarks/results").glob("planner_fit_*.json"))
    assert yaml.safe_load(EFFICIENCIES.read_text())["errors"] == json.loads(last.read_text())["summary"]
