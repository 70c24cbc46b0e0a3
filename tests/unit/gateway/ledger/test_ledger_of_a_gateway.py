# SPDX-License-Identifier: Apache-2.0
"""The ledger of a gateway before a scripted server: a row for each request that asked a model, as its caller saw it."""

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kserve_server import HANG, KServeServer, response, story
from running_gateway import RunningGateway
from sqlalchemy import select

from ensemble_configs.spec.gateway_spec import GatewaySpec, TenantSpec
from ensemble_configs.spec.price_spec import PriceSpec
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.database.tables import REQUESTS
from gateway.ledger.ledger import Ledger
from gateway.ledger.ledger_store import LedgerStore
from gateway.served_models import ServedModel

if TYPE_CHECKING:
    from postgres_here import PostgresServer

MODEL = ServedModel("demo", "ensemble", 100, price=PriceSpec(input=2, output=8))
FULL = "[UNAVAILABLE reason=queue_full retry_after_ms=2500] the queue is full"
WAIT_S = 10.0


@pytest.fixture
def ledger(store: LedgerStore, tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(store, tmp_path / "journal", load_s=0.05) as running:
        yield running


def rows_of(store: LedgerStore) -> list[Any]:
    with store._database.reading() as connection:
        return list(connection.execute(select(REQUESTS).order_by(REQUESTS.c.begun_at_s)).all())


def waited_for(store: LedgerStore, number: int) -> list[Any]:
    """Return the rows, once there are so many."""
    wait_until(lambda: len(rows_of(store)) >= number)
    rows = rows_of(store)
    assert len(rows) == number
    return rows


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_each_request_has_a_row_with_what_its_caller_was_told(
    store: LedgerStore, ledger: Ledger, tmp_path: Path
) -> None:
    with (
        KeyStore(tmp_path / "keys.sqlite") as keys,
        KServeServer(*story()) as server,
        RunningGateway(server.url, models=(MODEL,), keys=keys, ledger=ledger) as gateway,
    ):
        key = keys.create(NewKey("alice", tenant="acme"))
        whole = gateway.chat_with(key.text)
        begun_s = time.time()
        *events, usage, _ = gateway.chat_with(key.text, stream=True, stream_options={"include_usage": True}).events
        first, second = waited_for(store, 2)
        [found] = [row for row in (first, second) if row.ttft_s is not None]
        other = second if found is first else first
    for row in (first, second):
        assert (row.key_id, row.tenant, row.endpoint, row.model) == (key.id, "acme", "/v1/chat/completions", "demo")
        assert (row.prompt_tokens, row.completion_tokens, row.finish) == (4, 4, "length")
        assert row.cost_nano_usd == 4 * 2000 + 4 * 8000
    assert whole.json["id"] == f"chatcmpl-{other.id}"
    assert {event["id"] for event in events} == {f"chatcmpl-{found.id}"}
    assert usage["usage"]["total_tokens"] == found.prompt_tokens + found.completion_tokens
    assert begun_s - 1 < found.begun_at_s < time.time()
    assert found.day == int(found.begun_at_s // 86_400)
    assert 0 < found.ttft_s <= found.duration_s < WAIT_S


def test_the_budget_of_a_tenant_is_of_all_its_keys_and_needs_a_ledger(
    store: LedgerStore, ledger: Ledger, tmp_path: Path
) -> None:
    cost = 4 * 2000 + 4 * 8000
    estimate = 16 * 8000  # tokens of a text that says nothing of its length, and none of so short a prompt
    rules = GatewaySpec(tenants=(TenantSpec(name="acme", usd_per_day=(2 * cost + estimate - 1) / 1e9),))
    with KeyStore(tmp_path / "keys.sqlite") as keys, KServeServer(*story()) as server:
        held = [keys.create(NewKey(name, tenant="acme")) for name in ("alice", "bob")]

        def ask(gateway: RunningGateway, number: int) -> Any:
            headers = {"Authorization": f"Bearer {held[number % 2].text}"}
            return gateway.call("POST", "/v1/completions", {"prompt": "Hi"}, **headers)

        with RunningGateway(server.url, models=(MODEL,), keys=keys, ledger=ledger, rules=rules) as gateway:
            assert [ask(gateway, number).status for number in range(3)] == [200, 200, 429]
            assert "tenant acme may spend" in ask(gateway, 0).json["error"]["message"]
        waited_for(store, 2)
        # What was spent is known to the next process, too.
        with RunningGateway(server.url, models=(MODEL,), keys=keys, ledger=ledger, rules=rules) as gateway:
            refused = ask(gateway, 1)
            assert (refused.status, refused.json["error"]["code"]) == (429, "insufficient_quota")
        with RunningGateway(server.url, models=(MODEL,), keys=keys, rules=rules) as gateway:
            assert ask(gateway, 0).status == 503
            assert "keeps no ledger" in ask(gateway, 0).json["error"]["message"]


def test_a_release_that_answers_is_named(store: LedgerStore, ledger: Ledger) -> None:
    def play(request: Any) -> list[Any]:
        asked = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
        assert asked["return_release"] == b"\x01"
        return [response("Hi", num_output_tokens=1, num_input_tokens=2, finish_reason="stop", release=7, final=True)]

    with KServeServer(play) as server, RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway:
        assert gateway.complete().status == 200
        [row] = waited_for(store, 1)
    assert (row.release, row.finish) == (7, "stop")


def test_a_request_that_the_server_refuses_has_a_row_that_costs_nothing(store: LedgerStore, ledger: Ledger) -> None:
    with KServeServer(FULL) as server, RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway:
        assert gateway.complete().status == 429
        assert gateway.complete(stream=True).status == 429
        assert gateway.complete(temperature=-1).status == 400  # it never asked a model
        rows = waited_for(store, 2)
    assert [(row.finish, row.cost_nano_usd, row.prompt_tokens) for row in rows] == [("overloaded", 0, 0)] * 2


def test_who_leaves_pays_for_what_was_generated(store: LedgerStore, ledger: Ledger) -> None:
    script = (*story()[:2], HANG)
    with KServeServer(*script) as server, RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "stream": True}))
        answer = connection.getresponse()
        for _ in range(3):  # an event, an empty line, and the next event
            answer.readline()
        connection.close()
        [row] = waited_for(store, 1)
    assert (row.finish, row.prompt_tokens, row.completion_tokens) == ("client_gone", 4, 3)
    assert row.cost_nano_usd == 4 * 2000 + 3 * 8000


