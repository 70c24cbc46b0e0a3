# SPDX-License-Identifier: Apache-2.0
"""A gateway that gives kept answers to questions that are alike: to whom, for what, and for what never.

A question is an angle, "at 30 degrees", so that the similarity of two is the cosine of the difference.
"""

import math
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from key_places import bearer
from kserve_server import KServeServer, response, story
from running_gateway import Answer, RunningGateway
from scripted_embeddings import embedding_model, rows_of
from tritonclient.grpc import service_pb2

from clients.openai_api.tool_calls.reader_choice import Style
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.gateway_spec import AnswerCacheSpec, GatewaySpec, SemanticCacheSpec
from ensemble_configs.spec.price_spec import PriceSpec
from gateway.access.api_key import ApiKey
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.served_models import ServedModel

DEMO = ServedModel("demo", "ensemble", 100, price=PriceSpec(input=2, output=8))
OTHER = ServedModel("other", "other_ensemble", 100)
EMBED = embedding_model()
ANSWERED_BY, SIMILARITY = "x-trireme-answered-by", "x-trireme-similarity"
TEXT = "Once upon ünd"
LEAST = 0.95  # 18 degrees


def vectors(message: Any) -> Any:
    """Return the vector of each text: its angle on a circle, or a text that the request fails with."""
    rows = [row.decode() for row in rows_of(message) if isinstance(row, bytes)]
    found = service_pb2.ModelInferResponse()
    raw = b""
    for row in rows:
        angle = math.radians(float(re.search(r"\d+", row)[0]))  # type: ignore[index]
        raw += struct.pack("<2f", 5 * math.cos(angle), 5 * math.sin(angle))
    for name, kind, shape, data in (
        ("embedding", "FP32", [len(rows), 2], raw),
        ("num_input_tokens", "INT32", [len(rows), 1], struct.pack(f"<{len(rows)}i", *[1] * len(rows))),
    ):
        found.outputs.add(name=name, datatype=kind, shape=shape)
        found.raw_output_contents.append(data)
    return found


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(*story()) as running:
        running.whole = vectors
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.sqlite") as opened:
        yield opened


def rules(ttl_s: float = 300.0, **fields: Any) -> GatewaySpec:
    semantic = SemanticCacheSpec(embedding_model="embed", least_similarity=LEAST, **fields)
    return GatewaySpec(answer_cache=AnswerCacheSpec(ttl_s=ttl_s, semantic=semantic))


def gateway_of(server: KServeServer, store: KeyStore, spec: GatewaySpec | None = None, **more: Any) -> RunningGateway:
    return RunningGateway(server.url, models=(DEMO, OTHER, EMBED), keys=store, rules=spec or rules(), **more)


@pytest.fixture
def gateway(server: KServeServer, store: KeyStore) -> Iterator[RunningGateway]:
    with gateway_of(server, store) as running:
        yield running


def failed_lookups(gateway: RunningGateway, admin: ApiKey) -> float:
    found = gateway.call("GET", "/metrics", Authorization=bearer(admin)).data.decode()
    name = 'trireme_gateway_similar_lookups_total{gen_ai_request_model="demo",result="failed"} '
    return float(found.partition(name)[2].split()[0])


@pytest.fixture
def admin(store: KeyStore) -> ApiKey:
    return store.create(NewKey("root", role=Role.ADMIN))


@pytest.fixture
def key(store: KeyStore) -> ApiKey:
    return store.create(NewKey("alice"))


def ask(gateway: RunningGateway, key: ApiKey, degrees: int, **fields: Any) -> Answer:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": f"at {degrees} degrees"}]
    body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 4, **fields}
    found = gateway.call("POST", "/v1/chat/completions", body, Authorization=bearer(key))
    assert found.status == 200, found.data
    return found


def by(answer: Answer) -> str:
    return answer.headers.get(ANSWERED_BY, "")


def num_generated(server: KServeServer) -> int:
    return sum(request.model_name != "embed" for request in server.requests)


def test_a_question_that_is_alike_gets_the_answer_marked_with_its_similarity(
    gateway: RunningGateway, server: KServeServer, key: ApiKey
) -> None:
    assert by(ask(gateway, key, 10)) == ""
    alike = ask(gateway, key, 20)
    assert by(alike) == "semantic-cache"
    assert alike.headers[SIMILARITY] == f"{math.cos(math.radians(10)):.4f}"
    assert alike.json["choices"][0]["message"]["content"] == TEXT
    assert alike.json["usage"]["total_tokens"] == 8
    again = ask(gateway, key, 10)
    assert (by(again), again.headers.get(SIMILARITY)) == ("exact-cache", None)
    assert num_generated(server) == 1


