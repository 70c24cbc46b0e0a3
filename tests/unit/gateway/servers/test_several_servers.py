# SPDX-License-Identifier: Apache-2.0
"""A gateway before several scripted servers: where requests go, what goes elsewhere, and what never does."""

import http.client
import json
import re
from typing import Any

import pytest
from gateway_before_scripts import counts, gateway_of, wait_until
from kserve_server import HANG, KServeServer, response, story
from running_gateway import RunningGateway

from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Endpoint
from gateway.answering import asked_by
from gateway.served_models import ServedModel
from gateway.servers import breaker, server_pool

TEXT = "Once upon ünd"
RESTARTING = "[UNAVAILABLE reason=engine_restarting] the engine starts"
FULL = "[UNAVAILABLE reason=queue_full retry_after_ms=2500] the queue is full"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "_LOOK_S", 0.05)
    monkeypatch.setattr(breaker, "_FIRST_S", 60.0)


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("said", [RESTARTING, FULL], ids=["restarting", "full"])
def test_what_one_server_refuses_another_one_answers(said: str, *, is_streaming: bool) -> None:
    with gateway_of([said], story()) as (gateway, servers):
        for _ in range(4):
            answer = gateway.complete(stream=is_streaming)
            assert answer.status == 200
            if is_streaming:
                *events, done = answer.events
                assert done == "[DONE]"
                assert "".join(event["choices"][0]["text"] for event in events) == TEXT
            else:
                assert answer.json["choices"][0]["text"] == TEXT
        assert counts(servers)[1] == 4
        assert counts(servers)[0] >= 1


def test_a_server_that_fails_again_and_again_is_left_alone_for_a_while() -> None:
    with gateway_of([RESTARTING], story()) as (gateway, servers):
        assert [gateway.complete().status for _ in range(12)] == [200] * 12
        assert counts(servers)[0] == 3


def test_a_server_without_room_is_not_taken_for_a_bad_one() -> None:
    with gateway_of([FULL], [FULL]) as (gateway, servers):
        assert [gateway.complete().status for _ in range(8)] == [429] * 8
        assert sum(counts(servers)) == 16


def test_what_has_begun_is_not_said_again() -> None:
    script = [response("Once", num_output_tokens=1, num_input_tokens=4), RESTARTING]
    with gateway_of(script, script) as (gateway, servers):
        *events, error = gateway.complete(stream=True).events
        assert [event["choices"][0]["text"] for event in events] == ["Once"]
        assert error["error"]["code"] == "unavailable"
        assert sum(counts(servers)) == 1


def test_a_request_that_is_wrong_is_wrong_everywhere() -> None:
    said = '[INVALID_ARG field="max_tokens" value=9] no'
    with gateway_of([said], [said]) as (gateway, servers):
        assert gateway.complete().status == 400
        assert sum(counts(servers)) == 1


def test_a_request_is_tried_twice_at_most_and_all_together_by_a_budget() -> None:
    with gateway_of([FULL], [FULL], [FULL]) as (gateway, servers):
        for _ in range(100):
            gateway.complete()
        assert sum(counts(servers)) <= 100 + 20 + 0.2 * 100


def metric(gateway: RunningGateway, name: str, server: KServeServer) -> float:
    page = gateway.call("GET", "/metrics").data.decode()
    [value] = re.findall(rf'^trireme_gateway_server_{name}{{server="{server.url}"}} (\S+)$', page, re.MULTILINE)
    return float(value)


def wait_for_ready(gateway: RunningGateway, server: KServeServer, *, is_ready: bool) -> None:
    server.is_ready = is_ready
    wait_until(lambda: metric(gateway, "is_taking_requests", server) == is_ready)


def test_a_server_that_is_not_ready_gets_nothing_until_it_is() -> None:
    with gateway_of(story(), story()) as (gateway, servers):
        wait_for_ready(gateway, servers[0], is_ready=False)
        for _ in range(6):
            assert gateway.complete().status == 200
        assert counts(servers) == [0, 6]
        wait_for_ready(gateway, servers[0], is_ready=True)
        wait_for_ready(gateway, servers[1], is_ready=False)
        for _ in range(3):
            assert gateway.complete().status == 200
        assert counts(servers) == [3, 6]


