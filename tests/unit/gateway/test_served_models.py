# SPDX-License-Identifier: Apache-2.0
"""The models of a gateway by the names that callers write, and what a deployment may say of these names."""

from typing import Any

import pytest
import yaml
from kserve_server import KServeServer
from running_gateway import RunningGateway

from clients.openai_api.api_error import ApiError
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.gateway_spec import GatewaySpec
from gateway.access.caller import ANYBODY, Caller, Role
from gateway.served_models import ServedModel, models_of
from trireme.base.errors import SpecError

ENGINE = {"provider": "simulated"}


def deployment(**gateway: Any) -> DeploymentSpec:
    tokenizer = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer.model_dump(mode="json")
    models = [{"name": name, "tokenizer": tokenizer, "engine": ENGINE} for name in ("chat", "code")]
    return DeploymentSpec.of_one(name="two", models=models, gateway=gateway)


def test_an_alias_is_its_model_also_for_what_a_key_may_use() -> None:
    models = models_of(deployment(aliases={"gpt-4o": "chat", "openai/codex": "code"}))
    assert models.get("gpt-4o", ANYBODY).name == "chat"
    assert models.get("openai/codex", ANYBODY).name == "code"
    alice = Caller("k", "", Role.USER, frozenset({"chat"}))
    assert models.get("gpt-4o", alice).name == "chat"
    with pytest.raises(ApiError) as refused:
        models.get("openai/codex", alice)
    assert (refused.value.status, refused.value.code) == (403, "model_not_allowed")


def test_an_alias_is_listed_for_whoever_may_use_its_model() -> None:
    models = models_of(deployment(aliases={"gpt-4o": "chat", "openai/codex": "code"}))
    assert list(models.allowed_aliases(ANYBODY)) == ["gpt-4o", "openai/codex"]
    assert list(models.allowed_aliases(Caller("k", "", Role.USER, frozenset({"chat"})))) == ["gpt-4o"]


def test_an_alias_is_described_with_its_model_as_the_root() -> None:
    rules = GatewaySpec.model_validate({"aliases": {"gpt-4o": "chat", "openai/codex": "chat"}})
    with KServeServer() as server, RunningGateway(server.url, models=(ServedModel("chat", "m"),), rules=rules) as asked:
        listed = asked.call("GET", "/v1/models").json["data"]
        assert [(model["id"], model.get("root")) for model in listed] == [
            ("chat", None),
            ("gpt-4o", "chat"),
            ("openai/codex", "chat"),
        ]
        for model in listed:
            assert asked.call("GET", f"/v1/models/{model['id']}").json == model
        assert asked.call("GET", "/v1/models/openai/gpt").status == 404


@pytest.mark.parametrize(
    ("aliases", "said"),
    [
        ({"gpt-4o": "nobody"}, "gateway.aliases.gpt-4o must name a model, got 'nobody'; there are chat, code"),
        ({"chat": "code"}, "gateway.aliases.chat is the name of a model"),
        ({"a b": "code"}, "gateway.aliases"),
    ],
)
def test_an_alias_that_names_no_model_or_hides_one_is_refused(
    tmp_path: Any, aliases: dict[str, str], said: str
) -> None:
    spec = deployment().model_dump(mode="json", exclude_none=True)
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump({**spec, "gateway": {"aliases": aliases}}))
    with pytest.raises(SpecError) as refused:
        load_deployment(file)
    assert said in refused.value.message