def test_a_stream_that_breaks_off_keeps_its_tokens(store: LedgerStore, ledger: Ledger) -> None:
    script = (story()[0], "[UNAVAILABLE reason=engine_restarting] no")
    with KServeServer(*script) as server, RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway:
        gateway.complete(stream=True)
        [row] = waited_for(store, 1)
    assert (row.finish, row.prompt_tokens, row.completion_tokens) == ("unavailable", 4, 1)


def test_of_several_prompts_those_that_were_answered_cost_though_another_one_fails(
    store: LedgerStore, ledger: Ledger
) -> None:
    has_answered = threading.Event()

    def play(request: Any) -> Iterator[Any]:
        texts = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
        if texts["text_input"].endswith(b"bad"):
            yield from (has_answered, 0.3, FULL)
        else:
            yield from story()
            has_answered.set()

    with KServeServer(play) as server, RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway:
        assert gateway.complete(prompt=["good", "bad"]).status == 429
        [row] = waited_for(store, 1)
    assert (row.finish, row.prompt_tokens, row.completion_tokens) == ("overloaded", 4, 4)


def test_the_row_is_on_the_disk_before_the_caller_has_the_end(tmp_path: Path) -> None:
    """Nobody loads here: what the journal has is what a kill at the end of an answer would leave."""
    with LedgerStore(tmp_path / "ledger.sqlite") as store:
        ledger = Ledger(store, tmp_path / "journal")
        with KServeServer(*story()) as server, RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway:
            for number, is_streaming in enumerate((True, False)):
                gateway.complete(stream=is_streaming)
                [file] = (tmp_path / "journal").glob("*.jsonl")
                lines = [json.loads(line) for line in file.read_bytes().splitlines()]
                assert [line.get("finish", "") for line in lines] == ["", "length"] * (number + 1)


def test_the_sums_are_those_of_the_metrics(store: LedgerStore, ledger: Ledger) -> None:
    with KServeServer(*story()) as server, RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway:
        for number in range(12):
            gateway.complete(stream=number % 2 == 0, n=1, prompt=["a", "b"] if number % 3 else "a")
        page = gateway.call("GET", "/metrics").data.decode()
        waited_for(store, 12)
    [found] = store.usage([], since_day=0, until_day=10**6)
    label = r'gen_ai_operation_name="text_completion",gen_ai_request_model="demo",gen_ai_token_type="{}"'

    def metric(name: str, labels: str) -> float:
        [value] = re.findall(rf"^{name}{{{labels}}} (\S+)$", page, re.MULTILINE)
        return float(value)

    assert metric("gen_ai_client_token_usage_sum", label.format("input")) == found.prompt_tokens == 4 * 20
    assert metric("gen_ai_client_token_usage_sum", label.format("output")) == found.completion_tokens == 4 * 20
    assert metric("gen_ai_client_token_usage_count", label.format("input")) == found.requests
    assert "trireme_gateway_ledger_waiting_bytes " in page


@pytest.mark.slow
def test_requests_do_not_wait_for_a_database_that_is_away_and_none_is_lost(
    postgres: "PostgresServer", tmp_path: Path
) -> None:
    from trireme.base.store_place import PostgresPlace  # for this kind alone

    place = PostgresPlace(postgres.url(postgres.new_database()), "--ledger")
    with (
        LedgerStore(place) as store,
        Ledger(store, tmp_path / "journal", load_s=0.05) as ledger,
        KServeServer(*story()) as server,
        RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway,
    ):
        gateway.complete()
        waited_for(store, 1)
        postgres.kill()
        try:
            for _ in range(20):
                assert gateway.complete(stream=True).status == 200
        finally:
            postgres.start()
        waited_for(store, 21)


def test_a_journal_that_cannot_be_written_costs_no_request(
    store: LedgerStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal").write_text("a file in the place of the folder")
    with (
        Ledger(store, tmp_path / "journal", load_s=0.05) as ledger,
        KServeServer(*story()) as server,
        RunningGateway(server.url, models=(MODEL,), ledger=ledger) as gateway,
    ):
        assert gateway.complete().status == 200
        [row] = waited_for(store, 1)
    assert row.finish == "length"
    assert "the journal of the ledger cannot be written" in caplog.text
