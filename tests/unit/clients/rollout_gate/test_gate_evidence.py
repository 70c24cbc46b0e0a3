# SPDX-License-Identifier: Apache-2.0
"""The gate's sums: what is read from an outcome, in portions, through JSON."""

import json
import math
import statistics
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.rollout_gate.blocks import Sums
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import EffectSizes, GateSpec
from clients.rollout_gate.metrics import GUARDED, METRICS, Reference, alpha_of, guard_alpha
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import RequestError, SpecError

GATE = Gate(GateSpec(ttft_target_ms=200))
REFERENCE = Reference(ttft_target_ms=200, slow_ttft_ms={0: 500.0})
ARMS = ("candidate", "baseline")
GOOD = Outcome(arm="candidate", ttft_ms=100, tpot_ms=10, e2e_ms=190, num_tokens=10, finish_reason="stop")


def outcome(**changes: Any) -> Outcome:
    return Outcome(**{**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__}, **changes})


def read_as(name: str, **changes: Any) -> float | None:
    return METRICS[name].of(outcome(**changes), REFERENCE)


@pytest.mark.parametrize(
    ("name", "changes", "value"),
    [
        ("ttft", {}, math.log(100)),
        ("ttft", {"ttft_ms": None}, None),
        ("tpot", {}, math.log(10)),
        ("tpot", {"tpot_ms": None}, None),
        ("e2e_per_token", {}, math.log(19)),  # 190 ms, 10 tokens
        ("e2e_per_token", {"error": "UNAVAILABLE"}, None),
        ("output_tokens", {}, math.log(10)),
        ("output_tokens", {"num_tokens": 0}, None),
        ("ttft_over_target", {"ttft_ms": 200}, 0),
        ("ttft_over_target", {"ttft_ms": 201}, 1),
        ("slow", {"ttft_ms": 501}, 1),
        ("slow", {"ttft_ms": 499}, 0),
        ("slow", {"ttft_ms": 501, "stratum": 1}, None),  # nothing is known of that stratum's baseline
        ("errors", {}, 0),
        ("errors", {"error": "UNAVAILABLE"}, 1),
        ("empty", {"is_empty": True}, 1),
        ("empty", {"is_empty": True, "error": "INTERNAL"}, None),
        ("looping", {"is_looping": True}, 1),
        ("cut", {}, 0),
        ("cut", {"finish_reason": "length"}, 1),
        ("cut", {"finish_reason": ""}, None),
        ("disliked", {}, None),
        ("disliked", {"is_disliked": False}, 0),
        ("disliked", {"is_disliked": True}, 1),
        ("quality", {"prompt": "p", "score": 0.5}, 0.5),
    ],
)
def test_a_metric_reads_its_figure(name: str, changes: dict[str, Any], value: float | None) -> None:
    assert read_as(name, **changes) == (None if value is None else pytest.approx(value))


def test_every_metric_has_an_effect_size_and_a_part_of_the_error_budget() -> None:
    spec = GateSpec()
    assert set(METRICS) == set(EffectSizes.model_fields)
    parts = [alpha_of(name, spec) for name in METRICS] + [guard_alpha(spec)] * len(GUARDED)
    assert sum(parts) == pytest.approx(spec.alpha)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=50))
def test_sums_are_those_of_the_whole_list(values: list[float]) -> None:
    sums = Sums()
    for value in values:
        sums.add(value)
    assert sums.num == len(values)
    assert sums.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert sums.m2 == pytest.approx(statistics.variance(values) * (len(values) - 1), abs=1e-7)


def test_what_users_think_counts_for_that_alone_and_is_no_request() -> None:
    said = [Outcome(arm="candidate", is_disliked=True, is_feedback=True)] * 3
    evidence = GATE.merge(GATE.merge(None, [GOOD]), said)
    candidate, _ = arms_of(evidence)
    assert candidate["num_requests"] == 1
    assert candidate["counts"]["disliked"] == {"events": 3, "num": 3}
    assert candidate["counts"]["errors"]["num"] == 1


