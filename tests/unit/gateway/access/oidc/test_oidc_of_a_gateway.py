# SPDX-License-Identifier: Apache-2.0
"""A gateway whose callers bring tokens: what claims mean, beside keys, and while the provider is away."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kserve_server import KServeServer, story
from oidc_provider import AUDIENCE, OidcProvider, SigningKey
from running_gateway import Answer, RunningGateway

from ensemble_configs.spec.callers.oidc_spec import CallerLimitsSpec, OidcSpec
from ensemble_configs.spec.gateway_spec import AnswerCacheSpec, GatewaySpec, TenantSpec
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.access.oidc.claims import account_of
from gateway.gateway import Gateway
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.served_models import ServedModel, ServedModels
from trireme.base.errors import SpecError
from trireme.base.http_servers.http_access import HttpAccess

MODELS = (ServedModel("chat", "chat_ensemble", has_admission=True), ServedModel("code", "code_ensemble"))
PATIENCE_S = 30.0


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with OidcProvider(SigningKey("first"), SigningKey("second")) as running:
        yield running


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(*story()) as running:
        yield running


def rules(provider: OidcProvider, more: dict[str, Any] | None = None, **fields: Any) -> GatewaySpec:
    return GatewaySpec(oidc=OidcSpec(issuer=provider.issuer, audience=AUDIENCE, **fields), **(more or {}))


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, "" if answer.status == 200 else answer.json["error"]["code"]


def models_of(gateway: RunningGateway, token: str) -> list[str]:
    answer = gateway.call("GET", "/v1/models", Authorization=f"Bearer {token}")
    return [model["id"] for model in answer.json["data"]]


def sent_tenant(server: KServeServer) -> bytes:
    message = server.requests[-1]
    sent = dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))
    return bytes(sent.get("tenant", b"")[4:])


def test_without_claims_that_are_named_a_token_may_ask_every_model(
    server: KServeServer, provider: OidcProvider
) -> None:
    with RunningGateway(server.url, models=MODELS, rules=rules(provider)) as gateway:
        token = provider.token(tenant="acme", models=["chat"], roles=["admin"])
        assert models_of(gateway, token) == ["chat", "code"]
        assert gateway.chat_with(token, model="chat").status == 200
        assert sent_tenant(server) == b""
        refused = gateway.call("GET", "/metrics", Authorization=f"Bearer {token}")
        assert code_of(refused) == (403, "admin_only")


def test_claims_are_the_tenant_the_models_and_the_role(server: KServeServer, provider: OidcProvider) -> None:
    spec = rules(
        provider,
        tenant_claim="https://trireme.example/tenant",
        models_claim="models",
        role_claim="realm_access.roles",
        admin_values=("operator", "root"),
    )
    claims: dict[str, Any] = {"https://trireme.example/tenant": "acme", "models": ["chat", "gone"]}
    with RunningGateway(server.url, models=MODELS, rules=spec) as gateway:
        user = provider.token(**claims, realm_access={"roles": ["user"]})
        assert models_of(gateway, user) == ["chat"]
        assert gateway.chat_with(user, model="chat").status == 200
        assert sent_tenant(server) == b"acme"
        refused = gateway.chat_with(user, model="code")
        assert code_of(refused) == (403, "model_not_allowed")
        assert "it may use chat" in refused.json["error"]["message"]  # and not what nobody serves
        assert code_of(gateway.call("GET", "/metrics", Authorization=f"Bearer {user}")) == (403, "admin_only")
        admin = provider.token(**{**claims, "models": "chat code"}, realm_access={"roles": ["user", "root"]})
        assert models_of(gateway, admin) == ["chat", "code"]
        assert gateway.call("GET", "/metrics", Authorization=f"Bearer {admin}").status == 200
        flat = provider.token(**claims, **{"realm_access.roles": "operator"})
        assert gateway.call("GET", "/metrics", Authorization=f"Bearer {flat}").status == 200
        none = provider.token(**{**claims, "models": []})
        assert models_of(gateway, none) == []


WRONG: dict[str, dict[str, Any]] = {
    "no tenant": {"tenant": None},
    "tenants": {"tenant": ["acme"]},
    "an empty tenant": {"tenant": ""},
    "a tenant that would be a line of a log": {"tenant": "acme\nroot accepted"},
    "a tenant with an end of line": {"tenant": "acme\n"},
    "a tenant that is too long": {"tenant": "a" * 129},
    "no models": {"models": None},
    "models that are a number": {"models": 7},
    "models that are numbers": {"models": [7]},
    "models by name": {"models": {"chat": True}},
    "roles that are true": {"role": True},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_token_that_lacks_what_the_deployment_wants_may_nothing(
    server: KServeServer, provider: OidcProvider, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    caplog.set_level(logging.DEBUG)
    spec = rules(provider, tenant_claim="tenant", models_claim="models", role_claim="role", admin_values=("operator",))
    with RunningGateway(server.url, models=MODELS, rules=spec) as gateway:
        good = {"tenant": "acme", "models": ["chat"], "role": "operator"}
        assert gateway.chat_with(provider.token(**good), model="chat").status == 200
        refused = gateway.chat_with(provider.token(**{**good, **changes}), model="chat")
    assert code_of(refused) == (403, "claim_not_accepted")
    assert repr(next(iter(changes))) in refused.json["error"]["message"]
    assert "accepted" not in caplog.text
    assert len(server.requests) == 1


def test_keys_and_tokens_are_accepted_side_by_side(
    server: KServeServer, provider: OidcProvider, tmp_path: Path
) -> None:
    with (
        KeyStore(tmp_path / "keys.sqlite") as store,
        RunningGateway(server.url, models=MODELS, keys=store, rules=rules(provider)) as gateway,
    ):
        key = store.create(NewKey("alice", models=frozenset({"code"})))
        assert models_of(gateway, key.text) == ["code"]
        assert models_of(gateway, provider.token()) == ["chat", "code"]
        assert code_of(gateway.chat_with("tri-none")) == (401, "invalid_api_key")
        assert code_of(gateway.chat_with(key.text + ".e30.e30")) == (401, "invalid_token")
        provider.is_away = True
        assert models_of(gateway, key.text) == ["code"]


def test_keys_go_on_where_the_provider_was_never_there(
    server: KServeServer, provider: OidcProvider, tmp_path: Path
) -> None:
    provider.is_away = True
    with (
        KeyStore(tmp_path / "keys.sqlite") as store,
        RunningGateway(server.url, models=MODELS, keys=store, rules=rules(provider)) as gateway,
    ):
        key, token = store.create(NewKey("alice")), provider.token()
        assert gateway.chat_with(key.text, model="chat").status == 200
        refused = gateway.chat_with(token, model="chat")
        assert code_of(refused) == (503, "unavailable")
        assert refused.headers["retry-after"] == "1"
        provider.is_away = False
        deadline_s = time.monotonic() + PATIENCE_S
        while gateway.chat_with(token, model="chat").status == 503:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert gateway.chat_with(token, model="chat").status == 200


def test_a_token_that_is_known_ends_with_its_key(server: KServeServer, provider: OidcProvider) -> None:
    spec = rules(provider)
    assert spec.oidc is not None
    quick = spec.model_copy(update={"oidc": spec.oidc.model_copy(update={"refresh_s": 0.1})})
    with RunningGateway(server.url, models=MODELS, rules=quick) as gateway:
        old = provider.token()
        assert gateway.chat_with(old, model="chat").status == 200
        provider.is_away = True  # nothing changes while nobody can tell
        assert gateway.chat_with(old, model="chat").status == 200
        provider.is_away = False
        provider.keys = [provider.keys[1]]  # the old key is gone: it was stolen, say
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := code_of(gateway.chat_with(old, model="chat")))[0] == 200:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert found == (401, "invalid_token")
        assert gateway.chat_with(provider.token(), model="chat").status == 200


def test_limits_are_of_the_tenant_and_of_each_caller(server: KServeServer, provider: OidcProvider) -> None:
    spec = rules(
        provider,
        {"tenants": (TenantSpec(name="acme", requests_per_minute=3),)},
        tenant_claim="tenant",
        caller_limits=CallerLimitsSpec(requests_per_minute=2),
    )
    with RunningGateway(server.url, models=MODELS, rules=spec) as gateway:

        def ask(name: str, tenant: str) -> Answer:
            return gateway.chat_with(provider.token(sub=name, tenant=tenant), model="chat")

        answers = [ask("alice", "acme") for _ in range(3)]  # each with a token of its own
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
        assert "this key may take 2 requests a minute" not in ask("bob", "acme").data.decode()
        assert "tenant acme may take 3 requests a minute" in ask("bob", "acme").json["error"]["message"]
        assert [ask("carol", "other").status for _ in range(3)] == [200, 200, 429]


def test_a_budget_of_callers_is_kept_by_their_accounts(
    server: KServeServer, provider: OidcProvider, tmp_path: Path
) -> None:
    spec = rules(provider, caller_limits=CallerLimitsSpec(usd_per_day=1.0))
    with RunningGateway(server.url, models=MODELS, rules=spec) as gateway:
        assert code_of(gateway.chat_with(provider.token(), model="chat")) == (503, "unavailable")  # there is no ledger
    with (
        LedgerStore(tmp_path / "ledger.sqlite") as store,
        Ledger(store, tmp_path / "journal", load_s=0.05) as ledger,
        RunningGateway(server.url, models=MODELS, rules=spec, ledger=ledger) as gateway,
    ):
        assert gateway.chat_with(provider.token(sub="alice\nroot"), model="chat").status == 200
        deadline_s = time.monotonic() + PATIENCE_S
        while not (rows := store.usage(["key"], since_day=0, until_day=10**6)):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    [row] = rows
    assert row.group == (account_of(provider.issuer, "alice\nroot"),)
    assert re.fullmatch("oidc:[0-9a-f]{24}", row.group[0])


def test_kept_answers_are_of_the_caller_who_asked(server: KServeServer, provider: OidcProvider) -> None:
    with RunningGateway(
        server.url, models=MODELS, rules=rules(provider, {"answer_cache": AnswerCacheSpec()})
    ) as gateway:

        def is_kept(name: str) -> bool:
            answer = gateway.chat_with(provider.token(sub=name), model="chat", temperature=0, max_tokens=4)
            assert answer.status == 200
            return answer.headers.get("x-trireme-answered-by") == "exact-cache"

        assert [is_kept(name) for name in ("alice", "alice", "bob", "bob", "alice")] == [False, True, False, True, True]


def test_a_provider_goes_with_keys_that_tell_callers_apart(provider: OidcProvider, tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("0123456789abcdef")
    access = HttpAccess(token_file=tmp_path / "keys.txt")
    with pytest.raises(SpecError, match=r"--token-file .* gateway\.oidc"):
        Gateway(ServedModels(MODELS), urls=["127.0.0.1:1"], access=access, rules=rules(provider))


def test_a_missing_package_is_named_with_what_installs_it(
    provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.access.open_oidc.find_spec", lambda _: None)
    with pytest.raises(SpecError, match="pyjwt"):
        Gateway(ServedModels(MODELS), urls=["127.0.0.1:1"], rules=rules(provider))
