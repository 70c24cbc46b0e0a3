# SPDX-License-Identifier: Apache-2.0
"""Traffic that misleads a careless gate: steady engines, few figures, few keys, small shares, groups apart."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from gate_rows import rows_of

from clients.rollout_gate.evidence import read, sample_of
from clients.rollout_gate.findings import findings_of
from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.sums.slow import SlowLimit
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import RequestError, SpecError

SPEC = GateSpec()
ARMS = ("candidate", "baseline")
GOOD: dict[str, Any] = {"ttft_ms": 50.0, "tpot_ms": 10.0, "num_tokens": 20, "finish_reason": "stop"}
RNG = np.random.default_rng(1)
FIRST_STATE = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_requests_in_any_order() -> None:
    """Begin the traffic of each test anew, whichever tests ran before."""
    RNG.bit_generator.state = FIRST_STATE


def judged(portions: Iterable[list[Outcome]], *, every_s: float = 12.0) -> Judgement:
    """Judge at the end; a look at each portion is what other tests do."""
    gate, evidence = Gate(SPEC), None
    for number, portion in enumerate(portions):
        evidence = gate.merge(evidence, portion, at_s=every_s * number)
    return gate.judge(evidence)


def portion(of: dict[str, Any], **of_candidate: Any) -> list[Outcome]:
    """Return 20 requests of each arm, each with a TTFT of its own."""
    return [
        Outcome(
            arm=arm,
            **{
                **GOOD,
                "ttft_ms": 50.0 * float(RNG.lognormal(0, 0.2)),
                **of,
                **(of_candidate if arm == "candidate" else {}),
            },
        )
        for arm in ARMS
        for _ in range(20)
    ]


def row(found: Judgement, name: str) -> dict[str, Any]:
    rows: Any = found.report["metrics"]
    return dict(next(one for one in rows if one["name"] == name))


def test_an_engine_without_any_spread_that_is_half_as_slow_again_fails() -> None:
    def steady(tpot_ms: float) -> dict[str, float]:
        return {"tpot_ms": tpot_ms * float(RNG.lognormal(0, 0.001)) * (2 if RNG.random() < 0.01 else 1)}

    def requests() -> list[Outcome]:
        found = [(arm, steady(15.0 if arm == "candidate" else 10.0)) for arm in ARMS for _ in range(20)]
        return [Outcome(arm=arm, **{**GOOD, **times}) for arm, times in found]

    found = judged(requests() for _ in range(74))
    assert found.verdict == "fail"
    assert row(found, "tpot")["is_fine"] is False
    assert row(found, "tpot")["change"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("times", "spread", "effect", "look_every"),
    [
        (1.25, 0.001, 0.05, 6),
        (1.25, 0.03, 0.9, 6),
        (4.0, 0.01, 0.9, 6),
        (4.0, 0.03, 0.05, 6),
        *(
            pytest.param(times, spread, effect, 1, marks=pytest.mark.soak)
            for times in (1.25, 4.0)
            for spread in (0.001, 0.01, 0.03)
            for effect in (0.05, 0.9)
        ),
    ],
)
def test_a_candidate_that_is_slower_than_the_bounds_of_its_like_are_wide_is_not_fine(
    times: float, spread: float, effect: float, look_every: int
) -> None:
    if times < 1 + effect:
        times = 2.5
    gate, evidence = Gate(SPEC.model_copy(update={"effects": SPEC.effects.model_copy(update={"tpot": effect})})), None
    for number in range(60):
        evidence = gate.merge(
            evidence,
            [
                Outcome(
                    arm=arm, **{**GOOD, "tpot_ms": 10.0 * slower * float(RNG.lognormal(0, spread))}, stratum=1 + n % 3
                )
                for arm, slower in zip(ARMS, (times, 1.0), strict=True)
                for n in range(20)
            ],
            at_s=12.0 * number,
        )
        if (number + 1) % look_every == 0:
            found = gate.judge(evidence)
            assert found.verdict != "pass", found.reason
    assert found.verdict == "fail"
    assert "TPOT" in found.reason
    assert row(found, "tpot")["change"] == pytest.approx(times - 1, rel=0.1)


@pytest.mark.parametrize("spread", [0.001, 0.03, 0.2])
def test_a_fifth_of_requests_that_decode_four_times_as_slowly_fails_a_candidate(spread: float) -> None:
    def requests() -> list[Outcome]:
        found = []
        for each in portion({}):
            times = 4.0 if each.arm == "candidate" and RNG.random() < 0.2 else 1.0
            found.append(Outcome(**{**_fields(each), "tpot_ms": 10.0 * times * float(RNG.lognormal(0, spread))}))
        return found

    found = judged(requests() for _ in range(60))
    assert found.verdict == "fail"
    assert "answers far slower than their like" in found.reason


def test_a_tenth_of_requests_that_take_half_as_long_again_is_no_pass() -> None:
    def requests() -> list[Outcome]:
        found = []
        for each in portion({}):
            times = 1.5 if each.arm == "candidate" and RNG.random() < 0.1 else 1.0
            found.append(Outcome(**{**_fields(each), "tpot_ms": 10.0 * times * float(RNG.lognormal(0, 0.001))}))
        return found

    found = judged(requests() for _ in range(90))
    assert found.verdict == "undecided"
    assert row(found, "tpot")["is_fine"] is False
    assert "TPOT +4" in found.reason
    assert "% on average, which stands against a pass" in found.reason


def test_a_candidate_with_more_spread_seems_no_less_worse_for_that() -> None:
    def requests() -> list[Outcome]:
        found = []
        for each in portion({}):
            spread, times = (0.6, 1.06) if each.arm == "candidate" else (0.05, 1.0)
            found.append(Outcome(**{**_fields(each), "tpot_ms": 10.0 * times * float(RNG.lognormal(0, spread))}))
        return found

    found = judged(requests() for _ in range(200))
    assert row(found, "tpot")["change"] == pytest.approx(0.06, abs=0.025)
    assert found.verdict != "pass"


def test_a_tenant_with_a_few_hundredfold_outliers_is_still_seen_to_be_slower() -> None:
    def requests() -> list[Outcome]:
        found = []
        for each in portion({}):
            is_acme = bool(RNG.random() < 0.2)
            times = (100.0 if RNG.random() < 0.1 else 1.0) if is_acme else 1.0
            times *= 1.6 if is_acme and each.arm == "candidate" else 1.0
            assert each.ttft_ms is not None
            fields = {**_fields(each), "tenant": "acme" if is_acme else "other", "ttft_ms": each.ttft_ms * times}
            found.append(Outcome(**fields))
        return found

    found = judged(requests() for _ in range(90))
    assert "TTFT of tenant 'acme' +" in found.reason


def test_a_metric_of_which_there_are_four_figures_says_nothing() -> None:
    figures = iter([(10.0, 10.0), (12.0, 9.0), (13.0, 10.0), (11.0, 10.5)])

    def requests(number: int) -> list[Outcome]:
        found = portion({"tpot_ms": None, "num_tokens": 1})
        if number % 15 == 5:
            pair = next(figures)
            found += [Outcome(arm=arm, **{**GOOD, "tpot_ms": ms}) for arm, ms in zip(ARMS, pair, strict=True)]
        return found

    found = judged(requests(number) for number in range(65))
    assert found.verdict == "undecided"
    assert "tpot" not in [one["name"] for one in found.report["metrics"] if one["is_worse"] or one["is_fine"]]  # type: ignore[attr-defined]


def test_requests_that_all_failed_do_not_say_what_is_slow() -> None:
    failing = [Outcome(arm=arm, error="UNAVAILABLE") for arm in ARMS] * 20
    found = judged([failing, failing, failing, *(portion({}) for _ in range(12))])
    assert row(found, "slow")["candidate"] == row(found, "slow")["baseline"] == 0


def test_where_many_are_slow_by_nature_the_limit_of_slow_rises_until_few_are() -> None:
    rng, limit, slow = np.random.default_rng(7), SlowLimit((), 5.0), []
    for _ in range(200):
        over = rng.normal(0, 0.2, 40) + np.log(100) * (rng.random(40) < 0.05)
        slow.append(limit.are_slow(rows_of(over, np.arange(40) < 20), over))
    assert np.isnan(slow[:5]).all()  # until the baseline has a hundred
    assert np.mean(slow[50:]) == pytest.approx(1 / 300, rel=0.5)


def test_slow_requests_of_the_candidate_alone_leave_the_limit_where_it_is() -> None:
    rng, limit, slow = np.random.default_rng(8), SlowLimit((), 5.0), []
    for _ in range(200):
        arm = np.arange(40) < 20
        over = rng.normal(0, 0.2, 40) + np.log(10) * (arm & (rng.random(40) < 0.02))
        slow.append(limit.are_slow(rows_of(over, arm), over))
    assert np.nanmean(slow) == pytest.approx(0.01, rel=0.3)  # of both arms
    assert np.isnan(limit.are_slow(rows_of([np.nan], [True]), np.array([np.nan])))[0]


def errors_at(begins_s: list[float], *, of_candidate: bool) -> set[tuple[bool, int]]:
    return {(of_candidate, int(begin_s) + second) for begin_s in begins_s for second in range(0, 30, 2)}


def test_three_bursts_of_a_small_share_beside_none_are_chance() -> None:
    # The candidate has a twentieth of the requests, and three bursts in an hour: as likely in either arm.
    failing = errors_at([400, 1500, 2900], of_candidate=True)
    gate, evidence = Gate(SPEC), None
    told: list[Outcome] = []
    for second in range(0, 3600, 2):
        is_failing = (True, second) in failing
        facts: dict[str, Any] = {"error": "INTERNAL"} if is_failing else GOOD
        told += [Outcome(arm="candidate", **facts), *[Outcome(arm="baseline", **GOOD)] * 19]
        if is_failing or second % 30 == 28:  # when nothing happens, half a minute comes at once
            evidence = gate.merge(evidence, told, at_s=float(second))
            told = []
    findings = findings_of(sample_of(read(evidence, SPEC)), SPEC)
    assert not findings["errors"].is_worse


def test_a_single_key_of_each_arm_proves_nothing() -> None:
    def requests(number: int) -> list[Outcome]:
        found = portion({})
        keyed = [Outcome(**{**_fields(each), "unit": each.arm}) for each in found]
        return [*keyed[1:], Outcome(arm="candidate", unit="candidate", error="INTERNAL")] if number % 2 else keyed

    found = judged(requests(number) for number in range(60))
    assert row(found, "errors")["candidate"] > 0.02
    assert found.verdict == "undecided"
    assert row(found, "errors")["is_worse"] is False
    assert row(found, "ttft")["is_fine"] is False


def _fields(outcome: Outcome) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in outcome.__struct_fields__}


def test_one_request_with_a_key_among_many_without_changes_nothing() -> None:
    keyed = [Outcome(arm=arm, unit=arm, **GOOD) for arm in ARMS]
    found = judged([keyed, *(portion({}) for _ in range(90))])
    assert found.verdict == "pass"


def test_a_key_that_always_fails_is_one_key_and_not_a_release() -> None:
    def requests() -> list[Outcome]:
        found = [Outcome(**{**_fields(each), "unit": f"{each.arm} {RNG.integers(200)}"}) for each in portion({})]
        broken = [Outcome(arm="candidate", unit="broken", error="INTERNAL")] * 2
        return [*found[2:], *broken]

    found = judged(requests() for _ in range(60))
    assert row(found, "errors")["candidate"] > SPEC.guard_share
    assert found.verdict != "fail"


def test_a_tenant_that_is_far_from_all_others_is_seen_to_be_slower_still() -> None:
    def requests() -> list[Outcome]:
        found = []
        for each in portion({}):
            is_far = bool(RNG.random() < 0.1)
            times = (3.0 * (1.6 if each.arm == "candidate" else 1.0)) if is_far else 1.0
            assert each.ttft_ms is not None
            fields = {**_fields(each), "tenant": "far" if is_far else "near", "ttft_ms": each.ttft_ms * times}
            found.append(Outcome(**fields))
        return found

    found = judged(requests() for _ in range(90))
    assert found.verdict == "fail"
    assert "TTFT of tenant 'far' +" in found.reason


def test_evidence_of_arrays_of_another_size_is_refused() -> None:
    gate = Gate(SPEC)
    evidence: Any = json.loads(json.dumps(gate.merge(None, [*portion({}), Outcome(arm="candidate", unit="a", **GOOD)])))
    clusters = evidence["sums"]["events"]["errors"]["clusters"]["num"]
    for size in (clusters["size"] // 2, clusters["size"] * 2):
        clusters["size"] = size
        with pytest.raises(SpecError, match="the evidence cannot be read: an array has"):
            gate.judge(evidence)


@pytest.mark.parametrize("score", [5.0, -0.1, float("nan")])
def test_a_score_that_is_none_is_refused(score: float) -> None:
    with pytest.raises(RequestError, match="score must be 0 to 1"):
        Gate(SPEC).merge(None, [Outcome(arm="candidate", prompt="p", score=score)])
