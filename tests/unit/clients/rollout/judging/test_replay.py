# SPDX-License-Identifier: Apache-2.0
"""The scores of answers to a held-out prompt, and the verdict on a candidate that follows from them."""

import math

import numpy as np
import pytest

from clients.rollout.judging.replay import Answer, PromptScores, scores_of
from clients.rollout.judging.text_similarity import COMPARED_CHARS, similarity
from clients.rollout.judging.trial import Trial
from clients.rollout.records.held_out import HeldOut, Prompt
from clients.rollout.records.rollout_plan import Plan, check_plan, gate_spec_of, num_prompts_needed, read_plan
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import alpha_of
from clients.rollout_gate.statistics.score_test import gains, least_pairs, log_evidence
from trireme.base.errors import RequestError, ServerError, SpecError

TWO = "It is two"
BROKEN = ServerError("the engine says nothing", reason="engine_died")


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        ("", "", 1.0),
        ("abcd", "abcd", 1.0),
        (" abcd\n", "abcd", 1.0),
        ("abcd", "", 0.0),
        ("abcd", "efgh", 0.0),
        ("abcd", "bcde", 2 * 3 / 8),  # bcd in both, of 4 + 4 characters
        ("It is two", "It is ten", 2 * 7 / 18),  # "It is t", of 9 + 9
    ],
)
def test_similarity_is_twice_the_common_blocks_over_both_lengths(text: str, other: str, expected: float) -> None:
    assert similarity(text, other) == pytest.approx(expected)


def test_what_comes_late_is_not_compared() -> None:
    assert similarity("a" * COMPARED_CHARS + "b", "a" * COMPARED_CHARS + "c") == 1.0


@pytest.mark.parametrize(
    ("reference", "stable", "again", "candidate", "scores"),
    [
        ("It is two", TWO, None, "It is ten", (7 / 9, 1.0)),
        ("It is two", BROKEN, None, TWO, (1.0, 0.0)),
        ("It is two", TWO, None, BROKEN, (0.0, 1.0)),
        ("It is two", BROKEN, None, BROKEN, None),
        (None, TWO, TWO, TWO, (1.0, 1.0)),
        (None, TWO, "It is ten", TWO, (1.0, 7 / 9)),  # the stable release is not like itself
        (None, TWO, TWO, BROKEN, (0.0, 1.0)),
        (None, TWO, BROKEN, TWO, (1.0, 0.0)),
        (None, TWO, BROKEN, BROKEN, None),
        (None, BROKEN, TWO, TWO, None),  # nothing to be like
    ],
)
def test_an_answer_is_worth_its_similarity_and_an_error_nothing(
    reference: str | None, stable: Answer, again: Answer | None, candidate: Answer, scores: tuple[float, float] | None
) -> None:
    found = scores_of(Prompt(name="p", text="?", reference=reference), stable, again, candidate)
    if scores is None:
        assert (found.candidate, found.stable, found.outcomes()) == (None, None, ())
    else:
        assert (found.candidate, found.stable) == pytest.approx(scores)
        assert {one.arm: one.score for one in found.outcomes()} == {
            "candidate": found.candidate, "baseline": found.stable,
        }  # fmt: skip


def test_an_error_is_told_without_its_message_which_may_hold_a_prompt() -> None:
    wrong = RequestError("text_input 'my secret' has 9 tokens, 8 are allowed", field="text_input", value="my secret")
    found = scores_of(Prompt(name="p", text="my secret"), TWO, TWO, wrong)
    assert found.candidate_error == "INVALID_ARG text_input"
    assert scores_of(Prompt(name="p", text="?"), TWO, TWO, BROKEN).candidate_error == "INTERNAL engine_died"


def test_the_least_number_of_prompts_is_where_the_worst_candidate_fails() -> None:
    alpha = alpha_of("quality", GateSpec())
    won, _ = gains(np.array(-1.0), 0.05)
    num = least_pairs(alpha)
    assert float(log_evidence(won * num)) >= math.log(1 / alpha) > float(log_evidence(won * (num - 1)))


