# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout export`, also used wrongly: what is said is the field, the value and the next step."""

import re
from pathlib import Path
from typing import cast

import pytest
import yaml

from clients.rollout.export.definition import share_outside
from clients.rollout.records.rollout_plan import Mode, Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from ensemble_configs.render.helm_values import helm_values
from ensemble_configs.spec.deployment import DeploymentSpec
from trireme.commands import run_command

ENDPOINTS = ("--stable-url", "a:8001", "--candidate-url", "b:8001")
SERVERS = ("--stable-service", "chat", "--candidate-service", "chat-2")
TEMPLATE = ("--format", "analysis-template", "--steps", "5,50,100")
ROUTES = ("--format", "gateway-api", "--gateway", "models")


def export(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run_command("rollout", ["export", *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(TEMPLATE, "--url is missing: analysis-template needs the address", id="no url"),
        pytest.param((*TEMPLATE, "--url", "front:8010"), "url must be where .* got 'front:8010'", id="no scheme"),
        pytest.param((*TEMPLATE, "--url", "http://a/{{b}}"), "url must be where", id="a template in a template"),
        pytest.param(
            (*TEMPLATE, "--url", "http://a", "--max-wait-s", "5"),
            r"max_wait_s \(5\) must be at least interval_s \(10\)",
            id="no time to measure",
        ),
        pytest.param(
            (*TEMPLATE, "--url", "http://a", "--share", "5"),
            "--share says nothing to analysis-template, but to gateway-api, helm-values, envoy, envoy-routes; leave it",
            id="an option of another format",
        ),
        pytest.param(
            (*TEMPLATE, "--url", "http://a", "--name", "Chat_1"), "name must be .* got 'Chat_1'", id="no such name"
        ),
        pytest.param(
            ("--format", "argo-rollout", "--steps", "0.5,100"),
            r"steps have a share of 0.5 %: .* add --with-gateway-api",
            id="half a percent without a router",
        ),
        pytest.param(
            ("--format", "argo-rollout", "--steps", "5,100", "--stable-service", "x", "--candidate-service", "x"),
            "stable_service and candidate_service are both x: .* name the candidate's",
            id="one service",
        ),
        pytest.param(
            ("--format", "envoy", "--share", "5", "--stable-url", "a:1", "--candidate-url", "a:1"),
            "stable_url and candidate_url are both a:1",
            id="one endpoint",
        ),
        pytest.param(("--format", "argo-rollout", "--steps", "5,3"), "steps must be growing percentages", id="steps"),
        pytest.param((*ROUTES, "--steps", "5,100"), "share is not known: .* add --share", id="no share"),
        pytest.param((*ROUTES, "--share", "0.005"), "share 0.005 % cannot be .* multiples of 0.01 %", id="too fine"),
        pytest.param(("--format", "gateway-api", "--share", "5"), "--gateway is missing", id="no gateway"),
        pytest.param(
            (*ROUTES, "--share", "5", "--steps", "5,100", "--rollout", "3"), "leave one out", id="two sources"
        ),
        pytest.param((*ROUTES, "--share", "5", "--gate", "g.yaml"), "--gate goes with --steps", id="gate of a rollout"),
        pytest.param((*ROUTES,), "no server was started in this folder", id="no server"),
        pytest.param((*ROUTES, "--store", "none.sqlite"), "there is no store of rollouts none.sqlite", id="no store"),
        pytest.param(
            ("--format", "envoy", "--share", "5"), "--candidate-url is missing: envoy needs", id="no endpoint"
        ),
        pytest.param(
            ("--format", "envoy", "--share", "5", "--stable-url", "a", "--candidate-url", "b:1"),
            "stable_url must be HOST:PORT, .* got 'a'",
            id="no port",
        ),
        pytest.param(
            ("--format", "envoy", "--share", "5", "--stable-url", "a:1", "--candidate-url", "http://b:1"),
            "candidate_url must be HOST:PORT",
            id="a url",
        ),
        pytest.param(
            ("--format", "envoy", "--share", "5", *ENDPOINTS, "--salt", r"\1"), "salt must be at most 64", id="salt"
        ),
        pytest.param(
            ("--format", "envoy", *ENDPOINTS, "--routes-file", "routes"), "must end with .yaml", id="no yaml to read"
        ),
        pytest.param(
            ("--format", "envoy-routes", "--share", "5", "--out", "routes.json"), "must end with .yaml", id="no yaml"
        ),
        pytest.param(
            ("--format", "helm-values", "--share", "5"), "--stable-service is missing: .* give both", id="no servers"
        ),
        pytest.param(
            ("--format", "helm-values", "--share", "5", *SERVERS, "--salt", "a b"),
            "salt must be at most 64 letters.*got 'a b'",
            id="a salt that the chart refuses",
        ),
        pytest.param(
            ("--format", "envoy-routes", "--share", "5", "--gateway", "g"),
            "--gateway says nothing to envoy-routes, but to gateway-api",
            id="an option of another format",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(*args) == 2
    printed = capsys.readouterr()
    assert not printed.out
    [line] = printed.err.splitlines()
    assert line.startswith("trireme: ")
    assert re.search(said, line), line
    assert not list(tmp_path.iterdir())


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert export("--help") == 0
    assert "trireme rollout export --format envoy-routes --share 0 --out routes.yaml" in capsys.readouterr().out


def test_the_gate_is_read_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = tmp_path / "gate.yaml"
    gate.write_text("effects: {ttft: 0.2}\n")
    assert export(*TEMPLATE, "--url", "http://a", "--gate", str(gate)) == 0
    assert '# shares 5, 50, 100 %; gate {"effects": {"ttft": 0.2}}\n' in capsys.readouterr().out
    gate.write_text("effects: {tfft: 0.2}\n")
    assert export(*TEMPLATE, "--url", "http://a", "--gate", str(gate)) == 2
    assert "tfft" in capsys.readouterr().err


def a_rollout(store: Path, *shares: float, lease_s: float = 5.0) -> None:
    with Store(store) as kept:
        plan = Plan(candidate=2, stable=1, release={}, salt="a1", shares=shares, lease_s=lease_s)
        number = kept.begin("chat", plan.text(), why="").id
        kept.enter(number, Phase.RUNNING, why="", step=0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.sqlite"


def test_a_file_is_replaced_in_one_step_in_a_folder_that_is_made(store: Path, tmp_path: Path) -> None:
    a_rollout(store, 0.25, 1.0)
    out = tmp_path / "a" / "b" / "routes.yaml"
    assert export("--format", "envoy-routes", "--store", str(store), "--out", str(out)) == 0
    assert yaml.safe_load(out.read_text())["version_info"] == "2500 of 10000"
    assert [path.name for path in out.parent.iterdir()] == ["routes.yaml"]


def test_a_share_can_be_said_for_a_rollout_whose_salt_is_kept(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_rollout(store, 0.25, 1.0)
    assert export("--format", "envoy-routes", "--store", str(store), "--share", "7") == 0
    text = capsys.readouterr().out
    assert "now 7 %" in text
    assert "substitution: 'a1:'" in text


def test_the_routes_of_a_file_need_no_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export("--format", "envoy", *ENDPOINTS, "--routes-file", "routes.yaml") == 0
    text = capsys.readouterr().out
    assert f"path: {tmp_path / 'routes.yaml'}" in text  # wherever Envoy is started
    assert "weighted_clusters" not in text


def test_a_share_that_cannot_be_written_is_refused_before_anything_is(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_rollout(store, 0.25, 0.33333, 1.0)
    out = tmp_path / "routes.yaml"
    assert export("--format", "envoy-routes", "--store", str(store), "--out", str(out), "--share", "33.333") == 2
    assert "share 33.333 % cannot be written as a weight" in capsys.readouterr().err
    assert not out.exists()


def test_only_a_canary_has_a_share_for_a_router(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rollouts.sqlite"
    plan = Plan(mode=Mode.SHADOW, candidate=2, stable=1, release={}, salt="s", shares=(0.5,))
    with Store(path) as store:
        number = store.begin("chat", plan.text(), why="").id
        store.enter(number, Phase.RUNNING, why="", step=0)
    assert export(*ROUTES, "--store", str(path)) == 2
    assert "rollout 1 is of mode shadow, and only a canary has a share" in capsys.readouterr().err


@pytest.mark.parametrize(("second", "share"), [("", 1.0), ("/b", 0.0)], ids=["a router's own", "a second server"])
def test_after_the_promotion_who_serves_the_candidate_gets_all(tmp_path: Path, second: str, share: float) -> None:
    plan = Plan(candidate=2, stable=1, release={}, salt="s", second_server=second)
    with Store(tmp_path / "rollouts.sqlite") as store:
        number = store.begin("chat", plan.text(), why="").id
        rollout = store.enter(number, Phase.SETTLING, why="")
    assert share_outside(rollout, plan) == share


def test_servers_are_called_as_the_charts_values_call_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"tokenizer": {"dir": "/t"}, "engine": {"provider": "simulated"}}
    spec = DeploymentSpec.of_one(name="a_b_", other_releases=[{"release": 2, **model}], **model)
    stable, candidate = cast("dict[str, object]", helm_values(spec)["servers"])
    with Store(tmp_path / "rollouts.sqlite") as kept:
        plan = Plan(candidate=2, stable=1, release={}, salt="s", shares=(0.05, 1.0))
        kept.begin("a_b_", plan.text(), why="")
    store = ("--store", str(tmp_path / "rollouts.sqlite"))
    assert export("--format", "helm-values", "--share", "5", *store) == 0
    traffic = yaml.safe_load(capsys.readouterr().out)["traffic"]
    assert traffic == {stable: {"candidate": candidate, "candidateWeight": 500, "salt": "s"}}
