# SPDX-License-Identifier: Apache-2.0
"""A stream whose server fails in the middle: it goes on at another one, and its caller sees one answer."""

import re
import struct
from typing import Any

import pytest
from gateway_before_scripts import counts, gateway_of
from kserve_server import DIE, HANG, response
from running_gateway import Answer, RunningGateway

from gateway.gateway import Limits
from gateway.servers import breaker, routed_request, server_pool

TEXT = "Once upon ünd"
LOST = "[UNAVAILABLE reason=engine_failed] the engine is gone"
FULL = "[UNAVAILABLE reason=queue_full retry_after_ms=2500] the queue is full"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "_LOOK_S", 0.05)
    monkeypatch.setattr(breaker, "_FIRST_S", 60.0)
    monkeypatch.setattr(routed_request, "_LONGEST_GAP_S", 2.0)


def of_both(first: list[Any], then: list[Any]) -> list[Any]:
    """Return a script: what a server says to a request for the whole, and what to one that goes on."""
    return [lambda request: then if continued_ids(request) else first]


def continued_ids(request: Any) -> tuple[int, ...]:
    for index, tensor in enumerate(request.inputs):
        if tensor.name == "continued_ids":
            data = request.raw_input_contents[index]
            return struct.unpack(f"<{len(data) // 4}i", data)
    return ()


def first(release: int = 1, *, said: object = LOST) -> list[Any]:
    return [
        response("On", num_input_tokens=4, token_ids=[7], release=release),
        response("ce u", token_ids=[8, 9]),
        said,
    ]


def then(text: str = "Once upon", release: int = 1) -> list[Any]:
    return [
        response(text, num_input_tokens=4, token_ids=[7, 8, 9, 10], release=release),
        response(" ünd", token_ids=[11], finish_reason="length", final=True),
    ]


def texts(answer: Answer) -> list[str]:
    """Return the texts of the events; that which says why the answer ended has none."""
    events = [event for event in answer.events if event != "[DONE]"]
    said = [choice["text"] for event in events for choice in event.get("choices", ())]
    return [text for text in said if text]


def num_moves(gateway: RunningGateway) -> float:
    page = gateway.call("GET", "/metrics").data.decode()
    [value] = re.findall(r"^trireme_gateway_stream_gap_seconds_count (\S+)$", page, re.MULTILINE)
    return float(value)


def test_a_stream_goes_on_where_it_was_and_nothing_is_said_twice() -> None:
    script = of_both(first(), then())
    with gateway_of(script, script) as (gateway, servers):
        answer = gateway.complete(stream=True, stream_options={"include_usage": True})
        assert texts(answer) == ["On", "ce u", "pon", " ünd"]
        assert answer.events[-2]["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
        assert counts(servers) == [1, 1]
        assert sorted(continued_ids(server.requests[0]) for server in servers) == [(), (7, 8, 9)]
        assert num_moves(gateway) == 1


def test_a_stream_asks_for_the_ids_of_its_tokens_and_not_for_their_number_too() -> None:
    with gateway_of(then(), then()) as (gateway, servers):
        answer = gateway.complete(stream=True, stream_options={"include_usage": True})
    [request] = [request for server in servers for request in server.requests]
    names = {tensor.name for tensor in request.inputs}
    assert "return_token_ids" in names
    assert "return_num_output_tokens" not in names
    assert answer.events[-2]["usage"]["completion_tokens"] == 5


def test_a_stream_whose_server_goes_away_goes_on() -> None:
    script = of_both(first(said=DIE), then())
    with gateway_of(script, script) as (gateway, servers):
        assert "".join(texts(gateway.complete(stream=True))) == TEXT
        assert counts(servers) == [1, 1]


def test_a_stream_whose_server_falls_silent_goes_on() -> None:
    script = of_both(first(said=HANG), then())
    with gateway_of(script, script, limits=Limits(exit_timeout_s=2.0, silence_s=0.3)) as (gateway, servers):
        assert "".join(texts(gateway.complete(stream=True))) == TEXT
        [silent] = [server for server in servers if not continued_ids(server.requests[0])]
        assert silent.was_cancelled.wait(5)


def test_an_answer_that_has_its_end_needs_no_other_server() -> None:
    script = [response("Once", num_output_tokens=1, token_ids=[7], finish_reason="stop"), LOST]
    with gateway_of(script, script) as (gateway, servers):
        answer = gateway.complete(stream=True)
        assert (texts(answer), answer.events[-1]) == (["Once"], "[DONE]")
        assert sum(counts(servers)) == 1


@pytest.mark.parametrize(
    "script",
    [
        of_both(first(), then(text="Once more")),
        of_both(first(), then(release=2)),
        of_both(first(), ['[INVALID_ARG field="continued_ids"] no']),
        of_both(first(), [FULL]),
    ],
    ids=["another text", "another release", "refused", "no room for long"],
)
def test_what_cannot_go_on_ends_with_the_error_that_broke_it(script: list[Any]) -> None:
    with gateway_of(script, script) as (gateway, _):
        *events, error = gateway.complete(stream=True).events
        assert [event["choices"][0]["text"] for event in events] == ["On", "ce u"]
        assert error["error"]["code"] == "unavailable"
        assert num_moves(gateway) == 0


def test_a_stream_waits_for_a_server_that_has_no_room_at_the_moment() -> None:
    tried: list[int] = []

    def play(request: Any) -> list[Any]:
        if not continued_ids(request):
            return first()
        tried.append(1)
        return [FULL] if len(tried) < 4 else then()

    with gateway_of([play], [play]) as (gateway, _):
        answer = gateway.complete(stream=True)
        assert "".join(texts(answer)) == TEXT
        assert len(tried) == 4


@pytest.mark.parametrize(
    ("body", "script"),
    [
        ({"n": 2}, of_both(first(), then())),
        ({}, [response("Once", num_output_tokens=1), LOST]),
        ({}, of_both(first(said="[CANCELLED] by its caller"), then())),
    ],
    ids=["several choices", "ids unknown", "cancelled"],
)
def test_what_does_not_move(body: dict[str, object], script: list[Any]) -> None:
    with gateway_of(script, script) as (gateway, servers):
        assert "error" in gateway.complete(stream=True, **body).events[-1]
        assert sum(counts(servers)) == 1


def test_a_stream_does_not_move_for_ever() -> None:
    def play(request: Any) -> list[Any]:
        token_ids = [*continued_ids(request), 7]
        return [response("a" * len(token_ids), num_output_tokens=len(token_ids), token_ids=token_ids), LOST]

    with gateway_of([play], [play]) as (gateway, servers):
        answer = gateway.complete(stream=True, max_tokens=90)
        *events, error = answer.events
        assert "".join(event["choices"][0]["text"] for event in events) == "a" * (1 + routed_request._MOST_MOVES)
        assert error["error"]["code"] == "unavailable"
        assert sum(counts(servers)) == 1 + routed_request._MOST_MOVES
