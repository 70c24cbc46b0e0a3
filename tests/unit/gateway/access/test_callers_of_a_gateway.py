# SPDX-License-Identifier: Apache-2.0
"""A gateway with keys, over HTTP: each key has its models, its role and its end."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from key_places import bearer
from kserve_server import KServeServer, story
from running_gateway import Answer, RunningGateway

from gateway.access.api_key import ApiKey, new_key
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.served_models import ServedModel

MODELS = (ServedModel("chat", "chat_ensemble"), ServedModel("code", "code_ensemble"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.sqlite") as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(*story()) as running:
        yield running


@pytest.fixture
def gateway(server: KServeServer, store: KeyStore) -> Iterator[RunningGateway]:
    with RunningGateway(server.url, models=MODELS, keys=store) as running:
        yield running


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


def models_of(gateway: RunningGateway, key: ApiKey) -> list[str]:
    answer = gateway.call("GET", "/v1/models", Authorization=bearer(key))
    return [model["id"] for model in answer.json["data"]]


def test_each_key_sees_and_asks_its_own_models(gateway: RunningGateway, store: KeyStore, server: KServeServer) -> None:
    chat = store.create(NewKey("alice", models=frozenset({"chat"})))
    code = store.create(NewKey("bob", models=frozenset({"code", "gone"})))
    every = store.create(NewKey("carol"))
    assert [models_of(gateway, key) for key in (chat, code, every)] == [["chat"], ["code"], ["chat", "code"]]
    assert gateway.chat_with(chat.text, model="chat").status == 200
    assert gateway.chat_with(code.text).json["model"] == "code"  # the only one that the key may use
    assert [request.model_name for request in server.requests] == ["chat_ensemble", "code_ensemble"]

    refused = gateway.chat_with(chat.text, model="code")
    assert code_of(refused) == (403, "model_not_allowed")
    assert refused.json["error"]["param"] == "model"
    assert "it may use chat" in refused.json["error"]["message"]
    described = gateway.call("GET", "/v1/models/code", Authorization=bearer(chat))
    assert code_of(described) == (403, "model_not_allowed")
    assert len(server.requests) == 2


@pytest.mark.parametrize("has_admission", [True, False], ids=["admission", "no admission"])
def test_the_tenant_of_a_key_reaches_a_server_that_knows_tenants(
    server: KServeServer, store: KeyStore, *, has_admission: bool
) -> None:
    key = store.create(NewKey("alice", tenant="research"))
    model = ServedModel("chat", "ensemble", has_admission=has_admission)
    with RunningGateway(server.url, models=(model,), keys=store) as gateway:
        assert gateway.chat_with(key.text).status == 200
    message = server.requests[-1]
    sent = dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))
    assert sent.get("tenant", b"")[4:] == (b"research" if has_admission else b"")


def test_a_model_that_is_not_served_is_named_with_those_of_the_key(gateway: RunningGateway, store: KeyStore) -> None:
    key = store.create(NewKey("alice", models=frozenset({"chat", "gone"})))
    for name in ("gone", "other"):
        answer = gateway.chat_with(key.text, model=name)
        assert code_of(answer) == (404, "model_not_found")
        assert answer.json["error"]["message"].endswith("there are chat")
    nothing = store.create(NewKey("bob", models=frozenset({"gone"})))
    assert models_of(gateway, nothing) == []
    assert code_of(gateway.chat_with(nothing.text)) == (400, "missing_field")


def test_without_a_key_that_is_accepted_nothing_but_probes_is_answered(
    gateway: RunningGateway, store: KeyStore, server: KServeServer
) -> None:
    key = store.create(NewKey("alice"))
    for text in ("", "sk-0123456789abcdef", new_key().text, key._replace(secret=new_key().secret).text):
        answer = gateway.chat_with(text)
        assert code_of(answer) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert not text or text not in answer.data.decode()
    assert gateway.call("GET", "/health/live").status == 200
    assert server.requests == []


def test_metrics_are_for_admins(gateway: RunningGateway, store: KeyStore) -> None:
    user, admin = store.create(NewKey("alice")), store.create(NewKey("prometheus", role=Role.ADMIN))
    assert code_of(gateway.call("GET", "/metrics", Authorization=bearer(user))) == (403, "admin_only")
    assert gateway.call("GET", "/metrics").status == 401
    page = gateway.call("GET", "/metrics", Authorization=bearer(admin))
    assert page.status == 200
    assert 'trireme_gateway_errors_total{code="admin_only"} 1.0' in page.data.decode()


def test_a_revoked_key_and_an_expired_one_are_told_apart(gateway: RunningGateway, store: KeyStore) -> None:
    revoked = store.create(NewKey("alice"))
    expired = store.create(NewKey("bob", expires_at_s=int(time.time()) - 1))
    assert gateway.chat_with(revoked.text, model="chat").status == 200
    store.revoke("alice")
    deadline_s = time.monotonic() + 5.0  # beside other tests a process may wait for its turn
    while gateway.chat_with(revoked.text, model="chat").status == 200:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert code_of(gateway.chat_with(revoked.text, model="chat")) == (401, "key_revoked")
    assert code_of(gateway.chat_with(expired.text, model="chat")) == (401, "key_expired")


def test_nothing_that_a_gateway_logs_or_answers_holds_a_secret(
    server: KServeServer, store: KeyStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key, wrong = store.create(NewKey("alice", models=frozenset({"chat"}))), new_key()
    with RunningGateway(server.url, models=MODELS, keys=store) as gateway:
        answers = [
            *[gateway.chat_with(each.text, model=name) for each in (key, wrong) for name in ("chat", "code", "none")],
            gateway.call("GET", f"/v1/{key.text}", Authorization=bearer(key)),
        ]
    secrets = (key.secret, wrong.secret)
    assert not any(secret in caplog.text for secret in secrets)
    assert not any(secret.encode() in file.read_bytes() for secret in secrets for file in tmp_path.iterdir())
    assert not any(secret in answer.data.decode() for secret in secrets for answer in answers[:-1])
    assert store.records()[0].last_used_at_s is not None
