# SPDX-License-Identifier: Apache-2.0
"""A name that stands for two models: which requests go to the small one, and what that saves."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from key_places import bearer
from kserve_server import KServeServer, story
from running_gateway import RunningGateway

from clients.openai_api.asked import Endpoint
from ensemble_configs.spec.gateway_spec import AnswerCacheSpec, GatewaySpec, SimpleSpec, TierSpec
from ensemble_configs.spec.price_spec import PriceSpec
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.answering import asked_by
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.served_models import ServedModel
from gateway.tiers import is_simple

LARGE = ServedModel("large", "large_ensemble", 100, price=PriceSpec(input=10, output=20))
SMALL = ServedModel("small", "small_ensemble", 100, price=PriceSpec(input=1, output=2))
RULES = SimpleSpec(max_prompt_chars=200, max_messages=3, max_answer_tokens=50, words_of_others=("Prove",))
USER = {"role": "user", "content": "What is the capital of France?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def tier(**fields: Any) -> GatewaySpec:
    return GatewaySpec(tiers=(TierSpec(name="auto", small="small", large="large", simple=RULES),), **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"max_tokens": 50}, True),
        ({"max_tokens": 51}, False),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, False),
        ({"messages": [USER, {"role": "assistant", "content": "Paris."}, USER]}, True),
        ({"messages": [USER] * 4}, False),
        ({"messages": [{"role": "user", "content": "Now PROVE it."}]}, False),
        ({"messages": [{"role": "user", "content": "Now prove it."}, USER]}, True),
        ({"tools": [TOOL]}, False),
        ({"messages": [{"role": "user", "content": "x" * 120}]}, True),
        ({"response_format": SCHEMA}, False),
        ({"n": 2}, False),
    ],
)
def test_a_request_is_simple_where_it_keeps_every_rule(fields: dict[str, Any], *, expected: bool) -> None:
    asked = asked_by(Endpoint.CHAT, {"messages": [USER], **fields})
    assert is_simple(asked, RULES) is expected


@pytest.mark.parametrize(("prompt", "expected"), [("Hi", True), (["Hi", "Ho"], False), ("prove it", False)])
def test_texts_are_simple_or_not_as_well(prompt: object, *, expected: bool) -> None:
    assert is_simple(asked_by(Endpoint.COMPLETIONS, {"prompt": prompt}), RULES) is expected


def test_rules_may_allow_tools_and_schemas() -> None:
    asked = asked_by(Endpoint.CHAT, {"messages": [USER], "tools": [TOOL], "response_format": SCHEMA})
    assert is_simple(asked, SimpleSpec(tools=True, schemas=True))
    assert not is_simple(asked, SimpleSpec(tools=True))
    assert not is_simple(asked, SimpleSpec(tools=True, schemas=True, max_prompt_chars=100))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.sqlite") as opened:
        yield opened


def test_simple_requests_go_to_the_small_model_and_what_that_saves_is_told(store: KeyStore, tmp_path: Path) -> None:
    rules = tier(answer_cache=AnswerCacheSpec())
    with (
        LedgerStore(tmp_path / "ledger.sqlite") as rows,
        Ledger(rows, tmp_path / "journal") as ledger,
        KServeServer(*story()) as server,
        RunningGateway(server.url, models=(LARGE, SMALL), keys=store, ledger=ledger, rules=rules) as gateway,
    ):
        key = store.create(NewKey("alice")).text
        answers = [
            gateway.chat_with(
                key, model="auto", messages=[{"role": "user", "content": text}], temperature=0, max_tokens=4
            )
            for text in ("Hi", "Hi", "Prove it.")
        ]
        assert [answer.json["model"] for answer in answers] == ["small", "small", "large"]
        assert [request.model_name for request in server.requests] == ["small_ensemble", "large_ensemble"]
        admin = store.create(NewKey("ops", role=Role.ADMIN))
        page = gateway.call("GET", "/metrics", Authorization=bearer(admin)).data.decode()
        saved = dict(re.findall(r'saved_usd_total\{by="([a-z-]+)"\} (\S+)', page))
        assert saved == {"auto": "0.000108", "exact-cache": "0.00012"}
    with LedgerStore(tmp_path / "ledger.sqlite") as rows:
        sums = rows.usage(("tier", "model", "answered_by"), since_day=0, until_day=10**6)
    assert [(*each.group, each.cost_nano_usd, each.saved_nano_usd) for each in sums] == [
        ("auto", "large", "", 4 * 10_000 + 4 * 20_000, 0),
        ("auto", "small", "", 4 * 1_000 + 4 * 2_000, 4 * 9_000 + 4 * 18_000),
        ("auto", "small", "exact-cache", 0, 4 * 10_000 + 4 * 20_000),
    ]


def test_a_tier_is_for_keys_of_both_models(store: KeyStore) -> None:
    with (
        KServeServer(*story()) as server,
        RunningGateway(server.url, models=(LARGE, SMALL), keys=store, rules=tier()) as gateway,
    ):
        for name, models, status in (("alice", None, 200), ("bob", frozenset({"small"}), 403)):
            key = store.create(NewKey(name, models=models))
            assert gateway.chat_with(key.text, model="auto").status == status
            listed = gateway.call("GET", "/v1/models", Authorization=bearer(key)).json["data"]
            assert ("auto" in [model["id"] for model in listed]) == (status == 200)
            described = gateway.call("GET", "/v1/models/auto", Authorization=bearer(key))
            assert described.status == status


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "large", "small": "small", "large": "large"}, "is the name of a model"),
        ({"name": "other", "small": "small", "large": "large"}, "or an alias"),
        ({"name": "auto", "small": "gone", "large": "large"}, "small must name a model, got 'gone'"),
        ({"name": "auto", "small": "small", "large": "small"}, "has one model, 'small'"),
    ],
)
def test_tiers_that_make_no_sense_are_told(fields: dict[str, Any], said: str) -> None:
    spec = GatewaySpec.model_validate({"tiers": [fields], "aliases": {"other": "large"}})
    assert any(said in clash for clash in spec.find_clashes(["large", "small"]))
