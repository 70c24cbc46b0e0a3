# SPDX-License-Identifier: Apache-2.0
"""The exports for Argo Rollouts and the Gateway API: what Argo does on each answer, and exact weights."""

import contextlib
import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from argo_analysis import evaluate, run_phase
from kubernetes_structures import AnalysisTemplate, GrpcRoute, HttpRoute, RolloutPatch

from clients.rollout.export.analysis_template import LONGEST_INTERVAL_S
from clients.rollout.records.rollout_plan import Plan, gate_spec_of
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.rollout_api import _LINGER_S, RolloutApi
from clients.rollout_gate.gate import Gate
from ensemble_configs.split.outcome import Outcome
from trireme.commands import run_command

URL = "http://rollout.models.svc:8010"
STEPS = ("--steps", "5,25,50,100")  # the last that is judged: 2
GOOD = {Phase.PROMOTING, Phase.SETTLING, Phase.PROMOTED}
SHARES = (0.05, 0.25, 0.5, 1.0)
PLAN = Plan(candidate=2, stable=1, release={}, salt="a1", shares=SHARES, gate={"max_requests": 500})
GATE = Gate(gate_spec_of(PLAN))
BAD = {Phase.ROLLING_BACK, Phase.ROLLED_BACK}


@pytest.fixture
def documents(capsys: pytest.CaptureFixture[str]) -> Any:
    def export(*args: str) -> list[Any]:
        with pytest.raises(SystemExit) as ended:
            run_command("rollout", ["export", *args])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        assert printed.out.startswith("# Generated from ")
        return list(yaml.safe_load_all(printed.out))

    return export


def answer(phase: str = "running", step: int = 2, verdict: str = "undecided", rollout: int = 3) -> dict[str, Any]:
    """Return the rollout API's answer, with JSON's numbers."""
    return {"phase": phase, "step": float(step), "verdict": verdict, "rollout": float(rollout)}


@pytest.fixture
def metric(documents: Any) -> Any:
    [document] = documents("--format", "analysis-template", *STEPS, "--url", URL, "--max-wait-s", "100")
    AnalysisTemplate.model_validate(document)
    [found] = document["spec"]["metrics"]
    assert found["count"] == 10  # 100 s, a measurement every 10
    return found


def test_the_conditions_on_every_answer_of_the_front(metric: Any) -> None:
    verdicts = ("pass", "fail", "undecided", "no data")
    for asked, phase, step, verdict in itertools.product(range(3), Phase, range(3), verdicts):
        found = answer(phase, step, verdict)
        is_good, is_bad = (
            evaluate(metric[f"{kind}Condition"].replace("{{args.step}}", str(asked)), found)
            for kind in ("success", "failure")
        )
        assert is_bad == (phase in BAD or (verdict == "fail" and phase not in GOOD))
        has_passed = verdict == "pass" and step == 2 and phase == Phase.RUNNING
        assert is_good == (phase in GOOD or step > asked or has_passed)


UNDECIDED = answer()
ENDS = [
    pytest.param([answer(verdict="pass")], "Successful", id="pass at once"),
    pytest.param([answer(verdict="fail")], "Failed", id="fail at once"),
    pytest.param([UNDECIDED] * 9, "Running", id="nothing is said before the last measurement"),
    pytest.param([UNDECIDED] * 10, "Inconclusive", id="never decided"),
    pytest.param([answer(verdict="no data")] * 10, "Inconclusive", id="no data"),
    pytest.param([answer("held")] * 10, "Inconclusive", id="held for want of a verdict"),
    pytest.param([answer("paused", verdict="pass")] * 10, "Inconclusive", id="paused by a person"),
    pytest.param([answer("starting", 0, "no data")] * 10, "Inconclusive", id="never begun"),
    pytest.param([*[UNDECIDED] * 9, answer(verdict="pass")], "Successful", id="pass at the last"),
    pytest.param([*[UNDECIDED] * 9, answer(verdict="fail")], "Failed", id="fail at the last"),
    pytest.param([UNDECIDED, answer(verdict="fail"), answer(verdict="pass")], "Failed", id="fail, then pass"),
    pytest.param([answer("rolling_back", verdict="pass")], "Failed", id="rolled back though it had passed"),
    pytest.param([answer("rolled_back")], "Failed", id="aborted by a person"),
    pytest.param([answer("promoted")], "Successful", id="promoted by a person"),
    pytest.param([answer(step=1, verdict="pass")] * 10, "Inconclusive", id="a pass of an earlier share is none"),
    pytest.param([UNDECIDED, *[None] * 4, answer(verdict="pass")], "Successful", id="the front is away for a while"),
    pytest.param([None] * 5, "Error", id="nobody answers"),
]


