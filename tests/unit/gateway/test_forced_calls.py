# SPDX-License-Identifier: Apache-2.0
"""`tool_choice` of `required` or of one tool: what the server is asked for, and what is refused by name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kserve_server import KServeServer, response
from running_gateway import RunningGateway

from clients.openai_api.tool_calls.reader_choice import Style
from gateway.served_models import ServedModel

MODEL = ServedModel("demo", "ensemble", 100, tool_style=Style.HERMES)
TOWN = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": TOWN}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'


def said(text: str) -> Any:
    return response(text, num_output_tokens=1, num_input_tokens=7, finish_reason="stop", final=True)


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(said(CALL + "\n" + CALL)) as running:
        yield running


@pytest.fixture
def gateway(server: KServeServer) -> Iterator[RunningGateway]:
    with RunningGateway(server.url, models=(MODEL,)) as running:
        yield running


def sent(server: KServeServer) -> dict[str, Any]:
    """Return the texts that the server was sent, by their tensors."""
    message = server.requests[-1]
    pairs = zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True)
    return {name: data[4:].decode() for name, data in pairs if name in {"tools", *GUIDE}}


GUIDE = ("guided_decoding_guide_type", "guided_decoding_guide")


def guide_of(server: KServeServer) -> dict[str, Any]:
    found = sent(server)
    assert found["guided_decoding_guide_type"] == "structural_tag"
    guide: dict[str, Any] = json.loads(found["guided_decoding_guide"])["format"]
    return guide


def test_required_calls_any_of_the_tools_and_several_times(gateway: RunningGateway, server: KServeServer) -> None:
    answer = gateway.chat(tools=[WEATHER, CLOCK], tool_choice="required").json
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    guide = guide_of(server)
    assert [tag["content"]["json_schema"] for tag in guide["tags"]] == [TOWN, {"type": "object", "properties": {}}]
    assert (guide["at_least_one"], guide["stop_after_first"]) == (True, False)


def test_one_call_where_the_caller_wants_one(gateway: RunningGateway, server: KServeServer) -> None:
    gateway.chat(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert guide_of(server)["stop_after_first"]


def test_a_named_tool_is_called_once_and_the_model_knows_of_the_others(
    gateway: RunningGateway, server: KServeServer
) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    answer = gateway.chat(tools=[WEATHER, CLOCK], tool_choice=named).json
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert json.loads(sent(server)["tools"]) == [WEATHER, CLOCK]
    guide = guide_of(server)
    assert len(guide["tags"]) == 1
    assert guide["stop_after_first"]


def test_a_response_is_made_to_call_alike(gateway: RunningGateway, server: KServeServer) -> None:
    body = {"input": "Hi", "tools": [{"type": "function", **WEATHER["function"]}]}  # type: ignore[dict-item]
    choice = {"type": "function", "name": "weather"}
    answer = gateway.call("POST", "/v1/responses", {**body, "tool_choice": choice}).json
    assert answer["tool_choice"] == choice
    assert [item["type"] for item in answer["output"]][:1] == ["function_call"]
    assert guide_of(server)["stop_after_first"]


def test_without_a_choice_nothing_is_guided(gateway: RunningGateway, server: KServeServer) -> None:
    gateway.chat(tools=[WEATHER], tool_choice="auto")
    assert not sent(server).keys() & set(GUIDE)


def test_calls_stream_as_they_are_written(gateway: RunningGateway) -> None:
    events = gateway.chat(tools=[WEATHER], tool_choice="required", stream=True).events
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert any("tool_calls" in delta for delta in deltas)
    assert not any(delta.get("content") for delta in deltas)


WRONG: list[dict[str, Any]] = [
    {"tool_choice": "required"},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "clock"}}},
    {"tools": [WEATHER], "tool_choice": {"type": "function"}},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": "weather"}},
    {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}},
    {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda value: str(value)[-40:])
def test_a_choice_that_is_none_is_named(gateway: RunningGateway, server: KServeServer, fields: dict[str, Any]) -> None:
    answer = gateway.chat(**fields)
    assert (answer.status, answer.json["error"]["param"]) == (400, "tool_choice")
    assert server.requests == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
def test_an_engine_that_cannot_guide_refuses_by_the_caller_s_name(
    path: str, fields: dict[str, Any], param: str
) -> None:
    refusal = "[INVALID_ARG field=guided_decoding_guide_type provider=simulated] it has no model, which this needs"
    body = {"input": "Hi"} if "responses" in path else {"messages": [{"role": "user", "content": "Hi"}]}
    with KServeServer(refusal) as server, RunningGateway(server.url, models=(MODEL,)) as gateway:
        answer = gateway.call("POST", path, {**body, **fields})
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert answer.json["error"]["message"].startswith(f"{param}: it has no model")
