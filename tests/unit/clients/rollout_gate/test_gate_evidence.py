# SPDX-License-Identifier: Apache-2.0
"""The gate's sums: what is read from an outcome, in portions, through JSON."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.rollout_gate.evidence import read, sample_of
from clients.rollout_gate.gate import Gate
from clients.rollout_gate.gate_spec import EffectSizes, GateSpec
from clients.rollout_gate.metrics import GUARDED, METRICS, alpha_of, guard_alpha
from clients.rollout_gate.sample import Sample
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import RequestError, SpecError

SPEC = GateSpec(ttft_target_ms=200)
GATE = Gate(SPEC)
ARMS = ("candidate", "baseline")
GOOD = Outcome(arm="candidate", ttft_ms=100, tpot_ms=10, e2e_ms=190, num_tokens=10, finish_reason="stop")


def outcome(**changes: Any) -> Outcome:
    return Outcome(**{**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__}, **changes})


def read_as(name: str, **changes: Any) -> float | None:
    return METRICS[name].of(outcome(**changes), SPEC)


@pytest.mark.parametrize(
    ("name", "changes", "value"),
    [
        ("ttft", {}, math.log(100)),
        ("ttft", {"ttft_ms": None}, None),
        ("tpot", {}, math.log(10)),
        ("tpot", {"tpot_ms": None}, None),
        ("ttft", {"queue_ms": 40}, math.log(60)),  # the server tells how long it waited
        ("ttft", {"queue_ms": 99.9, "prefill_ms": 20}, math.log(20)),  # and how long it was prefilled at least
        ("output_tokens", {}, math.log(10)),
        ("output_tokens", {"num_tokens": 0}, None),
        ("ttft_over_target", {"ttft_ms": 200}, 0),
        ("ttft_over_target", {"ttft_ms": 201}, 1),
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


def sums_of(evidence: Any) -> Sample:
    return sample_of(read(evidence, SPEC))


def test_what_users_think_counts_for_that_alone_and_is_no_request() -> None:
    said = [Outcome(arm="candidate", is_disliked=True, is_feedback=True)] * 3
    found = sums_of(GATE.merge(GATE.merge(None, [GOOD]), said))
    assert found.num_requests.tolist() == [1, 0]
    assert found.counts["disliked"].events.tolist() == [3, 0]
    assert found.counts["disliked"].num.tolist() == [3, 0]
    assert found.counts["errors"].num.tolist() == [1, 0]


@settings(max_examples=30)
@given(st.data())
def test_portions_and_json_in_between_change_nothing(data: st.DataObject) -> None:
    outcomes = [
        outcome(
            arm=data.draw(st.sampled_from(["candidate", "baseline"])),
            stratum=data.draw(st.integers(0, 2)),
            ttft_ms=data.draw(st.floats(1, 1000)),
            error=data.draw(st.sampled_from(["", "", "INTERNAL"])),
            unit=data.draw(st.sampled_from(["", "a1", "b2"])),
            tenant=data.draw(st.sampled_from(["", "acme"])),
        )
        for _ in range(data.draw(st.integers(1, 15)))
    ]
    cut = data.draw(st.integers(0, len(outcomes)))
    whole = GATE.merge(None, outcomes, at_s=7.0)
    first = json.loads(json.dumps(GATE.merge(None, outcomes[:cut], at_s=7.0)))
    second = json.loads(json.dumps(GATE.merge(first, outcomes[cut:], at_s=7.0)))
    assert_equal(sums_of(whole), sums_of(second))


def test_a_restart_between_any_two_portions_changes_nothing() -> None:
    through_json = kept = None
    for block in range(60):
        portion = [
            outcome(
                arm=arm, ttft_ms=100 + (7 * number + block) % 13, unit=f"{number}", tenant="acme", stratum=number % 3
            )
            for number in range(22)
            for arm in ARMS
        ]
        through_json = json.loads(json.dumps(GATE.merge(through_json, portion, at_s=10.0 * block)))
        kept = GATE.merge(kept, portion, at_s=10.0 * block)
    found = GATE.judge(through_json)
    assert found == GATE.judge(kept)
    assert found.num_requests == 60 * 22


def assert_equal(one: Sample, other: Sample) -> None:
    assert one.num_requests.tolist() == other.num_requests.tolist()
    assert set(one.counts) == set(other.counts)
    for name, counts in one.counts.items():
        assert counts.events.tolist() == other.counts[name].events.tolist()
        assert counts.num.tolist() == other.counts[name].num.tolist()
        assert one.spreads[name].inflation == pytest.approx(other.spreads[name].inflation)
        assert one.runs[name].num.tolist() == other.runs[name].num.tolist()


@pytest.mark.parametrize("blocks", [150, pytest.param(1000, marks=pytest.mark.soak)])
def test_evidence_stays_small_however_long_a_rollout_is(blocks: int) -> None:
    evidence = None
    for block in range(blocks):  # more than a day
        portion = [outcome(arm=arm, stratum=number % 5, ttft_ms=100 + number) for number in range(25) for arm in ARMS]
        evidence = GATE.merge(evidence, portion, at_s=100_000.0 / blocks * block)
    assert len(json.dumps(evidence)) < 20_000


def test_merging_leaves_the_evidence_that_was_given_as_it_was() -> None:
    before = GATE.merge(None, [GOOD])
    kept = json.dumps(before)
    GATE.merge(before, [GOOD])
    assert json.dumps(before) == kept


def test_slow_is_a_request_of_five_times_the_ttft_of_its_like() -> None:
    rng, evidence = np.random.default_rng(1), None
    for block in range(10):
        # A prompt of 32 times the tokens takes 32 times as long: that alone is not slow.
        portion = [
            outcome(arm=arm, num_prompt_tokens=tokens, ttft_ms=float(tokens * rng.lognormal(0, 0.2)))
            for tokens in (50, 1600)
            for arm in ARMS
            for _ in range(20)
        ]
        evidence = GATE.merge(evidence, portion, at_s=10.0 * block)
    assert sums_of(evidence).counts["slow"].events.tolist() == [0, 0]
    slow = [outcome(num_prompt_tokens=tokens, ttft_ms=8.0 * tokens) for tokens in (50, 1600)]
    late = sums_of(GATE.merge(evidence, slow, at_s=101.0))
    assert late.counts["slow"].events.tolist() == [2, 0]


def test_a_held_out_prompt_counts_once_and_only_for_quality() -> None:
    def scored(arm: str, score: float) -> Outcome:
        return outcome(arm=arm, prompt="sum", score=score)

    evidence = GATE.merge(None, [scored("candidate", 0.9), scored("candidate", 0.25)])
    evidence = GATE.merge(evidence, [scored("baseline", 0.75), scored("candidate", 0.0), scored("baseline", 1.0)])
    found = sums_of(evidence)
    assert found.scores["quality"].num == 1
    assert found.scores["quality"].total == -0.5  # the candidate's newest score, 0.25, less 0.75
    assert found.num_requests.tolist() == [0, 0]
    assert GATE.judge(evidence).verdict == "no data"


def test_an_arm_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"arm 'shadow' is judged by no one.*'candidate' or 'baseline'"):
        GATE.merge(None, [outcome(arm="shadow")])


def test_the_arms_of_an_a_b_test_have_their_own_names() -> None:
    gate = Gate(GateSpec(), candidate="b", baseline="a")
    evidence = gate.merge(None, [outcome(arm="a"), outcome(arm="b"), outcome(arm="b")])
    assert gate.judge(evidence).num_requests == 1


def test_evidence_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match=r"the evidence cannot be read: .*num_requests.*begin the step anew"):
        GATE.judge({"settings": {}, "num_requests": 3, "timeline": {}, "sums": {}})
    before = dict(GATE.merge(None, [GOOD]))
    with pytest.raises(SpecError, match=r"the evidence cannot be read: .*begin the step anew"):
        GATE.judge({**before, "sums": {"means": {}, "events": {}}})


def test_evidence_of_other_settings_is_refused() -> None:
    evidence = GATE.merge(None, [GOOD])
    with pytest.raises(SpecError, match=r"gathered with ttft_target_ms 200\.0, and the spec has 300\.0"):
        Gate(GateSpec(ttft_target_ms=300)).judge(evidence)