@pytest.mark.parametrize(("measured", "end"), ENDS)
def test_how_a_run_ends(metric: Any, measured: list[Mapping[str, Any] | None], end: str) -> None:
    assert run_phase(metric, measured, {"step": "2"}) == end


@pytest.mark.parametrize(("measured", "end"), ENDS)
def test_before_argo_1_8_no_run_succeeds_without_a_pass(
    metric: Any, measured: list[Mapping[str, Any] | None], end: str
) -> None:
    found = run_phase(metric, measured, {"step": "2"}, knows_consecutive_success=False)
    assert found == (end if end != "Successful" or len(measured) == 10 else "Running")


def test_an_earlier_step_is_over_when_the_rollout_has_left_it(metric: Any) -> None:
    at_five = {"step": "0"}
    assert run_phase(metric, [answer(step=0)] * 9, at_five) == "Running"
    assert run_phase(metric, [answer(step=0), answer(step=1)], at_five) == "Successful"
    assert run_phase(metric, [answer(step=0), answer(step=0, verdict="fail")], at_five) == "Failed"


def test_the_front_of_another_rollout_decides_nothing(documents: Any, tmp_path: Path) -> None:
    store = a_store(tmp_path)
    [document] = documents("--format", "analysis-template", "--store", str(store), "--url", URL)
    [metric] = document["spec"]["metrics"]
    args = {each["name"]: each["value"] for each in document["spec"]["args"]}
    assert document["metadata"]["name"] == "chat-small"
    for found in (answer(verdict="pass", rollout=2), answer("rolled_back", rollout=2)):
        assert run_phase(metric, [found], args) == "Running"
    assert run_phase(metric, [answer(verdict="pass", rollout=1)], args) == "Successful"


def a_store(folder: Path) -> Path:
    path = folder / "rollouts.sqlite"
    with Store(path) as store:
        store.begin("chat_small", PLAN.text(), why="")
    return path


def enter(path: Path, phase: Phase, step: int = 0) -> None:
    with Store(path) as store:
        store.enter(1, phase, why="", step=step)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[RolloutApi]:
    path = a_store(tmp_path)
    found = RolloutApi(path, 1, "", GATE.merge, host="127.0.0.1", port=0, linger_s=0.5)
    with contextlib.closing(found):
        yield found


def judgement(front: RolloutApi) -> dict[str, Any]:
    with urllib.request.urlopen(f"{front.url}/judgement", timeout=10) as found:
        read: dict[str, Any] = json.load(found)
    return read


