# SPDX-License-Identifier: Apache-2.0
"""OpenAI's `/v1/embeddings` of a gateway before scripted servers: vectors, limits, errors, and who pays."""

import base64
import contextlib
import http.client
import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kserve_server import KServeServer
from running_gateway import MODELS, Answer, RunningGateway
from scripted_embeddings import answer, embedding_model, rows_of, vector_of

from ensemble_configs.spec.gateway_spec import GatewaySpec
from ensemble_configs.spec.price_spec import PriceSpec
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.gateway import Limits
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.limits.key_limits import KeyLimits
from gateway.servers import breaker, server_pool

EMBED = embedding_model(max_batch_size=2)._replace(price=PriceSpec(input=2, output=0))


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer() as running:
        running.whole = answer
        yield running


@pytest.fixture
def gateway(server: KServeServer) -> Iterator[RunningGateway]:
    with RunningGateway(server.url, models=(*MODELS, EMBED)) as running:
        yield running


def embed(gateway: RunningGateway, given: Any, key: str = "", **fields: Any) -> Answer:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return gateway.call("POST", "/v1/embeddings", {"input": given, "model": "embed", **fields}, **headers)


def test_a_text_gets_its_vector_and_its_tokens_are_told(gateway: RunningGateway, server: KServeServer) -> None:
    found = embed(gateway, "Hi")
    assert found.status == 200
    assert found.json == {
        "object": "list",
        "model": "embed",
        "data": [{"object": "embedding", "index": 0, "embedding": vector_of(b"Hi")}],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    assert found.headers["x-request-id"]
    [asked] = server.requests
    assert asked.model_name == "embed"
    assert [each.name for each in asked.inputs] == ["text_input"]


def test_many_texts_go_in_parts_and_come_back_in_their_order(gateway: RunningGateway, server: KServeServer) -> None:
    texts = [chr(97 + number) * (number + 1) for number in range(21)]
    data = embed(gateway, texts).json["data"]
    assert [each["index"] for each in data] == list(range(21))
    assert [each["embedding"] for each in data] == [vector_of(text.encode()) for text in texts]
    assert sorted(len(rows_of(each)) for each in server.requests) == [1, *[2] * 10]


def test_token_ids_go_as_they_are(gateway: RunningGateway, server: KServeServer) -> None:
    assert embed(gateway, [7, 8, 9]).json["data"][0]["embedding"] == [3.0, 7.0, 1.0]
    assert embed(gateway, [[7, 8, 9], [5]]).json["usage"]["prompt_tokens"] == 6
    assert [rows_of(each) for each in server.requests] == [[[7, 8, 9]], [[7, 8, 9], [5, -1, -1]]]


def test_base64_holds_the_same_numbers(gateway: RunningGateway) -> None:
    data = embed(gateway, ["Hi", "you"], encoding_format="base64").json["data"]
    told = [list(struct.unpack("<3f", base64.b64decode(each["embedding"]))) for each in data]
    assert told == [vector_of(b"Hi"), vector_of(b"you")]


def test_the_only_embedding_model_need_not_be_named_and_neither_the_only_one_of_text(gateway: RunningGateway) -> None:
    assert gateway.call("POST", "/v1/embeddings", {"input": "Hi"}).json["model"] == "embed"
    assert gateway.complete().status != 404


def test_an_alias_is_its_model(server: KServeServer) -> None:
    rules = GatewaySpec.model_validate({"aliases": {"text-embedding-3-small": "embed"}})
    with RunningGateway(server.url, models=(*MODELS, EMBED), rules=rules) as gateway:
        found = embed(gateway, "Hi", model="text-embedding-3-small")
        assert (found.status, found.json["model"]) == (200, "embed")


def test_each_kind_of_model_is_refused_where_the_other_one_answers(gateway: RunningGateway) -> None:
    for found, said in (
        (embed(gateway, "Hi", model="demo"), "model 'demo' writes text, and makes no embeddings; there are embed"),
        (gateway.chat(model="embed"), "model 'embed' makes embeddings, and writes no text; ask it at /v1/embeddings"),
    ):
        assert found.status == 400
        error = found.json["error"]
        assert (error["code"], error["param"], error["message"]) == ("unsupported_model", "model", said)
    assert embed(gateway, "Hi", model="other").status == 404
    assert embed(gateway, "Hi", model="embed@2").json["error"]["param"] == "model"


def test_models_tell_what_makes_embeddings(gateway: RunningGateway) -> None:
    listed = gateway.call("GET", "/v1/models").json["data"]
    assert [(each["id"], each.get("task")) for each in listed] == [("demo", None), ("embed", "embedding")]
    assert gateway.call("GET", "/v1/models/embed").json["max_model_len"] == 512


@pytest.mark.parametrize(
    ("said", "status", "code", "param", "message"),
    [
        (
            "[INVALID_ARG field=text_input index=1 value=600 max=512] text_input has 600 tokens",
            400,
            "context_length_exceeded",
            "input",
            "input[3] has 600 tokens",
        ),
        (
            "[INVALID_ARG field=input_ids index=0] input_ids is empty",
            400,
            "invalid_value",
            "input",
            "input[2] is empty",
        ),
        (
            "[INVALID_ARG field=dimensions value=8] dimensions must be 3",
            400,
            "invalid_value",
            "dimensions",
            "dimensions must be 3",
        ),
        ("Exceeds maximum queue size", 429, "overloaded", None, "Exceeds maximum queue size"),
        ("[UNAVAILABLE reason=draining] the server is going", 503, "unavailable", None, "the server is going"),
        ("something broke", 400, "invalid_value", None, "something broke"),
    ],
)
def test_what_a_server_refuses_is_told_by_the_caller_s_own_words(
    server: KServeServer, gateway: RunningGateway, said: str, status: int, code: str, param: str | None, message: str
) -> None:
    server.whole = lambda message: said if b"wrong" in message.raw_input_contents[0] else answer(message)
    found = embed(gateway, ["a", "b", "c", "wrong"])
    assert found.status == status
    error = found.json["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert message in error["message"]
    assert found.headers["x-request-id"]


def test_an_answer_that_is_not_of_the_contract_is_a_server_s_fault(
    server: KServeServer, gateway: RunningGateway
) -> None:
    server.whole = lambda _message: type(answer(_message))()
    assert embed(gateway, "Hi").status == 500


def test_a_server_that_takes_too_long_is_504(server: KServeServer) -> None:
    go_on = threading.Event()

    def wait(message: Any) -> Any:
        go_on.wait(10)
        return answer(message)

    server.whole = wait
    with RunningGateway(server.url, models=(EMBED,), limits=Limits(timeout_s=0.3, exit_timeout_s=0.1)) as gateway:
        assert embed(gateway, "Hi").json["error"]["code"] == "timeout"
        go_on.set()


def test_what_one_server_cannot_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "_LOOK_S", 0.05)
    monkeypatch.setattr(breaker, "_FIRST_S", 60.0)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(KServeServer()) for _ in range(2)]
        for each in servers:
            each.model = "embed"
        servers[0].whole = lambda _message: "[UNAVAILABLE reason=engine_died] it died"
        servers[1].whole = answer
        gateway = stack.enter_context(RunningGateway(*(each.url for each in servers), models=(EMBED,)))
        assert [embed(gateway, "Hi").status for _ in range(12)] == [200] * 12
        assert len(servers[1].requests) == 12
        assert 1 <= len(servers[0].requests) <= 3  # then it is left alone
        servers[1].whole = servers[0].whole
        assert embed(gateway, "Hi").status == 503


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.sqlite") as opened:
        yield opened


