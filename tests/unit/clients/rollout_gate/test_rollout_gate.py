# SPDX-License-Identifier: Apache-2.0
"""The gate as a controller sees it: verdicts, reasons, reports."""

import json
import random
from typing import Any

import pytest
from pydantic import ValidationError

from clients.rollout_gate.evidence import read, sample_of
from clients.rollout_gate.findings import findings_of
from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.report_text import json_text, markdown
from ensemble_configs.split.outcome import Outcome

pytestmark = pytest.mark.slow

SPEC = GateSpec()


def traffic(num: int, *, seed: int = 1, arm: str = "baseline", ttft: float = 1.0, **changes: Any) -> list[Outcome]:
    """Log-normal TTFT of sd 0.3 and TPOT of 0.1, answers of about 60 tokens; `ttft` times as slow."""
    rng, found = random.Random(f"{arm} {seed}"), []
    for _ in range(num):
        stratum, tokens = rng.randrange(2), max(2, round(rng.lognormvariate(4, 0.4)))
        ttft_ms, tpot_ms = ttft * rng.lognormvariate(4 + stratum, 0.3), rng.lognormvariate(3, 0.1)
        facts = {
            "stratum": stratum,
            "ttft_ms": ttft_ms,
            "tpot_ms": tpot_ms,
            "e2e_ms": ttft_ms + tpot_ms * (tokens - 1),
            "num_tokens": tokens,
            "finish_reason": "stop",
        }
        found.append(Outcome(arm=arm, **{**facts, **changes}))
    return found


def judged(candidate: list[Outcome], baseline: list[Outcome], spec: GateSpec = SPEC, *, at_once: int = 20) -> Judgement:
    """Judge as a controller does: the arms' requests side by side, 20 of each a minute."""
    gate, evidence = Gate(spec), None
    for begin in range(0, max(len(candidate), len(baseline)), at_once):
        portion = [*candidate[begin : begin + at_once], *baseline[begin : begin + at_once]]
        evidence = gate.merge(evidence, portion, at_s=3.0 * begin)
    return gate.judge(evidence)


def row(judgement: Judgement, name: str) -> dict[str, Any]:
    rows: Any = judgement.report["metrics"]
    return next(dict(one) for one in rows if one["name"] == name)


def test_without_a_request_there_is_no_data_and_no_pass() -> None:
    found = Gate(SPEC).judge(None)
    assert (found.verdict, found.num_requests) == ("no data", 0)
    assert found.reason == "no request of the candidate or the baseline has ended yet"


def test_without_a_baseline_there_is_no_data() -> None:
    found = judged(traffic(3000, arm="candidate"), [])
    assert (found.verdict, found.reason) == ("no data", "no request of the baseline has ended yet")


def test_a_version_like_the_baseline_is_undecided_first_and_passes_in_the_end() -> None:
    candidate, baseline = traffic(2000, arm="candidate"), traffic(2000)
    early = judged(candidate[:300], baseline[:300])
    assert early.verdict == "undecided"
    assert early.reason.startswith("nothing is proven yet about")
    assert "; a pass takes about" in early.reason
    late = judged(candidate, baseline)
    assert (late.verdict, late.num_requests) == ("pass", 2000)
    assert late.report["is_final"] is True


def test_a_longer_ttft_fails_with_its_figure() -> None:
    found = judged(traffic(1500, arm="candidate", ttft=1.15), traffic(1500))
    assert found.verdict == "fail"
    assert found.reason.startswith("TTFT +1")
    assert row(found, "ttft")["lower"] > 0
    assert row(found, "tpot")["is_worse"] is False


def test_what_is_proven_but_less_than_half_of_too_much_is_no_failure() -> None:
    spec = SPEC.model_copy(update={"max_requests": 20_000})
    found = judged(traffic(12_000, arm="candidate", ttft=1.035), traffic(12_000), spec, at_once=100)
    assert row(found, "ttft")["lower"] > 0  # certainly longer
    assert row(found, "ttft")["change"] == pytest.approx(0.035, abs=0.01)
    assert found.verdict == "pass"