def arms_of(evidence: Mapping[str, Any]) -> tuple[Any, Any]:
    return evidence["candidate"], evidence["baseline"]


@given(st.data())
def test_portions_and_json_in_between_change_nothing(data: st.DataObject) -> None:
    outcomes = [
        outcome(
            arm=data.draw(st.sampled_from(["candidate", "baseline"])),
            stratum=data.draw(st.integers(0, 2)),
            ttft_ms=data.draw(st.floats(1, 1000)),
            error=data.draw(st.sampled_from(["", "", "INTERNAL"])),
        )
        for _ in range(data.draw(st.integers(1, 15)))
    ]
    cut = data.draw(st.integers(0, len(outcomes)))
    whole = GATE.merge(None, outcomes, at_s=7.0)
    first = json.loads(json.dumps(GATE.merge(None, outcomes[:cut], at_s=7.0)))
    assert json.loads(json.dumps(GATE.merge(first, outcomes[cut:], at_s=7.0))) == json.loads(json.dumps(whole))


def test_evidence_stays_small_however_long_a_rollout_is() -> None:
    evidence = None
    for block in range(1000):  # 100 s each: more than a day
        portion = [outcome(arm=arm, stratum=number % 5, ttft_ms=100 + number) for number in range(25) for arm in ARMS]
        evidence = GATE.merge(evidence, portion, at_s=100.0 * block)
    assert len(json.dumps(evidence)) < 20_000


def test_merging_leaves_the_evidence_that_was_given_as_it_was() -> None:
    before = GATE.merge(None, [GOOD])
    kept = json.dumps(before)
    GATE.merge(before, [GOOD])
    assert json.dumps(before) == kept


def test_slow_is_judged_by_what_the_baseline_was_before() -> None:
    baseline = [outcome(arm="baseline")] * 30
    slow = outcome(ttft_ms=501)  # the baseline's mean is 100, five times it is 500
    at_once = arms_of(GATE.merge(None, [*baseline, slow]))[0]
    assert "slow" not in at_once["counts"]  # of one portion nothing was known before
    later = arms_of(GATE.merge(GATE.merge(None, baseline), [slow, GOOD]))[0]
    assert later["counts"]["slow"] == {"events": 1, "num": 2}


def test_a_held_out_prompt_counts_once_and_only_for_quality() -> None:
    def scored(arm: str, score: float) -> Outcome:
        return outcome(arm=arm, prompt="sum", score=score)

    evidence = GATE.merge(None, [scored("candidate", 0.9), scored("candidate", 0.25)])
    evidence = GATE.merge(evidence, [scored("baseline", 0.75), scored("candidate", 0.0), scored("baseline", 1.0)])
    pairs: Any = evidence["pairs"]
    assert pairs["quality"]["num"] == 1
    assert pairs["quality"]["total"] == -0.5  # the candidate's newest score, 0.25, less 0.75
    assert arms_of(evidence)[0]["num_requests"] == 0
    assert GATE.judge(evidence).verdict == "no data"


def test_an_arm_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"arm 'shadow' is judged by no one.*'candidate' or 'baseline'"):
        GATE.merge(None, [outcome(arm="shadow")])


def test_the_arms_of_an_a_b_test_have_their_own_names() -> None:
    gate = Gate(GateSpec(), candidate="b", baseline="a")
    evidence = gate.merge(None, [outcome(arm="a"), outcome(arm="b"), outcome(arm="b")])
    assert gate.judge(evidence).num_requests == 1


def test_evidence_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match=r"the evidence cannot be read: .*candidate.*begin the step anew"):
        GATE.judge({"settings": {}, "baseline": {}, "candidate": 3})


def test_evidence_of_other_settings_is_refused() -> None:
    evidence = GATE.merge(None, [GOOD])
    with pytest.raises(SpecError, match=r"gathered with ttft_target_ms 200\.0, and the spec has 300\.0"):
        Gate(GateSpec(ttft_target_ms=300)).judge(evidence)