def test_a_key_may_be_for_other_models(server: KServeServer, store: KeyStore) -> None:
    key = store.create(NewKey("alice", models=frozenset({"demo"}))).text
    with RunningGateway(server.url, models=(*MODELS, EMBED), keys=store) as gateway:
        assert embed(gateway, "Hi", key).json["error"]["code"] == "model_not_allowed"
        assert embed(gateway, "Hi", "nobody").status == 401
        assert not server.requests


def test_texts_cost_the_tokens_that_they_had(server: KServeServer, store: KeyStore) -> None:
    key = store.create(NewKey("alice", limits=KeyLimits(tokens_per_minute=100, requests_per_minute=3))).text
    with RunningGateway(server.url, models=(EMBED,), keys=store) as gateway:
        first = embed(gateway, "a" * 40, key)
        assert int(first.headers["x-ratelimit-remaining-tokens"]) <= 90
        second = embed(gateway, "a" * 50, key)
        assert 10 <= int(second.headers["x-ratelimit-remaining-tokens"]) <= 30
        refused = embed(gateway, "a" * 400, key)
        assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert len(server.requests) == 2


def test_the_ledger_and_the_metrics_have_each_request(server: KServeServer, tmp_path: Path) -> None:
    with (
        LedgerStore(tmp_path / "ledger.sqlite") as ledger_store,
        Ledger(ledger_store, tmp_path / "journal", load_s=0.05) as ledger,
        RunningGateway(server.url, models=(EMBED,), ledger=ledger) as gateway,
    ):
        embed(gateway, ["Hi", "you"])
        server.whole = lambda _message: "[UNAVAILABLE reason=draining] going"
        embed(gateway, "Hi")
        groups = ("endpoint", "model", "finish")
        deadline_s = time.monotonic() + 10
        while len(found := ledger_store.usage(groups, since_day=0, until_day=10**6)) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        by_end = {each.group[2]: each for each in found}
        assert by_end["stop"].group == ("/v1/embeddings", "embed", "stop")
        assert (by_end["stop"].prompt_tokens, by_end["stop"].completion_tokens) == (5, 0)
        assert by_end["stop"].cost_nano_usd == 5 * 2000
        assert by_end["unavailable"].cost_nano_usd == 0
        page = gateway.call("GET", "/metrics").data.decode()
        labels = 'gen_ai_operation_name="embeddings",gen_ai_request_model="embed"'
        assert f'gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type="input"}} 5.0' in page
        assert f'gen_ai_server_request_duration_seconds_count{{error_type="unavailable",{labels}}} 1.0' in page


def test_a_caller_who_leaves_leaves_nothing_running(server: KServeServer) -> None:
    go_on = threading.Event()

    def wait(message: Any) -> Any:
        go_on.wait(10)
        return answer(message)

    server.whole = wait
    with RunningGateway(server.url, models=(EMBED,)) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        connection.request("POST", "/v1/embeddings", json.dumps({"input": ["a"] * 30}))
        deadline_s = time.monotonic() + 10
        while not server.requests:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        connection.close()
        while 'error_type="client_gone"' not in gateway.call("GET", "/metrics").data.decode():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        go_on.set()
        num_asked = len(server.requests)
        assert num_asked <= 4  # of 15 parts
        time.sleep(0.2)
        assert len(server.requests) == num_asked