def test_nothing_is_said_of_means_before_there_are_min_requests() -> None:
    spec, slow = (
        SPEC.model_copy(update={"min_requests": 400, "slow_factor": 100.0}),
        traffic(400, arm="candidate", ttft=3),
    )
    found = judged(slow[:380], traffic(380), spec)
    assert (found.verdict, row(found, "ttft")["lower"]) == ("undecided", pytest.approx(1.5, abs=0.2))
    assert judged(slow, traffic(400), spec).verdict == "fail"


def test_what_came_all_at_once_proves_nothing_of_means() -> None:
    gate = Gate(SPEC)
    evidence = gate.merge(None, [*traffic(4000, arm="candidate", ttft=1.5), *traffic(4000)], at_s=5.0)
    found = gate.judge(evidence)
    assert (found.verdict, found.is_final) == ("undecided", False)  # 12 minutes are needed for all of alpha
    assert row(found, "ttft")["lower"] is None


def test_after_max_requests_undecided_is_hold() -> None:
    spec = SPEC.model_copy(update={"max_requests": 300})
    found = judged(traffic(300, arm="candidate"), traffic(300), spec)
    assert found.verdict == "undecided"
    assert found.reason.startswith("hold: after max_requests (300) nothing is proven yet about")
    assert found.report["is_final"] is True


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"error": "UNAVAILABLE"}, "errors: 20.00% against 0.00%"),
        ({"is_empty": True}, "answers without text: 20.00% against 0.00%"),
        ({"is_looping": True}, "answers that loop: 20.00% against 0.00%"),
        ({"finish_reason": "length"}, "answers cut by their length: 20.00% against 0.00%"),
        ({"is_disliked": True}, "disliked answers: 100.00% against 0.00%"),
        ({"num_tokens": 6}, "output length -"),
        ({"tpot_ms": 60.0}, "TPOT +"),
        ({"ttft_ms": 3000.0}, "first tokens far later than their like: 20.00% against 0.00%"),
    ],
)
def test_each_regression_of_a_fifth_of_the_answers_fails_by_its_metric(changes: dict[str, Any], text: str) -> None:
    good, bad = traffic(320, arm="candidate"), traffic(80, seed=2, arm="candidate", **changes)
    candidate = [bad[num // 5] if num % 5 == 0 else good[num - num // 5 - 1] for num in range(400)]
    baseline = traffic(400, is_disliked=False) if "is_disliked" in changes else traffic(400)
    found = judged(candidate, baseline)
    assert found.verdict == "fail"
    assert text in found.reason


def test_more_requests_over_the_target_fail_where_there_is_a_target() -> None:
    spec = SPEC.model_copy(update={"ttft_target_ms": 1e6})
    found = judged(traffic(400, arm="candidate", ttft_ms=2e6), traffic(400), spec)
    assert "requests over the TTFT target: 100.00% against 0.00%" in found.reason


def test_fewer_cut_answers_are_a_change_of_the_mix_too() -> None:
    found = judged(traffic(400, arm="candidate"), traffic(400, finish_reason="length"))
    assert "answers cut by their length: 0.00% against 100.00%" in found.reason


def test_worse_scores_of_the_held_out_prompts_fail() -> None:
    def scored(arm: str, score: float) -> list[Outcome]:
        return [Outcome(arm=arm, prompt=f"p{num}", score=score) for num in range(60)]

    same = judged(traffic(200, arm="candidate") + scored("candidate", 0.9), traffic(200) + scored("baseline", 0.9))
    assert same.verdict == "undecided"
    worse = judged(traffic(200, arm="candidate") + scored("candidate", 0.6), traffic(200) + scored("baseline", 0.9))
    assert worse.verdict == "fail"
    assert worse.reason == "score of the held-out prompts lower by 0.300, more than chance explains"


def test_what_is_optional_does_not_hold_up_a_pass() -> None:
    votes = [Outcome(arm=arm, is_disliked=False) for arm in ("candidate", "baseline")]
    found = judged(traffic(2000, arm="candidate") + votes[:1], traffic(2000) + votes[1:])
    assert row(found, "disliked")["is_fine"] is False
    assert found.verdict == "pass"


def test_errors_of_the_candidate_over_the_guard_fail_whatever_the_baseline_does() -> None:
    failing = [Outcome(arm=arm, error="INTERNAL") for arm in ("candidate", "baseline")]
    gate, verdicts = Gate(SPEC), []
    for number in range(8):
        found = gate.add(*failing, at_s=10.0 * number)
        verdicts.append(found.verdict)
    # Less than a minute may be a moment in which equal releases fail, too.
    assert verdicts == ["undecided"] * 6 + ["fail"] * 2
    assert found.reason == "errors: 8 of 8, over the guard of 5.0%"


@pytest.mark.parametrize("rollouts", [7, pytest.param(11, marks=pytest.mark.soak)])
def test_the_forecast_is_about_what_a_verdict_then_takes(rollouts: int) -> None:
    # Of a quarter of the effect sizes: at 20 requests a minute, the time to a full proof is no matter then.
    spec = SPEC.model_copy(update={"effects": SPEC.effects.model_copy(update={"ttft": 0.1, "tpot": 0.5})})
    early = judged(traffic(600, arm="candidate"), traffic(600), spec)
    forecast, taken = row(early, "ttft")["needed_until_fail"], []
    for seed in range(rollouts):
        gate, evidence = Gate(spec), None
        candidate, baseline = traffic(1200, seed=seed, arm="candidate", ttft=1.1), traffic(1200, seed=seed)
        for begin in range(0, 1200, 20):
            portion = [*candidate[begin : begin + 20], *baseline[begin : begin + 20]]
            evidence = gate.merge(evidence, portion, at_s=3.0 * begin)
            # Half the median is early enough to begin with: looking takes the time of this test.
            if begin + 20 >= forecast / 2 and findings_of(sample_of(read(evidence, spec)), spec)["ttft"].is_worse:
                taken.append(begin + 20)
                break
    assert len(taken) >= 9 / 11 * rollouts
    assert forecast == pytest.approx(sorted(taken)[len(taken) // 2], rel=0.3)


def test_the_forecast_grows_with_the_square_of_the_effect() -> None:
    halved = SPEC.effects.model_copy(update={"ttft": 0.0488})  # half of it as a logarithm
    outcomes = traffic(600, arm="candidate"), traffic(600)
    wide, narrow = judged(*outcomes), judged(*outcomes, SPEC.model_copy(update={"effects": halved}))
    grown = row(narrow, "ttft")["needed_until_pass"] / row(wide, "ttft")["needed_until_pass"]
    assert 3 <= grown <= 4  # four times the information, and less of it for the doubt of its size


def test_the_facade_keeps_what_was_added() -> None:
    gate = Gate(SPEC)
    assert gate.report()["verdict"] == "no data"
    assert gate.add(*traffic(5, arm="candidate"), *traffic(7)).num_requests == 5
    assert gate.report()["requests"] == {"candidate": 5, "baseline": 7}


def test_the_report_is_json_and_a_page() -> None:
    found = judged(traffic(1500, arm="candidate", ttft=1.15), traffic(1500))
    assert json.loads(json_text(found.report))["verdict"] == "fail"
    page = markdown(found.report)
    assert page.startswith("# fail\n\nTTFT +1")
    assert "1500 requests of the candidate, 1500 of the baseline." in page
    cells = next(line for line in page.splitlines() if line.startswith("| TTFT ")).split(" | ")
    assert cells[7] == "worse"
    assert cells[6] == "+10.00%"
    assert "Not measured: ttft_over_target, disliked, quality." in page


def test_too_few_requests_at_most_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"max_requests \(50\) must be at least min_requests \(100\)"):
        GateSpec(max_requests=50)
