# SPDX-License-Identifier: Apache-2.0
"""A release that a caller names: it answers itself, or the request is refused; nothing stands in for it."""

from pathlib import Path
from typing import Any

import pytest
from gateway_before_scripts import gateway_of
from key_places import bearer
from kserve_server import KServeServer, response
from running_gateway import Answer, RunningGateway

from clients.openai_api.api_error import ApiError
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.gateway_spec import AnswerCacheSpec, FallbackSpec, FallbackStepSpec, GatewaySpec
from gateway.access.caller import ANYBODY, Caller, Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.served_models import ServedModel, models_of

PINNED = ServedModel("demo", "ensemble", 100, pinning_model="tensorrt_llm_bls")
OTHER = ServedModel("other", "other_ensemble", 100)
RELEASE = "x-trireme-release"


def said_by(release: int) -> list[Any]:
    return [
        response("Once", num_output_tokens=1, num_input_tokens=4, release=release),
        response(" upon", num_output_tokens=1, finish_reason="length", final=True),
    ]


def play(request: Any) -> list[Any]:
    """Answer as the release that is named, or as release 1; there is no release 9."""
    named = request.parameters["release"].int64_param if "release" in request.parameters else 0
    if named == 9:
        return ['[INVALID_ARG field="release" value=9] release 9 is not loaded here']
    return said_by(named or 1)


def code_of(answer: Answer) -> tuple[int, str, str]:
    error = answer.json["error"]
    return answer.status, error["code"], error["param"]


@pytest.mark.parametrize("num_servers", [1, 2])
@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_the_release_that_is_named_answers(num_servers: int, *, is_streaming: bool) -> None:
    scripts = [[play] for _ in range(num_servers)]
    with gateway_of(*scripts, models=(PINNED,)) as (gateway, servers):
        answers = [gateway.chat(model=name, stream=is_streaming) for name in ("demo", "demo@1", "demo@2")]
        assert [answer.headers[RELEASE] for answer in answers] == ["1", "1", "2"]
        asked = [request for server in servers for request in server.requests]
        models = sorted(
            (request.model_name, request.parameters["release"].int64_param if "release" in request.parameters else 0)
            for request in asked
        )
        assert models == [("ensemble", 0), ("tensorrt_llm_bls", 1), ("tensorrt_llm_bls", 2)]


def test_a_release_that_is_not_loaded_is_refused_as_the_model() -> None:
    with KServeServer(play) as server, RunningGateway(server.url, models=(PINNED,)) as gateway:
        answer = gateway.chat(model="demo@9")
        assert code_of(answer) == (400, "invalid_value", "model")
        assert "release 9 is not loaded here" in answer.json["error"]["message"]


@pytest.mark.parametrize("written", ["", "x", "0", "-1", "1.5", "1@2", "9999999999", "１"])
def test_what_is_no_number_of_a_release_is_refused(written: str) -> None:
    with KServeServer(play) as server, RunningGateway(server.url, models=(PINNED,)) as gateway:
        answer = gateway.chat(model=f"demo@{written}")
        assert code_of(answer) == (400, "invalid_value", "model")
        assert "a whole number from 1" in answer.json["error"]["message"]
        assert server.requests == []


def test_a_model_that_serves_no_named_release_is_refused_by_name() -> None:
    with KServeServer(play) as server, RunningGateway(server.url, models=(OTHER,)) as gateway:
        answer = gateway.chat(model="other@1")
        assert code_of(answer) == (400, "unsupported_parameter", "model")
        assert "no endpoint tensorrt_llm_bls" in answer.json["error"]["message"]