def plan(num_prompts: int | None, **more: object) -> Plan:
    held_out = None if num_prompts is None else HeldOut(file="/p", sha256="", num_prompts=num_prompts, num_at_a_time=2)
    return Plan(candidate=2, stable=1, release={}, salt="s", held_out=held_out, **more)  # type: ignore[arg-type]


def test_the_replay_is_one_more_look_among_which_alpha_is_divided() -> None:
    shares = (0.05, 0.5, 1.0)
    assert gate_spec_of(plan(None, shares=shares)).alpha == pytest.approx(0.01 / 2)
    assert gate_spec_of(plan(40, shares=shares)).alpha == pytest.approx(0.01 / 3)


def test_a_file_that_could_never_fail_a_candidate_is_refused_with_the_number_that_could() -> None:
    num = num_prompts_needed(plan(1))
    assert num == 20
    check_plan(plan(num))
    check_plan(plan(None))
    with pytest.raises(SpecError, match=r"/p has 19 prompts; it needs at least 20"):
        check_plan(plan(19))
    assert num_prompts_needed(plan(1, gate={"alpha": 0.2})) < num


def test_a_plan_of_before_has_no_prompts_and_one_with_them_is_read_as_it_was() -> None:
    assert read_plan('{"candidate": 2, "stable": 1, "release": {}, "salt": "s"}').held_out is None
    assert read_plan(plan(40).text()) == plan(40)


def trial(num_prompts: int = 40) -> Trial:
    made = plan(num_prompts)
    assert made.held_out is not None
    return Trial(Gate(gate_spec_of(made)), made.held_out, num_needed=num_prompts_needed(made))


def scored(candidate: float | None, num: int, *, first: int = 0, stable: float = 1.0) -> list[PromptScores]:
    return [
        PromptScores(name=f"p{first + n}", candidate=candidate, stable=None if candidate is None else stable)
        for n in range(num)
    ]


def test_garbage_fails_as_soon_as_the_gate_can_tell_and_the_worst_prompts_are_named() -> None:
    garbage = trial()
    garbage.add(scored(0.0, 19))
    assert not garbage.is_failed
    garbage.add([PromptScores(name="last", candidate=0.0, stable=1.0, candidate_error="INTERNAL engine_died")])
    assert garbage.is_failed
    assert not garbage.is_good_enough
    assert "score of the held-out prompts lower by 1.000, more than chance explains" in garbage.reason
    assert "0.000 on average, the stable release 1.000, 20 of 40 compared; lowest: 'p0' 0.00 against" in garbage.reason
    assert "'last'" not in garbage.reason, "five are named"
    held_out = garbage.evidence["held_out"]
    assert isinstance(held_out, dict)
    assert (held_out["num_compared"], held_out["mean_candidate"], len(held_out["lowest"])) == (20, 0.0, 5)


def test_a_candidate_that_says_the_same_is_good_enough() -> None:
    same = trial()
    same.add(scored(1.0, 40))
    assert same.is_good_enough
    assert same.progress == "held-out prompts: 100 % of 40"
    assert same.reason == (
        "not shown to be worse: held-out prompts: 1.000 on average, the stable release 1.000, 40 of 40 compared"
    )


def test_a_stable_release_that_is_as_unlike_itself_is_no_fault_of_the_candidate() -> None:
    noisy = trial()
    noisy.add(scored(0.6, 20, stable=0.7))
    noisy.add(scored(0.7, 20, first=20, stable=0.6))
    assert noisy.is_good_enough
    assert "lowest: 'p0' 0.60 against 0.70" in noisy.reason


def test_too_few_prompts_that_could_be_compared_are_no_pass() -> None:
    unanswered = PromptScores(name="long", stable_error="INVALID_ARG text_input")
    few = trial()
    few.add([*scored(1.0, 18), unanswered, *scored(None, 21, first=18)])
    assert not few.is_good_enough
    assert not few.is_failed
    assert "only 18 of 40 held-out prompts could be compared" in few.reason
    assert "'long' (INVALID_ARG text_input)" in few.reason


def test_scores_go_to_the_gate_and_the_report_is_kept() -> None:
    found = trial()
    found.add(scored(0.9, 30))
    metrics = found.evidence["metrics"]
    assert isinstance(metrics, list)
    assert [row["name"] for row in metrics] == ["quality"]
