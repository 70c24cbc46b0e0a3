# SPDX-License-Identifier: Apache-2.0
"""The limits of a key over HTTP: what the headers say, who is refused, and what an answer costs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kserve_server import KServeServer, story
from running_gateway import Answer, RunningGateway

from ensemble_configs.spec.gateway_spec import GatewaySpec, TenantSpec
from gateway.access.api_key import ApiKey
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.limits.key_limits import KeyLimits

TAKEN = 4 + 4  # tokens of the story's prompt and answer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.sqlite") as opened:
        yield opened


@pytest.fixture
def gateway(store: KeyStore) -> Iterator[RunningGateway]:
    with KServeServer(*story()) as server, RunningGateway(server.url, keys=store) as running:
        yield running


def key_with(store: KeyStore, name: str = "alice", **limits: int) -> ApiKey:
    return store.create(NewKey(name, limits=KeyLimits(**limits)))


def ask(gateway: RunningGateway, key: ApiKey, **fields: object) -> Answer:
    body = {"prompt": "Hi", "max_tokens": 100, **fields}
    return gateway.call("POST", "/v1/completions", body, Authorization=f"Bearer {key.text}")


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_requests_beyond_the_limit_are_told_when_to_come_again(
    gateway: RunningGateway, store: KeyStore, *, is_streaming: bool
) -> None:
    key = key_with(store, requests_per_minute=2)
    answers = [ask(gateway, key, stream=is_streaming) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"2"}
    assert 25 <= int(answers[2].headers["retry-after"]) <= 30
    error = answers[2].json["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert ask(gateway, key_with(store, "bob")).status == 200


def test_an_answer_costs_what_it_took_and_not_what_it_might_have(gateway: RunningGateway, store: KeyStore) -> None:
    key = key_with(store, tokens_per_minute=1000)
    first = ask(gateway, key, max_tokens=900)
    second = ask(gateway, key, max_tokens=900)
    assert (first.status, second.status) == (200, 200)
    left = int(second.headers["x-ratelimit-remaining-tokens"])
    assert 1000 - 2 * TAKEN <= left <= 1000 - 2 * TAKEN + 60  # and what has come back meanwhile


def test_a_request_that_the_server_refuses_costs_no_tokens(store: KeyStore) -> None:
    key = key_with(store, tokens_per_minute=1000)
    with (
        KServeServer("[INVALID_ARG field=max_tokens] no") as server,
        RunningGateway(server.url, keys=store) as gateway,
    ):
        for _ in range(3):
            assert ask(gateway, key, max_tokens=900).status == 400


def test_the_official_client_knows_the_refusal(gateway: RunningGateway, store: KeyStore) -> None:
    import openai

    key = key_with(store, requests_per_minute=1)
    with openai.OpenAI(base_url=gateway.url, api_key=key.text, max_retries=0) as client:
        client.completions.create(model="demo", prompt="Hi")
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="demo", prompt="Hi")


def test_the_keys_of_a_tenant_have_its_limits_together(store: KeyStore) -> None:
    rules = GatewaySpec(tenants=(TenantSpec(name="acme", requests_per_minute=2),))
    with KServeServer(*story()) as server, RunningGateway(server.url, keys=store, rules=rules) as gateway:
        keys = [store.create(NewKey(name, tenant="acme")) for name in ("alice", "bob")]
        answers = [ask(gateway, key) for key in (*keys, keys[0])]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
        assert "tenant acme may take 2 requests a minute" in answers[2].json["error"]["message"]
        assert ask(gateway, store.create(NewKey("carol", tenant="other"))).status == 200


def test_a_key_s_own_headers_come_before_its_tenant_s(store: KeyStore) -> None:
    rules = GatewaySpec(tenants=(TenantSpec(name="acme", requests_per_minute=100, tokens_per_minute=5000),))
    with KServeServer(*story()) as server, RunningGateway(server.url, keys=store, rules=rules) as gateway:
        answer = ask(gateway, store.create(NewKey("alice", tenant="acme", limits=KeyLimits(requests_per_minute=3))))
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-limit-tokens"] == "5000"
