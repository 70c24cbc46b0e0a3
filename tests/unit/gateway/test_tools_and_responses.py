# SPDX-License-Identifier: Apache-2.0
"""Tools, reasoning and responses of a gateway before a scripted server, by OpenAI's official client."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kserve_server import KServeServer, Step, response
from running_gateway import RunningGateway

from clients.openai_api.tool_calls.reader_choice import Style
from gateway.served_models import ServedModel

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionToolParam
    from openai.types.responses import FunctionToolParam

HERMES = ServedModel("demo", "ensemble", 100, tool_style=Style.HERMES, is_reasoning=True)
WEATHER: "ChatCompletionToolParam" = {
    "type": "function",
    "function": {"name": "weather", "description": "of a town", "parameters": {"type": "object"}},
}
RAIN = "Will it rain?"
THOUGHT = "<think>\nThe town is Rome.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'


def said(text: str, *, reason: str = "stop", size: int = 5) -> list[Step]:
    """Return the responses of a model that says a text, in pieces that know nothing of marks."""
    parts = [text[begin : begin + size] for begin in range(0, len(text), size)]
    steps = [response(part, num_output_tokens=1, num_input_tokens=7) for part in parts[:-1]]
    return [*steps, response(parts[-1], num_output_tokens=1, num_input_tokens=7, finish_reason=reason, final=True)]


class Site:
    """A client before a gateway before a model that says one text."""

    def __init__(self, text: str, *, reason: str = "stop", model: ServedModel = HERMES) -> None:
        self.server = KServeServer(*said(text, reason=reason))
        self._model = model

    def __enter__(self) -> "OpenAI":
        from openai import OpenAI

        self.server.__enter__()
        self._gateway = RunningGateway(self.server.url, models=(self._model,))
        self._gateway.__enter__()
        self._client = OpenAI(base_url=self._gateway.url, api_key="none", max_retries=0)
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._gateway.__exit__()
        self.server.__exit__()


def chat(client: "OpenAI", **fields: Any) -> Any:
    return client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": RAIN}], tools=[WEATHER], **fields
    )


def test_a_call_is_a_call_and_what_was_thought_is_apart() -> None:
    with Site(THOUGHT + "Let me see." + CALL) as client:
        [choice] = chat(client).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.reasoning_content == "The town is Rome."
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function", "weather", {"town": "Rome"},
    )  # fmt: skip


def test_a_message_that_only_calls_has_no_content() -> None:
    with Site(CALL + "\n" + CALL) as client:
        [choice] = chat(client).choices
    assert choice.message.content is None
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_streamed_calls_are_put_together_by_the_client() -> None:
    with Site(THOUGHT + CALL) as client, client.chat.completions.stream(
        model="demo", messages=[{"role": "user", "content": RAIN}], tools=[WEATHER]
    ) as stream:  # fmt: skip
        names = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in names
    [call] = answer.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"town": "Rome"})
    assert answer.choices[0].finish_reason == "tool_calls"


def test_no_more_calls_than_one_where_the_caller_wants_one() -> None:
    with Site(CALL + CALL) as client:
        [choice] = chat(client, parallel_tool_calls=False).choices
    assert len(choice.message.tool_calls) == 1


def test_a_call_of_a_tool_that_was_not_offered_stays_text() -> None:
    with Site(CALL.replace("weather", "launch")) as client:
        [choice] = chat(client).choices
    assert choice.message.tool_calls is None
    assert "launch" in choice.message.content
    assert choice.finish_reason == "stop"


def test_without_tools_marks_of_calls_are_text() -> None:
    with Site(CALL) as client:
        answer = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": RAIN}])
    assert answer.choices[0].message.content == CALL


def test_the_server_is_told_of_the_tools_and_of_what_came_of_calls() -> None:
    site = Site("No.")
    with site as client:
        client.chat.completions.create(
            model="demo",
            tools=[WEATHER],
            messages=[
                {"role": "user", "content": RAIN},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"town": "Rome"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "dry"},
            ],
        )
    message = site.server.requests[-1]
    sent = dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))
    assert json.loads(sent["tools"][4:]) == [WEATHER]
    _, assistant, result = json.loads(sent["messages"][4:])
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"town": "Rome"}
    assert result == {"role": "tool", "content": "dry", "tool_call_id": "c1"}


def test_what_the_official_client_keeps_in_a_parsed_answer_may_come_back(gateway: RunningGateway) -> None:
    call = {"name": "weather", "arguments": "{}", "parsed_arguments": {"town": "Rome"}}
    messages = [
        {"role": "user", "content": RAIN},
        {"role": "assistant", "content": "{}", "parsed": {"town": "Rome"}},
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "dry"},
    ]
    answer = gateway.call("POST", "/v1/chat/completions", {"messages": messages, "tools": [WEATHER]})
    assert answer.status == 200, answer.data
    items = [
        {"role": "assistant", "content": [{"type": "output_text", "text": "{}", "parsed": {"town": "Rome"}}]},
        {"type": "function_call", "call_id": "c1", **call},
        {"type": "function_call_output", "call_id": "c1", "output": "dry"},
    ]
    assert gateway.call("POST", "/v1/responses", {"input": items, "tools": [FLAT]}).status == 200


def test_tools_are_refused_where_the_model_has_no_style_that_is_read() -> None:
    import openai

    plain = ServedModel("demo", "ensemble")
    with Site("No.", model=plain) as client, pytest.raises(openai.BadRequestError) as refused:
        chat(client)
    assert refused.value.param == "tools"


FLAT: "FunctionToolParam" = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


def test_a_response_is_what_the_client_s_own_types_say() -> None:
    from openai.types.responses import Response

    with Site(THOUGHT + "Yes. " + CALL) as client:
        raw = client.responses.with_raw_response.create(model="demo", input=RAIN, tools=[FLAT], instructions="Brief.")
        answer = Response.model_validate(json.loads(raw.text), strict=True)
    assert (answer.status, answer.instructions, answer.output_text) == ("completed", "Brief.", "Yes. ")
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    call = answer.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"town": "Rome"})
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 7


def test_the_events_of_a_response_make_the_response() -> None:
    with (
        Site(THOUGHT + "Yes." + CALL) as client,
        client.responses.stream(model="demo", input=RAIN, tools=[FLAT]) as stream,
    ):
        events = list(stream)
        answer = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text == "Yes."
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]


def test_a_response_that_was_cut_is_incomplete() -> None:
    with Site("Yes, and", reason="length") as client:
        answer = client.responses.create(model="demo", input=RAIN, max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_a_conversation_goes_on_with_what_was_answered() -> None:
    site = Site("No.")
    with site as client:
        first = client.responses.create(model="demo", input=RAIN)
        items: list[Any] = [{"role": "user", "content": RAIN}, *(item.model_dump() for item in first.output)]
        items += [
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "dry"},
        ]
        client.responses.create(model="demo", input=items, tools=[FLAT])
    message = site.server.requests[-1]
    sent = dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))
    assert [one["role"] for one in json.loads(sent["messages"][4:])] == ["user", "assistant", "tool"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": [{"type": "input_image"}]}, "input[0].type"),
    ({"input": [{"role": "boss", "content": "Hi"}]}, "input[0].role"),
    ({"store": True}, "store"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [FLAT, FLAT]}, "tools[1].function.name"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with KServeServer(*said("No.")) as server, RunningGateway(server.url, models=(HERMES,)) as running:
        yield running


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_what_a_response_cannot_do_is_named(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    answer = gateway.call("POST", "/v1/responses", {"input": "Hi", **fields})
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_a_stream_of_a_response_that_breaks_ends_as_failed() -> None:
    steps = [response("Yes", num_output_tokens=1), "[UNAVAILABLE reason=engine_died] the engine has died"]
    with KServeServer(*steps) as server, RunningGateway(server.url, models=(HERMES,)) as gateway:
        answer = gateway.call("POST", "/v1/responses", {"input": "Hi", "stream": True})
    names = [line.removeprefix("event: ") for line in answer.data.decode().split("\n") if line.startswith("event: ")]
    assert names[-2:] == ["error", "response.failed"]