def test_the_front_says_where_the_rollout_is_and_what_the_gate_says(front: RolloutApi, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.sqlite"
    assert judgement(front) == {
        "rollout": 1, "phase": "starting", "step": 0, "share": 0.0, "verdict": "no data", "num_requests": 0,
        "reason": judgement(front)["reason"],
    }  # fmt: skip
    enter(path, Phase.RUNNING, step=1)
    good = [Outcome(arm=arm, ttft_ms=5.0, e2e_ms=9.0, num_tokens=9) for arm in ("candidate", "baseline")] * 20
    bad = [Outcome(arm="candidate", error="INTERNAL")] * 10
    with Store(path) as store:
        store.add_evidence(1, 1, "a", lambda old: GATE.merge(old, good, at_s=1000.0))
    found = judgement(front)
    assert (found["step"], found["share"], found["verdict"], found["num_requests"]) == (1, 0.25, "undecided", 20)
    with Store(path) as store:
        store.add_evidence(1, 1, "b", lambda old: GATE.merge(old, bad, at_s=1001.0))
        store.add_evidence(1, 1, "c", lambda old: GATE.merge(old, bad, at_s=1122.0))
    found = judgement(front)
    assert (found["verdict"], found["phase"]) == ("fail", "running")
    assert "error" in found["reason"]
    enter(path, Phase.ROLLED_BACK, step=1)
    assert judgement(front)["phase"] == "rolled_back"


def test_who_asked_for_the_judgement_hears_of_the_end(front: RolloutApi, tmp_path: Path) -> None:
    judgement(front)
    enter(tmp_path / "rollouts.sqlite", Phase.PROMOTED, step=2)
    closing = threading.Thread(target=front.close)
    closing.start()
    assert judgement(front)["phase"] == "promoted"
    closing.join(10)
    with pytest.raises(OSError, match="refused"):
        judgement(front)
    assert LONGEST_INTERVAL_S * 2 <= _LINGER_S


def test_argo_follows_the_shares_of_the_plan(documents: Any) -> None:
    [patch] = documents("--format", "argo-rollout", *STEPS, "--name", "chat")
    canary = RolloutPatch.model_validate(patch).spec.strategy.canary
    assert [step.weight for step in canary.steps[::2]] == [5, 25, 50, 100]
    assert [step.analysis.args[0].value for step in canary.steps[1::2] if step.analysis] == ["0", "1", "2"]
    assert (canary.stable, canary.canary, canary.routing) == ("chat-stable", "chat-candidate", None)


def test_argo_sets_the_weights_of_the_exported_routes(documents: Any) -> None:
    [patch] = documents("--format", "argo-rollout", "--steps", "0.05,5,100", "--name", "chat", "--with-gateway-api")
    canary = RolloutPatch.model_validate(patch).spec.strategy.canary
    assert [step.weight for step in canary.steps[::2]] == [5, 500, 10_000]
    assert canary.routing
    [plugin] = canary.routing.plugins.values()
    routes = documents("--format", "gateway-api", "--share", "0.05", "--name", "chat", "--gateway", "models")
    assert [plugin["httpRoutes"], plugin["grpcRoutes"]] == [[{"name": route["metadata"]["name"]}] for route in routes]
    names = {backend["name"] for route in routes for backend in route["spec"]["rules"][0]["backendRefs"]}
    assert names == {canary.stable, canary.canary}


@pytest.mark.parametrize(
    ("share", "stable", "candidate"),
    [("0", 10_000, 0), ("0.05", 9_995, 5), ("0.07", 9_993, 7), ("33.33", 6_667, 3_333), ("100", 0, 10_000)],
)
def test_weights_are_exact_and_nobody_is_left_out(documents: Any, share: str, stable: int, candidate: int) -> None:
    http, grpc = documents("--format", "gateway-api", "--share", share, "--gateway", "models", "--namespace", "chat")
    both = HttpRoute.model_validate(http).spec.rules[0].backends, GrpcRoute.model_validate(grpc).spec.rules[0].backends
    for backends, port in zip(both, (8000, 8001), strict=True):
        assert [(each.name, each.weight, each.port) for each in backends] == [
            ("trireme-stable", stable, port),
            ("trireme-candidate", candidate, port),
        ]


def test_routes_say_the_share_that_holds_now(documents: Any, tmp_path: Path) -> None:
    store = a_store(tmp_path)

    def weights() -> list[int]:
        [http, _] = documents("--format", "gateway-api", "--store", str(store), "--gateway", "models")
        return [each["weight"] for each in http["spec"]["rules"][0]["backendRefs"]]

    assert weights() == [10_000, 0]
    for phase, step, now in [
        (Phase.RUNNING, 0, [9_500, 500]),
        (Phase.PAUSED, 1, [7_500, 2_500]),
        (Phase.PROMOTING, 2, [0, 10_000]),
        (Phase.PROMOTED, 2, [0, 10_000]),
        (Phase.ROLLING_BACK, 2, [10_000, 0]),
    ]:
        enter(store, phase, step)
        assert weights() == now