def test_a_key_for_other_models_may_not_name_a_release_of_this_one(tmp_path: Path) -> None:
    with (
        KServeServer(play) as server,
        KeyStore(tmp_path / "keys.sqlite") as store,
        RunningGateway(server.url, models=(PINNED, OTHER), keys=store) as gateway,
    ):
        bob = store.create(NewKey("bob", models=frozenset({"other"})))
        alice = store.create(NewKey("alice", models=frozenset({"demo"})))
        assert code_of(gateway.chat_with(bob.text, model="demo@2"))[:2] == (403, "model_not_allowed")
        assert gateway.chat_with(alice.text, model="demo@2").status == 200
        described = gateway.call("GET", "/v1/models/demo@2", Authorization=bearer(alice))
        assert described.json["id"] == "demo@2"


def test_nothing_stands_in_for_a_release_and_no_answer_of_another_one_is_given_again() -> None:
    rules = GatewaySpec(
        answer_cache=AnswerCacheSpec(),
        fallbacks=(FallbackSpec(model="demo", steps=(FallbackStepSpec(model="other"),)),),
    )
    down = "[UNAVAILABLE reason=engine_restarting] the engine starts"

    def script(request: Any) -> list[Any]:
        is_down = request.model_name == "tensorrt_llm_bls" and request.parameters["release"].int64_param == 3
        return [down] if is_down else play(request)

    with (
        KServeServer(script) as server,
        RunningGateway(server.url, models=(PINNED, OTHER), rules=rules) as gateway,
    ):
        assert gateway.chat(model="demo@3").status == 503
        for _ in range(2):
            answers = [gateway.chat(model=name, temperature=0) for name in ("demo@1", "demo@2")]
            assert [answer.headers[RELEASE] for answer in answers] == ["1", "2"]
            assert all("x-trireme-answered-by" not in answer.headers for answer in answers)
        assert len(server.requests) == 1 + 4


def test_the_ledger_and_the_metrics_know_the_model_and_its_release_apart(tmp_path: Path) -> None:
    with (
        KServeServer(play) as server,
        LedgerStore(tmp_path / "ledger.sqlite") as rows,
        Ledger(rows, tmp_path / "journal") as ledger,
        RunningGateway(server.url, models=(PINNED,), ledger=ledger) as gateway,
    ):
        assert gateway.chat(model="demo@2").json["model"] == "demo"
        metrics = gateway.call("GET", "/metrics").data.decode()
        assert 'gen_ai_request_model="demo"' in metrics
        assert "demo@2" not in metrics, "a caller could make as many series as there are numbers"
        gateway.stop()
    with LedgerStore(tmp_path / "ledger.sqlite") as rows:
        [found] = rows.usage(("model", "release"), since_day=0, until_day=10**6)
        assert list(found.group) == ["demo", 2]


def deployment(*endpoints: str, **more: Any) -> DeploymentSpec:
    tokenizer = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer.model_dump(mode="json")
    model = {"name": "chat", "tokenizer": tokenizer, "engine": {"provider": "simulated"}, "endpoints": endpoints}
    return DeploymentSpec.of_one(name="one", models=[{**model, **more}], gateway={"aliases": {"gpt": "chat"}})


def test_a_release_is_named_behind_an_alias_too() -> None:
    models = models_of(deployment("ensemble", "tensorrt_llm_bls"))
    found = models.get("gpt@4", ANYBODY)
    assert (found.name, found.release, found.pinning_model) == ("chat", 4, "chat_tensorrt_llm_bls")
    assert models.get("gpt", ANYBODY).release is None
    bob = Caller("k", "", Role.USER, frozenset({"code"}))
    with pytest.raises(ApiError, match="not among those of this key"):
        models.get("gpt@4", bob)


@pytest.mark.parametrize("endpoints", [("ensemble",), ("ensemble", "tensorrt_llm_bls")], ids=["no endpoint", "whole"])
def test_a_deployment_that_cannot_tells_what_it_needs(endpoints: tuple[str, ...]) -> None:
    more = {"bls": {"accumulate_tokens": True}} if len(endpoints) == 2 else {}
    models = models_of(deployment(*endpoints, **more))
    with pytest.raises(ApiError) as refused:
        models.get("chat@1", ANYBODY)
    assert refused.value.code == "unsupported_parameter"
