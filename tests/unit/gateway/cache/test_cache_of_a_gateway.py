# SPDX-License-Identifier: Apache-2.0
"""A gateway that keeps answers: who gets which again, what it costs, and when it is made anew."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from key_places import bearer
from kserve_server import KServeServer, response, story
from redis_here import PASSWORD
from running_gateway import Answer, RunningGateway

from ensemble_configs.spec.gateway_spec import AnswerCacheSpec, GatewaySpec, TenantSpec
from ensemble_configs.spec.price_spec import PriceSpec
from gateway import redis_place
from gateway.access.api_key import ApiKey
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.redis_place import RedisPlace
from gateway.served_models import ServedModel
from trireme.base.errors import SpecError

if TYPE_CHECKING:
    from redis_here import RedisServer

MODEL = ServedModel("demo", "ensemble", 100, price=PriceSpec(input=2, output=8))
RULES = GatewaySpec(answer_cache=AnswerCacheSpec(), tenants=(TenantSpec(name="acme", tokens_per_minute=100),))
TEXT = "Once upon ünd"
ANSWERED_BY = "x-trireme-answered-by"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    with KeyStore(tmp_path / "keys.sqlite") as opened:
        yield opened


@pytest.fixture(params=["memory", "redis"])
def redis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "RedisServer | None":
    if request.param == "memory":
        return None
    monkeypatch.setenv(redis_place.PASSWORD, PASSWORD)
    monkeypatch.setattr("gateway.gateway._CACHE_SILENCE_S", 5.0)  # a busy machine is not a Redis that is away
    server: RedisServer = request.getfixturevalue("redis_server")
    return server


@contextlib.contextmanager
def gateway_of(server: KServeServer, store: KeyStore, redis: "RedisServer | None" = None, **fields: Any) -> Any:
    place = None if redis is None else RedisPlace(redis.url, option="--cache")
    with RunningGateway(server.url, models=(MODEL,), keys=store, rules=RULES, cache_redis=place, **fields) as gateway:
        yield gateway


def ask(gateway: RunningGateway, key: ApiKey, **fields: Any) -> Answer:
    body = {"prompt": "Hi", "temperature": 0, "max_tokens": 4, **fields}
    return gateway.call("POST", "/v1/completions", body, Authorization=bearer(key))


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.data
    if answer.data.startswith(b"{"):
        return str(answer.json["choices"][0]["text"])
    *events, done = answer.events
    assert done == "[DONE]"
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def is_kept(answer: Answer) -> bool:
    assert text_of(answer) == TEXT
    return answer.headers.get(ANSWERED_BY) == "exact-cache"


def test_the_same_question_is_answered_once_however_its_answer_comes(
    store: KeyStore, redis: "RedisServer | None"
) -> None:
    with KServeServer(*story()) as server, gateway_of(server, store, redis) as gateway:
        key = store.create(NewKey(f"alice {redis is None}"))
        assert [is_kept(ask(gateway, key, stream=stream)) for stream in (False, False, True, True)] == [
            False, True, True, True,
        ]  # fmt: skip
        assert ask(gateway, key).json["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}
        assert len(server.requests) == 1


def test_what_is_not_the_same_is_made(store: KeyStore) -> None:
    with KServeServer(*story()) as server, gateway_of(server, store) as gateway:
        key = store.create(NewKey("alice"))
        ask(gateway, key)
        for fields in ({"max_tokens": 3}, {"prompt": "Ho"}, {"temperature": 1}, {"temperature": 1}, {"stop": "x"}):
            assert not is_kept(ask(gateway, key, **fields))
        assert [is_kept(ask(gateway, key, temperature=1, seed=3)) for _ in range(2)] == [False, True]


def test_nobody_gets_an_answer_of_another_tenant(store: KeyStore, redis: "RedisServer | None") -> None:
    with KServeServer(*story()) as server, gateway_of(server, store, redis) as gateway:
        keys = [store.create(NewKey(name, tenant=tenant)) for name, tenant in (
            ("alice", "a"), ("bob", "b"), ("carol", ""), ("dave", ""), ("anna", "a"),
        )]  # fmt: skip
        assert [is_kept(ask(gateway, key, prompt=f"x {redis is None}")) for key in keys] == [
            False, False, False, False, True,
        ]  # fmt: skip


def test_answers_of_a_release_that_answers_no_more_are_made_anew(store: KeyStore) -> None:
    release = 1

    def play(_request: Any) -> list[Any]:
        return [
            response(TEXT, num_output_tokens=4, num_input_tokens=4, finish_reason="stop", release=release, final=True)
        ]

    with KServeServer(play) as server, gateway_of(server, store) as gateway:
        key = store.create(NewKey("alice"))
        assert [is_kept(ask(gateway, key)) for _ in range(2)] == [False, True]
        release = 2
        assert not is_kept(ask(gateway, key, prompt="another"))
        assert [is_kept(ask(gateway, key)) for _ in range(2)] == [False, True]


def test_an_answer_that_was_cut_short_is_not_kept(store: KeyStore) -> None:
    with KServeServer(*story()) as server, gateway_of(server, store) as gateway:
        key = store.create(NewKey("alice"))
        assert [is_kept(ask(gateway, key, max_tokens=5)) for _ in range(2)] == [False, False]


def test_any_answer_tells_which_release_answers_now(store: KeyStore) -> None:
    release = 1

    def play(_request: Any) -> list[Any]:
        counts: dict[str, Any] = {"num_output_tokens": 4, "num_input_tokens": 4, "release": release}
        return [response(TEXT, finish_reason="stop", final=True, **counts)]

    with KServeServer(play) as server, gateway_of(server, store) as gateway:
        key = store.create(NewKey("alice"))
        assert [is_kept(ask(gateway, key)) for _ in range(2)] == [False, True]
        release = 2
        assert not is_kept(ask(gateway, key, temperature=1))
        assert not is_kept(ask(gateway, key))


def test_kept_answers_need_callers_who_can_be_told_apart(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("0123456789abcdef\n0123456789abcdeg\n")
    with pytest.raises(SpecError, match="--keys"), KServeServer() as server:
        RunningGateway(server.url, token_file=tmp_path / "keys", rules=RULES)


@pytest.mark.parametrize(
    "script",
    [
        [response("Once", num_output_tokens=1, num_input_tokens=4), "[UNAVAILABLE reason=engine_failed] gone"],
        [response("x" * (1 << 20), num_output_tokens=1, num_input_tokens=4, finish_reason="stop", final=True)],
    ],
    ids=["broken off", "too long"],
)
def test_what_is_not_whole_or_too_long_is_not_kept(store: KeyStore, script: list[Any]) -> None:
    with KServeServer(*script) as server, gateway_of(server, store) as gateway:
        key = store.create(NewKey("alice"))
        for _ in range(2):
            ask(gateway, key, stream=True)
        assert len(server.requests) == 2


def test_a_kept_answer_costs_nothing_and_takes_nothing_of_limits(store: KeyStore, tmp_path: Path) -> None:
    with (
        LedgerStore(tmp_path / "ledger.sqlite") as rows,
        Ledger(rows, tmp_path / "journal") as ledger,
        KServeServer(*story()) as server,
        gateway_of(server, store, ledger=ledger) as gateway,
    ):
        key = store.create(NewKey("alice", tenant="acme"))
        answers = [ask(gateway, key) for _ in range(3)]
        assert [answer.headers["x-ratelimit-remaining-tokens"] for answer in answers] == ["92", "92", "92"]
        admin = store.create(NewKey("ops", role=Role.ADMIN))
        page = gateway.call("GET", "/metrics", Authorization=bearer(admin)).data.decode()
        for result, count in (("hit", 2), ("miss", 1)):
            assert re.search(rf'lookups_total\{{gen_ai_request_model="demo",result="{result}"\}} {count}\.0', page)
    with LedgerStore(tmp_path / "ledger.sqlite") as rows:
        sums = rows.usage(("model", "answered_by"), since_day=0, until_day=10**6)
    assert [(*each.group, each.requests, each.completion_tokens, each.cost_nano_usd) for each in sums] == [
        ("demo", "", 1, 4, 4 * 2000 + 4 * 8000),
        ("demo", "exact-cache", 2, 0, 0),
    ]


def test_a_redis_that_is_away_costs_nobody_an_answer(store: KeyStore) -> None:
    place = RedisPlace("redis://127.0.0.1:1", option="--cache")
    with (
        KServeServer(*story()) as server,
        RunningGateway(server.url, models=(MODEL,), keys=store, rules=RULES, cache_redis=place) as gateway,
    ):
        key = store.create(NewKey("alice"))
        assert [is_kept(ask(gateway, key)) for _ in range(3)] == [False] * 3