@pytest.mark.parametrize("begun", [[], [response("Once", num_output_tokens=1)]], ids=["before", "after"])
def test_a_caller_who_leaves_before_or_after_the_first_text_leaves_nothing_behind(begun: list[Any]) -> None:
    script = [*begun, HANG]
    with gateway_of(script, script) as (gateway, servers):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "stream": True}))
        wait_until(lambda: sum(counts(servers)) == 1)
        assert sum(metric(gateway, "running_requests", server) for server in servers) == 1
        if begun:
            connection.getresponse().readline()
        connection.close()
        wait_until(lambda: sum(metric(gateway, "running_requests", server) for server in servers) == 0)
        [asked] = [server for server in servers if server.requests]
        assert asked.was_cancelled.wait(5)


def test_where_none_is_ready_the_caller_is_told_when_to_try_again() -> None:
    with gateway_of(story(), story()) as (gateway, servers):
        for server in servers:
            server.is_ready = False
        wait_until(lambda: gateway.call("GET", "/health/ready").status == 503)
        answer = gateway.complete()
        assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-trireme-not-begun"] == "true"
        several = gateway.complete(prompt=["one", "two"])
        assert (several.status, "x-trireme-not-begun" in several.headers) == (503, False)  # one may have begun


def test_an_answer_that_a_server_was_asked_for_is_not_called_one_that_has_not_begun() -> None:
    with gateway_of([RESTARTING], [RESTARTING]) as (gateway, servers):
        answers = [gateway.complete() for _ in range(2)]
        assert [answer.status for answer in answers] == [503, 503]
        assert not any("x-trireme-not-begun" in answer.headers for answer in answers)
        assert sum(counts(servers)) >= 2


def test_a_model_is_asked_where_it_is_served() -> None:
    models = (ServedModel("chat", "ensemble", 100), ServedModel("code", "code_ensemble", 100))
    with KServeServer(*story()) as chat, KServeServer(*story()) as code:
        code.model = "code_ensemble"
        with RunningGateway(chat.url, code.url, models=models) as gateway:
            wait_until(lambda: gateway.call("GET", "/health/ready").status == 200)
            for name, number in (("chat", 3), ("code", 5)):
                assert [gateway.complete(model=name).status for _ in range(number)] == [200] * number
        assert counts([chat, code]) == [3, 5]


def test_requests_are_spread_and_a_conversation_stays() -> None:
    with gateway_of(story(), story(), story()) as (gateway, servers):
        for number in range(9):
            gateway.complete(prompt=f"{number} " * 400)
        assert counts(servers) == [3, 3, 3]
        before = counts(servers)
        messages: list[dict[str, str]] = []
        for turn in range(6):
            messages += [
                {"role": "user", "content": f"turn {turn}"},
                {"role": "assistant", "content": "ever more " * 99},
            ]
            gateway.chat(messages=messages[:-1])
        assert sorted(after - then for after, then in zip(counts(servers), before, strict=True)) == [0, 0, 6]


def test_a_conversation_that_its_caller_names_stays_however_short_it_is() -> None:
    with gateway_of(story(), story(), story()) as (gateway, servers):
        for number in range(5):
            gateway.chat(prompt_cache_key="mine")
            gateway.complete(prompt=f"{number} " * 400)
        [mine] = [server for server in servers if len([each for each in server.requests if has_messages(each)]) == 5]
        assert mine in servers


def has_messages(request: Any) -> bool:
    return any(tensor.name == "messages" for tensor in request.inputs)


def test_a_server_that_goes_away_costs_no_request_that_had_not_begun() -> None:
    with gateway_of(story(), story()) as (gateway, servers):
        assert gateway.complete().status == 200
        servers[0]._server.stop(grace=0).wait()
        assert [gateway.complete().status for _ in range(10)] == [200] * 10


def test_a_key_for_conversations_is_text() -> None:

    with pytest.raises(ApiError, match="prompt_cache_key"):
        asked_by(Endpoint.COMPLETIONS, {"prompt": "Hi", "prompt_cache_key": 7})
