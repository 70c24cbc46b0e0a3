# SPDX-License-Identifier: Apache-2.0
"""Models that stand in for others, and an API elsewhere: who gets which answer, and who never leaves."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kserve_server import HANG, KServeServer, response, story
from running_gateway import RunningGateway

from ensemble_configs.spec.gateway_spec import (
    FallbackSpec,
    FallbackStepSpec,
    GatewaySpec,
    ManagedApiSpec,
    TenantSpec,
)
from ensemble_configs.spec.price_spec import PriceSpec
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.served_models import ServedModel
from trireme.base.errors import SpecError

TEXT = "Once upon ünd"
DOWN = "[UNAVAILABLE reason=engine_restarting] the engine starts"
FULL = "[UNAVAILABLE reason=queue_full retry_after_ms=2500] the queue is full"
WRONG = '[INVALID_ARG field="max_tokens" value=9] no'
ANSWERED_BY = "x-trireme-answered-by"
LARGE = ServedModel("large", "large_ensemble", 100, price=PriceSpec(input=10, output=10))
SMALL = ServedModel("small", "small_ensemble", 100, price=PriceSpec(input=1, output=1))
TENANTS = (
    TenantSpec(name="open", fallbacks=("small", "elsewhere")),
    TenantSpec(name="api", fallbacks=("elsewhere",)),
    TenantSpec(name="none", fallbacks=()),
    TenantSpec(name="resident", fallbacks=("small",), is_resident=True),
)


class Models(KServeServer):
    """A server of two models, each with a script of its own."""

    def __init__(self, large: list[Any], small: list[Any]) -> None:
        super().__init__(lambda request: large if request.model_name == "large_ensemble" else small)

    def asked(self) -> list[str]:
        return [request.model_name.removesuffix("_ensemble") for request in self.requests]


class World:
    """A gateway before two models, with another gateway as the API elsewhere."""

    def __init__(self, gateway: RunningGateway, servers: Models, elsewhere: KServeServer, keys: KeyStore) -> None:
        self.gateway, self.servers, self.elsewhere, self._keys = gateway, servers, elsewhere, keys
        self._known: dict[str, str] = {}

    def key(self, tenant: str, **fields: Any) -> str:
        if (name := f"{tenant} {fields}") not in self._known:
            self._known[name] = self._keys.create(NewKey(f"key{len(self._known)}", tenant=tenant, **fields)).text
        return self._known[name]

    def chat(self, tenant: str, **fields: Any) -> Any:
        return self.gateway.chat_with(self.key(tenant), model="large", **fields)


def chain(*steps: FallbackStepSpec, **fields: Any) -> tuple[FallbackSpec, ...]:
    return (FallbackSpec(model="large", steps=steps, **fields),)


BOTH = (FallbackStepSpec(model="small"), FallbackStepSpec(api="elsewhere"))


@contextlib.contextmanager
def world(
    folder: Path,
    large: list[Any],
    small: list[Any],
    elsewhere: list[Any] | None = None,
    *,
    fallbacks: tuple[FallbackSpec, ...] | None = None,
) -> Iterator[World]:
    (folder / "their_key").write_text("sk-theirs-0123456789abcdef\n")
    with contextlib.ExitStack() as stack:
        behind = stack.enter_context(KServeServer(*(elsewhere or story())))
        api = stack.enter_context(RunningGateway(behind.url, token_file=folder / "their_key"))
        rules = GatewaySpec(
            tenants=TENANTS,
            fallbacks=chain(*BOTH) if fallbacks is None else fallbacks,
            managed_apis=(
                ManagedApiSpec(
                    name="elsewhere", url=api.url, model="demo", key_file=folder / "their_key",
                    price=PriceSpec(input=100, output=100),
                ),
            ),
        )  # fmt: skip
        servers = stack.enter_context(Models(large, small))
        keys = stack.enter_context(KeyStore(folder / "keys.sqlite"))
        store = stack.enter_context(LedgerStore(folder / "gateway.sqlite"))
        ledger = stack.enter_context(Ledger(store, folder / "journal"))
        gateway = stack.enter_context(
            RunningGateway(servers.url, models=(LARGE, SMALL), keys=keys, ledger=ledger, rules=rules)
        )
        yield World(gateway, servers, behind, keys)


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("said", [DOWN, FULL], ids=["down", "full"])
def test_another_model_answers_where_the_one_cannot(tmp_path: Path, said: str, *, is_streaming: bool) -> None:
    with world(tmp_path, [said], story()) as there:
        answer = there.chat("", stream=is_streaming)
        assert (answer.status, answer.headers[ANSWERED_BY]) == (200, "small")
        found = answer.events[0] if is_streaming else answer.json
        assert found["model"] == "small"
        assert there.servers.asked() == ["large", "small"]
        assert there.elsewhere.requests == []


def test_the_model_itself_answers_without_a_mark_where_it_can(tmp_path: Path) -> None:
    with world(tmp_path, story(), [DOWN]) as there:
        answer = there.chat("open")
        assert (answer.status, answer.json["model"]) == (200, "large")
        assert ANSWERED_BY not in answer.headers
        assert there.servers.asked() == ["large"]


def test_a_request_that_is_wrong_falls_back_to_nobody(tmp_path: Path) -> None:
    with world(tmp_path, [WRONG], story()) as there:
        assert there.chat("open").status == 400
        assert there.servers.asked() == ["large"]


def test_what_has_begun_is_ended_by_nobody_else(tmp_path: Path) -> None:
    with world(tmp_path, [response("Once", num_output_tokens=1, num_input_tokens=4), DOWN], story()) as there:
        *_, error = there.chat("open", stream=True).events
        assert error["error"]["code"] == "unavailable"
        assert there.servers.asked() == ["large"]


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_an_api_elsewhere_answers_where_nobody_here_can(tmp_path: Path, *, is_streaming: bool) -> None:
    with world(tmp_path, [DOWN], [DOWN]) as there:
        answer = there.chat("open", stream=is_streaming, temperature=0, max_tokens=7, stop=["x"])
        assert (answer.status, answer.headers[ANSWERED_BY]) == (200, "elsewhere")
        if is_streaming:
            *events, done = answer.events
            assert done == "[DONE]"
            said = "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"])
            assert (said, events[0]["model"]) == (TEXT, "elsewhere")
        else:
            assert answer.json["choices"][0]["message"]["content"] == TEXT
            assert answer.json["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}
        assert there.servers.asked() == ["large", "small"]
        [request] = there.elsewhere.requests
        asked = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
        assert int.from_bytes(asked["max_tokens"], "little") == 7
        assert "temperature" not in asked  # greedy, there too


def test_tenants_get_what_is_allowed_to_them_and_the_resident_never_leaves(tmp_path: Path) -> None:
    with world(tmp_path, [DOWN], [DOWN]) as there:
        for tenant in ("", "unknown", "none", "resident"):
            answer = there.chat(tenant)
            assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
        assert there.elsewhere.requests == []
        assert there.servers.asked() == ["large", "small", "large", "small", "large", "large", "small"]
        assert there.chat("api").headers[ANSWERED_BY] == "elsewhere"
        assert there.servers.asked()[7:] == ["large"]


def test_a_key_s_models_hold_for_those_that_stand_in(tmp_path: Path) -> None:
    with world(tmp_path, [DOWN], story()) as there:
        key = there.key("open", models=frozenset({"large"}))
        assert there.gateway.chat_with(key, model="large").headers[ANSWERED_BY] == "elsewhere"


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_a_model_that_takes_too_long_to_begin_is_left(tmp_path: Path, *, is_streaming: bool) -> None:
    fallbacks = chain(FallbackStepSpec(model="small"), first_token_s=2.0)  # enough to reach the model
    with world(tmp_path, [HANG], story(), fallbacks=fallbacks) as there:
        answer = there.chat("", stream=is_streaming)
        assert (answer.status, answer.headers[ANSWERED_BY]) == (200, "small")
        assert there.servers.was_cancelled.wait(5)


def test_the_error_is_that_of_the_model_that_was_asked_for(tmp_path: Path) -> None:
    with world(tmp_path, [FULL], [DOWN], [DOWN]) as there:
        answer = there.chat("open")
        assert (answer.status, answer.headers["retry-after"]) == (429, "3")
        assert len(there.elsewhere.requests) >= 1


def test_what_an_api_has_no_name_for_is_not_asked_there(tmp_path: Path) -> None:
    with world(tmp_path, [DOWN], [DOWN]) as there:
        assert there.chat("open", top_k=5, temperature=1).status == 503
        assert there.elsewhere.requests == []


def test_tools_reasoning_and_calls_go_there_and_back(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    with world(tmp_path, [DOWN], [DOWN]) as there:
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
        messages = [
            {"role": "user", "content": "Is it warm?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "21"},
        ]
        assert there.chat("api", messages=messages).status == 200
        [request] = there.elsewhere.requests
        asked = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
        assert b'"city":"Ulm"' in asked["messages"]
        # The model here writes calls in no style that is read: another one that cannot is no reason for an error.
        assert there.chat("open", tools=tools).status == 400


def test_the_ledger_has_who_answered_and_its_price(tmp_path: Path) -> None:
    with world(tmp_path, [DOWN], [DOWN]) as there:
        there.chat("open")
        there.chat("resident")
    with LedgerStore(tmp_path / "gateway.sqlite") as ledger:
        sums = ledger.usage(("model", "answered_by", "finish"), since_day=0, until_day=10**6)
    assert [(*each.group, each.cost_nano_usd) for each in sums] == [
        ("large", "", "unavailable", 0),
        ("large", "elsewhere", "length", 8 * 100_000),
    ]


def test_metrics_count_who_answered(tmp_path: Path) -> None:
    with world(tmp_path, [DOWN], story()) as there:
        there.chat("open")
        key = there.key("ops", role=Role.ADMIN)
        page = there.gateway.call("GET", "/metrics", Authorization=f"Bearer {key}").data.decode()
        assert re.search(r'fallbacks_total\{answered_by="small",gen_ai_request_model="large"\} 1\.0', page)


def test_the_official_client_sees_an_ordinary_answer(tmp_path: Path) -> None:
    import openai

    with (
        world(tmp_path, [DOWN], [DOWN]) as there,
        openai.OpenAI(base_url=there.gateway.url, api_key=there.key("open"), max_retries=0) as client,
    ):
        response = client.responses.create(model="large", input="Hi")
        assert (response.output_text, response.model) == (TEXT, "elsewhere")
        stream = client.chat.completions.create(
            model="large", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        assert "".join(event.choices[0].delta.content or "" for event in stream) == TEXT
        resident = client.with_options(api_key=there.key("resident"))
        with pytest.raises(openai.InternalServerError):
            resident.chat.completions.create(model="large", messages=[{"role": "user", "content": "Hi"}])


def test_an_api_that_fails_again_and_again_is_left_alone_for_a_while(tmp_path: Path) -> None:
    with world(tmp_path, [DOWN], [DOWN], [DOWN]) as there:
        key = there.key("open")
        for _ in range(8):
            assert there.gateway.chat_with(key, model="large").status == 503
        assert len(there.elsewhere.requests) == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"fallbacks": [{"model": "gone", "steps": [{"model": "small"}]}]}, "must be of models, got 'gone'"),
        ({"fallbacks": [{"model": "large", "steps": [{"model": "large"}]}]}, "is the model itself"),
        ({"fallbacks": [{"model": "large", "steps": [{"model": "gone"}]}]}, "must name a model, got 'gone'"),
        (
            {"fallbacks": [{"model": "large", "steps": [{"api": "gone"}]}]},
            "must name one of gateway.managed_apis, got 'gone'",
        ),
        ({"fallbacks": [{"model": "large", "steps": [{}]}]}, "must have either model or api"),
        ({"fallbacks": [{"model": "large", "steps": [{"model": "small"}, {"model": "small"}]}]}, "have 'small' twice"),
        ({"managed_apis": [{"name": "small", "url": "https://a", "model": "m"}]}, "is the name of a model"),
        ({"managed_apis": [{"name": "a", "url": "https://a", "model": "m"}] * 2}, "has 'a' twice"),
        ({"tenants": [{"name": "t", "fallbacks": ["gone"]}]}, "must be models and managed APIs, got 'gone'"),
        (
            {
                "managed_apis": [{"name": "a", "url": "https://a", "model": "m"}],
                "tenants": [{"name": "t", "fallbacks": ["a"], "is_resident": True}],
            },
            "the tenant is resident",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_that_make_no_sense_are_told(fields: dict[str, Any], said: str) -> None:
    assert any(said in clash for clash in GatewaySpec.model_validate(fields).find_clashes(["large", "small"]))


def test_an_authority_without_tls_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    api = ManagedApiSpec(name="a", url="http://a", model="m", ca_file=tmp_path / "ca.pem")
    with pytest.raises(SpecError, match="needs an https URL"), KServeServer() as server:
        RunningGateway(server.url, rules=GatewaySpec(managed_apis=(api,)))
