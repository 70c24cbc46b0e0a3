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


def as_any(tool: Any) -> Any:
    return tool


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """Return the choice as chats have it."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


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
    {"tools": [WEATHER], "tool_choice": {"type": "custom", "name": "weather"}},
    {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}},
    {"tools": [WEATHER], "tool_choice": allowed("none", "weather")},
    {"tools": [WEATHER], "tool_choice": allowed("auto")},
    {"tools": [WEATHER], "tool_choice": allowed("auto", "weather", "clock")},
    {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
    {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": "weather"}},
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


def test_of_allowed_tools_one_is_called_and_the_model_knows_of_all(
    gateway: RunningGateway, server: KServeServer
) -> None:
    answer = gateway.chat(tools=[CLOCK, WEATHER], tool_choice=allowed("required", "weather")).json
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2
    assert json.loads(sent(server)["tools"]) == [CLOCK, WEATHER]
    guide = guide_of(server)
    assert [tag["content"]["json_schema"] for tag in guide["tags"]] == [TOWN]
    assert (guide["at_least_one"], guide["stop_after_first"]) == (True, False)


def test_of_allowed_tools_that_need_not_be_called_the_model_is_told_of_these_alone(
    gateway: RunningGateway, server: KServeServer
) -> None:
    answer = gateway.chat(tools=[WEATHER, CLOCK], tool_choice=allowed("auto", "clock")).json
    assert json.loads(sent(server)["tools"]) == [CLOCK]
    assert not sent(server).keys() & set(GUIDE)
    [choice] = answer["choices"]
    assert "tool_calls" not in choice["message"]  # the model called the other one
    assert choice["message"]["content"] == CALL + "\n" + CALL


def test_a_response_has_allowed_tools_beside_their_mode(gateway: RunningGateway, server: KServeServer) -> None:
    tools = [{"type": "function", **as_any(each)["function"]} for each in (WEATHER, CLOCK)]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    answer = gateway.call("POST", "/v1/responses", {"input": "Hi", "tools": tools, "tool_choice": choice}).json
    assert answer["tool_choice"] == choice
    assert [item["type"] for item in answer["output"]] == ["function_call", "function_call"]
    assert len(guide_of(server)["tags"]) == 1


STRICT: dict[str, Any] = {"type": "function", "function": {**as_any(WEATHER)["function"], "strict": True}}
GUIDING = MODEL._replace(guides_calls=True)


def test_calls_of_a_strict_function_fit_its_schema_once_they_have_begun(server: KServeServer) -> None:
    with RunningGateway(server.url, models=(GUIDING,)) as gateway:
        answer = gateway.chat(tools=[STRICT, CLOCK], parallel_tool_calls=False).json
        assert answer["choices"][0]["message"]["tool_calls"]
        guide = guide_of(server)
        assert (guide["type"], guide["triggers"], guide["at_least_one"]) == ("triggered_tags", ["<tool_call>"], False)
        anything = {"type": "object", "additionalProperties": True}
        assert [tag["content"]["json_schema"] for tag in guide["tags"]] == [TOWN, anything]
        assert guide["stop_after_first"]
        gateway.chat(tools=[STRICT])
        assert not guide_of(server)["stop_after_first"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [WEATHER]},
        {"tools": [STRICT], "min_tokens": 3},
        {"tools": [STRICT], "ignore_eos": True},
        {"tools": [STRICT], "tool_choice": "none"},
        {"tools": [STRICT, CLOCK], "tool_choice": allowed("auto", "clock")},
    ],
    ids=lambda value: str(value)[-40:],
)
def test_what_cannot_be_guided_or_need_not_is_not(server: KServeServer, fields: dict[str, Any]) -> None:
    with RunningGateway(server.url, models=(GUIDING,)) as gateway:
        assert gateway.chat(**fields).status == 200
    assert not sent(server).keys() & set(GUIDE)


def test_a_schema_of_the_answer_is_its_guide_beside_strict_functions(server: KServeServer) -> None:
    with RunningGateway(server.url, models=(GUIDING,)) as gateway:
        assert gateway.chat(tools=[STRICT], response_format={"type": "json_object"}).status == 200
    assert sent(server)["guided_decoding_guide_type"] != "structural_tag"


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_an_engine_that_takes_no_guides_answers_strict_functions_unguided(*, is_streaming: bool) -> None:
    refusal = "[INVALID_ARG field=guided_decoding_guide_type provider=openvino] it needs a tokenizer's file"

    def play(request: Any) -> list[Any]:
        return [refusal if "guided_decoding_guide" in {tensor.name for tensor in request.inputs} else said(CALL)]

    with KServeServer(play) as server, RunningGateway(server.url, models=(GUIDING,)) as gateway:
        answer = gateway.chat(tools=[STRICT], stream=is_streaming)
        assert answer.status == 200
        assert b"weather" in answer.data
        assert len(server.requests) == 2
        assert not sent(server).keys() & set(GUIDE)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "tools": [STRICT]}),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", **STRICT["function"]}]}),
        (
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 5,
                "tools": [{"name": "weather", "input_schema": TOWN, "strict": True}],
            },
        ),
    ],
)
def test_a_schema_that_does_not_compile_is_told(path: str, fields: dict[str, Any]) -> None:
    refusal = "[INVALID_ARG field=guided_decoding_guide] the guide is no structural_tag that compiles: it is too odd"
    with KServeServer(refusal) as server, RunningGateway(server.url, models=(GUIDING,)) as gateway:
        answer = gateway.call("POST", path, fields)
        assert len(server.requests) == 1
    assert answer.status == 400
    assert answer.json["error"].get("param", "tools") == "tools"
    assert answer.json["error"]["message"].startswith("tools: the guide is no structural_tag that compiles")