def test_a_question_that_is_not_alike_enough_is_asked(
    gateway: RunningGateway, server: KServeServer, key: ApiKey
) -> None:
    ask(gateway, key, 10)
    assert by(ask(gateway, key, 30)) == ""
    nearest = ask(gateway, key, 26)  # of the two that are known then
    assert nearest.headers[SIMILARITY] == f"{math.cos(math.radians(4)):.4f}"
    assert num_generated(server) == 2


def test_an_answer_that_was_given_to_an_alike_question_does_not_lead_on_to_others(
    gateway: RunningGateway, key: ApiKey
) -> None:
    ask(gateway, key, 0)
    assert by(ask(gateway, key, 15)) == "semantic-cache"
    assert by(ask(gateway, key, 30)) == ""  # alike to the second one, which was not answered itself


def test_a_stream_is_marked_as_well(gateway: RunningGateway, key: ApiKey) -> None:
    ask(gateway, key, 10, stream=True)
    alike = ask(gateway, key, 12, stream=True)
    assert by(alike) == "semantic-cache"
    *events, done = alike.events
    assert done == "[DONE]"
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == TEXT


def say(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


BEFORE: dict[str, Any] = {
    "another model": {"model": "other"},
    "no system prompt": {"messages": [say("user", "at 10 degrees")]},
    "another system prompt": {"messages": [say("system", "Be long."), say("user", "at 10 degrees")]},
    "an earlier turn": {
        "messages": [
            say("system", "Be short."), say("user", "Hi"), say("assistant", "Ho"), say("user", "at 10 degrees"),
        ],
    },
    "another limit": {"max_tokens": 5},
    "a stop string": {"stop": "x"},
    "draws with a seed": {"temperature": 1, "seed": 3},
    "a penalty": {"presence_penalty": 0.5},
    "JSON": {"response_format": {"type": "json_object"}},
}  # fmt: skip


@pytest.mark.parametrize("fields", BEFORE.values(), ids=BEFORE)
def test_nothing_but_the_last_message_may_differ(gateway: RunningGateway, key: ApiKey, fields: dict[str, Any]) -> None:
    body = {
        "messages": [say("system", "Be short."), say("user", "at 10 degrees")],
        "temperature": 0,
        "max_tokens": 4,
        "model": "demo",
    }
    first = gateway.call("POST", "/v1/chat/completions", body | fields, Authorization=bearer(key))
    assert first.status == 200, first.data
    assert by(ask(gateway, key, 11)) == ""


def test_a_request_with_draws_without_a_seed_is_never_compared(
    gateway: RunningGateway, server: KServeServer, key: ApiKey
) -> None:
    for degrees in (10, 11):
        assert by(ask(gateway, key, degrees, temperature=1)) == ""
    assert all(request.model_name != "embed" for request in server.requests)


def test_where_tools_are_offered_no_answer_is_given_to_another_question(server: KServeServer) -> None:
    tools = [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}]
    hermes = DEMO._replace(tool_style=Style.HERMES)
    with RunningGateway(server.url, models=(hermes, EMBED), rules=rules()) as tooled:
        body = {"temperature": 0, "tools": tools, "model": "demo"}
        for degrees in (10, 11):
            found = tooled.chat(**body, messages=[say("user", f"at {degrees} degrees")])
            assert (found.status, by(found)) == (200, "")
    assert all(request.model_name != "embed" for request in server.requests)


def test_texts_are_not_compared(gateway: RunningGateway, server: KServeServer, key: ApiKey) -> None:
    for degrees in (10, 11):
        body = {"prompt": f"at {degrees} degrees", "temperature": 0, "max_tokens": 4, "model": "demo"}
        found = gateway.call("POST", "/v1/completions", body, Authorization=bearer(key))
        assert (found.status, by(found)) == (200, "")
    assert all(request.model_name != "embed" for request in server.requests)


def test_nobody_gets_an_answer_of_another_tenant_or_key(gateway: RunningGateway, store: KeyStore) -> None:
    keys = [
        store.create(NewKey(name, tenant=tenant))
        for name, tenant in (("bob", "b"), ("carol", "c"), ("dave", ""), ("erin", ""), ("bill", "b"))
    ]
    given = [by(ask(gateway, key, 10 + number)) for number, key in enumerate(keys)]
    assert given == ["", "", "", "", "semantic-cache"]


