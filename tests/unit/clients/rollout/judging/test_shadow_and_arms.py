# SPDX-License-Identifier: Apache-2.0
"""The judges of a shadow and of an A/B test: texts that are told of, guards that end it, cost of each arm."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.rollout.commands.report_command import page
from clients.rollout.judging.arms import ArmsJudge
from clients.rollout.judging.judges import judge_of
from clients.rollout.judging.shadow import ShadowJudge
from clients.rollout.records.rollout_plan import Mode, Plan
from clients.rollout.records.store import Store
from clients.rollout.routing.agreement import agreement
from clients.rollout_gate.gate_spec import GateSpec
from ensemble_configs.split.outcome import Outcome


def outcome(arm: str, **more: object) -> Outcome:
    values = {"ttft_ms": 50.0, "tpot_ms": 5.0, "e2e_ms": 200.0, "num_tokens": 20, "finish_reason": "stop", **more}
    return Outcome(arm=arm, **values)  # type: ignore[arg-type]


def plan(**more: object) -> Plan:
    values = {
        "mode": Mode.AB,
        "candidate": 2,
        "stable": 1,
        "release": {"release": 2},
        "more_releases": ({"release": 3},),
        "salt": "s",
        "shares": (1.0,),
        "arm_shares": (0.5, 0.25, 0.25),
        "gpus_per_seat": (0.5, 0.25, 0.25),
        **more,
    }
    return Plan(**values)  # type: ignore[arg-type]


@given(st.text(), st.text())
def test_agreement_is_one_of_the_same_text_and_of_no_other(one: str, other: str) -> None:
    found = agreement(one, other)
    assert 0 <= found <= 1
    assert (found == 1) == (one == other)
    assert found == agreement(other, one)


@pytest.mark.parametrize(("one", "other", "found"), [("abcd", "abxd", 0.5), ("ab", "abcd", 0.5), ("", "a", 0.0)])
def test_agreement_ends_at_the_first_difference(one: str, other: str, found: float) -> None:
    assert agreement(one, other) == found


def test_a_shadow_tells_of_texts_and_judges_the_rest() -> None:
    judge, evidence = ShadowJudge(GateSpec()), None
    for number in range(300):
        pair = [outcome("baseline"), outcome("candidate", agreement=1.0 if number % 4 else 0.5)]
        evidence = judge.merge(evidence, pair)
    judgement = judge.judge(evidence)
    assert judgement.report["texts"] == {"num": 300, "same": 0.75, "agreement": 0.875}
    assert judgement.num_requests == 300
    text = page(dict(judgement.report), plan(mode=Mode.SHADOW))
    assert "300 copies of greedy requests: 75.0% have the text that the user got" in text
    assert judge.judge(None).verdict == "no data"


def test_arms_are_compared_with_the_stable_release_and_cost_what_they_hold() -> None:
    judge, evidence = judge_of(plan()), None
    for _ in range(200):
        arms = [
            outcome("release 1", e2e_ms=200.0),
            outcome("release 2", e2e_ms=400.0, ttft_ms=100.0),
            outcome("release 3", e2e_ms=200.0),
        ]
        evidence = judge.merge(evidence, arms)
    judgement = judge.judge(evidence)
    assert judgement.verdict == "undecided", "a slower arm may be the one that is wanted"
    assert "rollout report" in judgement.reason
    rows = judgement.report["arms"]
    assert isinstance(rows, dict)
    # 0.2 s for 20 tokens is 10,000 seat seconds a million; of half a GPU each, 5,000.
    assert [round(row["gpu_s_per_million_tokens"]) for row in rows.values()] == [5000, 5000, 2500]
    against = judgement.report["against_stable"]
    assert isinstance(against, dict)
    changes = {arm: {row["name"]: row["change"] for row in one["metrics"]}["ttft"] for arm, one in against.items()}
    assert changes["release 2"] == pytest.approx(1.0)
    assert changes["release 3"] == pytest.approx(0.0)


def test_an_arm_that_fails_its_users_ends_the_test() -> None:
    judge, evidence = ArmsJudge(plan(), GateSpec()), None
    for _ in range(60):
        arms = [outcome("release 1"), outcome("release 2"), outcome("release 3", error="UNAVAILABLE")]
        evidence = judge.merge(evidence, arms)
    judgement = judge.judge(evidence)
    assert judgement.verdict == "fail"
    assert judgement.reason == "release 3: errors over 5%"


def test_outcomes_of_no_arm_are_not_counted() -> None:
    judge = ArmsJudge(plan(), GateSpec())
    evidence = judge.merge(None, [outcome("candidate"), outcome("release 9")])
    assert judge.judge(evidence).verdict == "no data"


def test_the_page_of_arms_says_what_cannot_be_trusted() -> None:
    judge = judge_of(plan())
    outcomes = [outcome(arm) for arm in ("release 1", "release 2", "release 3") for _ in range(5)]
    found = dict(judge.judge(judge.merge(None, outcomes)).report)
    found |= {"units": {"release 1": 5}, "mismatch": "sample ratio mismatch: so it is", "on_several_arms": 2}
    for row in found["arms"].values():  # type: ignore[attr-defined]
        row["usd_per_million_tokens"] = 1.5
    text = page(found, plan())
    assert "**sample ratio mismatch: so it is**" in text
    assert "| release 1 | 50.0% | 5 | 5 | 0 | 100 | 5000.0 | 1.500 |" in text
    assert "2 keys were answered on more than one arm" in text
    assert "## release 3 against the stable release" in text


def test_the_assignment_log_counts_keys_once_and_requests_without_one_each(tmp_path: Path) -> None:
    with Store(tmp_path / "rollouts.sqlite", iter(range(100, 200)).__next__) as store:
        number = store.begin("chat", plan().text(), why="").id
        store.add_evidence(number, 0, "a", lambda _: {}, assigned=[("release 1", "k1"), ("release 2", "k2")])
        store.add_evidence(number, 0, "b", lambda _: {}, assigned=[("release 1", "k1"), ("release 1", "")] * 2)
        store.add_evidence(number, 0, "b", lambda _: {}, assigned=[("release 1", "k3")])
        assert store.assigned.units_by_arm(number) == {"release 1": 3, "release 2": 1}
        assert store.assigned.num_units_on_several_arms(number) == 0
        found = [(each.arm, each.unit, each.requests) for each in store.assigned.rows(number)]
        assert sorted(found) == [("release 1", "", 2), ("release 1", "k1", 3), ("release 2", "k2", 1)]
        store.add_evidence(number, 0, "c", lambda _: {}, assigned=[("release 2", "k1")])
        assert store.assigned.num_units_on_several_arms(number) == 1