def test_it_may_be_for_some_tenants_alone(server: KServeServer, store: KeyStore) -> None:
    inside, outside = (store.create(NewKey(name, tenant=name)) for name in ("acme", "clinic"))
    with gateway_of(server, store, rules(tenants=("acme",))) as gateway:
        assert [by(ask(gateway, inside, degrees)) for degrees in (10, 11)] == ["", "semantic-cache"]
        assert [by(ask(gateway, outside, degrees)) for degrees in (10, 11, 11)] == ["", "", "exact-cache"]


def test_without_vectors_every_question_is_asked(
    server: KServeServer, store: KeyStore, key: ApiKey, admin: ApiKey
) -> None:
    server.whole = lambda _message: "[UNAVAILABLE reason=draining] it goes"
    with gateway_of(server, store) as gateway:
        assert [by(ask(gateway, key, degrees)) for degrees in (10, 11, 11)] == ["", "", "exact-cache"]
        assert failed_lookups(gateway, admin) == 2
        server.whole = vectors
        assert [by(ask(gateway, key, degrees)) for degrees in (30, 31)] == ["", "semantic-cache"]


def test_a_vector_that_comes_late_is_not_waited_for(
    server: KServeServer, store: KeyStore, key: ApiKey, admin: ApiKey
) -> None:
    def late(message: Any) -> Any:
        time.sleep(1)
        return vectors(message)

    server.whole = late
    with gateway_of(server, store, rules(wait_ms=50.0)) as gateway:
        assert [by(ask(gateway, key, degrees)) for degrees in (10, 11)] == ["", ""]
        assert failed_lookups(gateway, admin) == 2


def test_an_answer_is_forgotten_in_time(server: KServeServer, store: KeyStore, key: ApiKey) -> None:
    with gateway_of(server, store, rules(ttl_s=0.5)) as gateway:
        ask(gateway, key, 10)
        time.sleep(0.6)
        assert by(ask(gateway, key, 11)) == ""


def test_an_answer_of_a_release_that_answers_no_more_is_not_given(store: KeyStore, key: ApiKey) -> None:
    def told(release: int) -> list[Any]:
        return [response("Once", num_output_tokens=1, finish_reason="stop", release=release, final=True)]

    with KServeServer(*told(1)) as server, gateway_of(server, store) as gateway:
        server.whole = vectors
        ask(gateway, key, 10)
        server.script = tuple(told(2))
        ask(gateway, key, 90)
        assert by(ask(gateway, key, 11)) == ""


def test_questions_are_bounded(server: KServeServer, store: KeyStore, key: ApiKey) -> None:
    with gateway_of(server, store, rules(max_questions=1)) as gateway:
        ask(gateway, key, 10)
        ask(gateway, key, 90)
        assert by(ask(gateway, key, 91)) == "semantic-cache"
        assert by(ask(gateway, key, 11)) == ""


def test_the_ledger_tells_what_was_answered_so_and_what_it_saved(
    server: KServeServer, store: KeyStore, key: ApiKey, tmp_path: Path
) -> None:
    with LedgerStore(tmp_path / "ledger.sqlite") as rows, Ledger(rows, tmp_path / "journal", load_s=0.05) as ledger:
        with gateway_of(server, store, ledger=ledger) as gateway:
            ask(gateway, key, 10)
            ask(gateway, key, 11)
        deadline_s = time.monotonic() + 10
        while len(found := rows.usage(("answered_by",), since_day=0, until_day=10**6)) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        [of_cache] = [each for each in found if each.group == ("semantic-cache",)]
        assert (of_cache.requests, of_cache.cost_nano_usd) == (1, 0)
        assert of_cache.saved_nano_usd == 4 * 2000 + 4 * 8000


@pytest.mark.parametrize(
    ("semantic", "said"),
    [
        ({"embedding_model": "mine", "least_similarity": 0.9}, "must name one of embedding_models, got 'mine'; there"),
        ({"embedding_model": "embed"}, "least_similarity"),
        ({"embedding_model": "embed", "least_similarity": 1.5}, "least_similarity"),
        ({"embedding_model": "embed", "least_similarity": 0.0}, "least_similarity"),
    ],
)
def test_a_deployment_says_which_model_and_how_alike(semantic: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        DeploymentSpec.of_one(
            name="mine",
            tokenizer={"dir": "/models/mine"},
            engine={"provider": "simulated"},
            embedding_models=[{"name": "embed", "dir": "/models/embed", "pooling": "mean"}],
            gateway={"answer_cache": {"semantic": semantic}},
        )
