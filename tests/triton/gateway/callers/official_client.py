# SPDX-License-Identifier: Apache-2.0
"""OpenAI's client for Python as its users have it: this program runs with its major versions 2 and 3."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field
from scenarios import Site, run_all

CAPITAL: Any = [{"role": "user", "content": "What is the capital of Italy?"}]
ROME = "The capital of Italy is Rome."
CALL = '<tool_call>\n{"name": "Weather", "arguments": {"town": "Rome"}}\n</tool_call>'
ASKED_TO_CALL: Any = [{"role": "user", "content": CALL}]
LONG: dict[str, Any] = {"model": "slow", "prompt": "Hi", "max_tokens": 1500, "temperature": 0}  # half a minute
# A model as small as this one would begin an object with white space for ever; the penalty ends it.
GUIDED: dict[str, Any] = {"model": "demo", "temperature": 0}
RETRIES = 2
FREED_S = 10.0


class City(BaseModel):
    """A city, in letters."""

    name: str = Field(pattern="^[A-Z][a-z]{2,9}$")
    inhabitants: int = Field(ge=1, le=9)


class Weather(BaseModel):
    """The weather of a town."""

    town: str


class Forecast(BaseModel):
    """The forecast of a town."""

    town: Literal["Rome", "Paris", "Lima"]
    days: int = Field(ge=1, le=9)


def client_of(site: Site, **options: Any) -> OpenAI:
    return OpenAI(**{"base_url": site.url, "api_key": site.key, "max_retries": 0, **options})


def counting(**options: Any) -> tuple[OpenAI, list[str]]:
    """Return a client, and what it says of each of its requests: how many were before it."""
    tries: list[str] = []

    def note(request: Any) -> None:
        tries.append(request.headers["x-stainless-retry-count"])

    http_client: Any = openai.DefaultHttpxClient(event_hooks={"request": [note]})
    return OpenAI(http_client=http_client, **options), tries


def failing(error: type[Exception], ask: Callable[[], object]) -> Any:
    """Return the error that a call raises."""
    try:
        ask()
    except error as exc:
        return exc
    raise AssertionError(f"no {error.__name__}")


def a_streamed_chat_is_the_whole_one(site: Site) -> None:
    with client_of(site) as client:
        whole = client.chat.completions.create(model="demo", messages=CAPITAL, temperature=0)
        with client.chat.completions.create(
            model="demo", messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
        ) as stream:
            events = list(stream)
    texts = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert (whole.choices[0].message.content or "").strip() == "".join(texts).strip() == ROME
    assert len(texts) > 1
    assert whole.usage
    assert events[-1].usage == whole.usage


async def the_same_without_waiting(site: Site) -> None:
    async with AsyncOpenAI(base_url=site.url, api_key=site.key, max_retries=0) as client:
        stream = await client.chat.completions.create(model="demo", messages=CAPITAL, temperature=0, stream=True)
        text = "".join([event.choices[0].delta.content or "" async for event in stream])
        assert text.strip() == ROME
        async with client.chat.completions.stream(model="demo", messages=CAPITAL, temperature=0) as gathered:
            kinds = [event.type async for event in gathered]
            final = await gathered.get_final_completion()
        assert "content.delta" in kinds
        assert (final.choices[0].message.content or "").strip() == ROME
        response = await client.responses.create(model="demo", input="What is the capital of Italy?", temperature=0)
        assert response.output_text.strip() == ROME


def raw_responses_have_their_headers(site: Site) -> None:
    with client_of(site, api_key=site.narrow_key) as client:
        raw = client.chat.completions.with_raw_response.create(model="demo", messages=CAPITAL, temperature=0)
        answer = raw.parse()
        assert raw.status_code == 200
        assert raw.headers["content-type"].startswith("application/json")
        assert raw.request_id
        assert answer._request_id == raw.request_id
        assert answer.id.endswith(raw.request_id)
        with client.completions.with_streaming_response.create(
            model="echo", prompt="Hi", max_tokens=4, temperature=0, stream=True
        ) as streamed:
            assert streamed.request_id
            assert streamed.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in streamed.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        wrong = failing(
            openai.BadRequestError,
            lambda: client.chat.completions.create(model="demo", messages=CAPITAL, max_tokens=100_000),
        )
        assert wrong.request_id  # the server refused it
        assert wrong.param == "max_tokens"


def answers_are_parsed_into_types(site: Site) -> None:
    with client_of(site) as client:
        chat = client.chat.completions.parse(messages=CAPITAL, response_format=City, frequency_penalty=2, **GUIDED)
        parsed = chat.choices[0].message.parsed
        assert isinstance(parsed, City), chat
        response = client.responses.parse(input="Italy?", text_format=City, **GUIDED)
        assert isinstance(response.output_parsed, City), response
        with client.chat.completions.stream(
            messages=CAPITAL, response_format=City, frequency_penalty=2, **GUIDED
        ) as stream:
            streamed = stream.get_final_completion().choices[0].message.parsed
        assert streamed == parsed


async def answers_are_parsed_without_waiting(site: Site) -> None:
    async with AsyncOpenAI(base_url=site.url, api_key=site.key, max_retries=0) as client:
        chat = await client.beta.chat.completions.parse(  # the older name
            messages=CAPITAL, response_format=City, frequency_penalty=2, **GUIDED
        )
        assert isinstance(chat.choices[0].message.parsed, City)


def responses_come_whole_and_as_events(site: Site) -> None:
    question = CAPITAL[0]["content"]
    with client_of(site) as client:
        whole = client.responses.create(model="demo", input=question, temperature=0, instructions="Be short.")
        assert (whole.status, whole.instructions) == ("completed", "Be short.")
        with client.responses.stream(model="demo", input=question, temperature=0) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert final.output_text.strip() == ROME
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        cut = client.responses.create(model="demo", input=question, temperature=0, max_output_tokens=2)
        assert cut.status == "incomplete"
        assert cut.incomplete_details
        assert cut.incomplete_details.reason == "max_output_tokens"


def responses_come_by_a_socket(site: Site) -> None:
    with client_of(site) as client, client.responses.connect() as connection:
        previous: dict[str, Any] = {}
        for _ in range(2):
            connection.response.create(model="demo", input=CAPITAL[0]["content"], temperature=0, **previous)
            for event in connection:
                if event.type == "response.completed":
                    assert event.response.output_text.strip() == ROME or previous
                    previous = {"previous_response_id": event.response.id}
                    break
                assert event.type != "error", event


async def responses_come_by_a_socket_without_waiting(site: Site) -> None:
    async with AsyncOpenAI(base_url=site.url, api_key=site.key) as client, client.responses.connect() as connection:
        await connection.response.create(model="demo", input=CAPITAL[0]["content"], temperature=0)
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.completed":
                assert event.response.output_text.strip() == ROME
                break


def a_time_out_is_tried_again_as_often_as_said(site: Site) -> None:
    client, tries = counting(base_url=site.url, api_key=site.key, max_retries=RETRIES, timeout=0.3)
    with client:
        failing(openai.APITimeoutError, lambda: client.completions.create(**LONG))
    assert tries == ["0", "1", "2"]
    with client_of(site) as patient:
        begun_s = time.monotonic()
        failing(openai.APITimeoutError, lambda: patient.with_options(timeout=0.3).completions.create(**LONG))
        assert time.monotonic() - begun_s < FREED_S


def a_limit_is_tried_again_until_there_is_room(site: Site) -> None:
    client, tries = counting(base_url=site.url, api_key=site.narrow_key, max_retries=RETRIES)
    with client_of(site, api_key=site.narrow_key) as other:
        with other.completions.create(stream=True, **LONG) as stream:
            next(iter(stream))
            refused = failing(
                openai.RateLimitError,
                lambda: client.completions.create(model="echo", prompt="Hi", max_tokens=2, temperature=0),
            )
            assert tries == ["0", "1", "2"]
            assert 0 < float(refused.response.headers["retry-after"]) <= 60
            assert refused.code == "rate_limit_exceeded"
        tries.clear()
        stream = other.completions.create(stream=True, **LONG)
        next(iter(stream))

        class Closing(list[str]):
            """The tries of a client; the second one finds the place free."""

            def append(self, number: str) -> None:
                super().append(number)
                if number == "1":
                    stream.close()

        closing = Closing()
        hooks = {"request": [lambda request: closing.append(request.headers["x-stainless-retry-count"])]}
        http_client: Any = openai.DefaultHttpxClient(event_hooks=hooks)
        with OpenAI(base_url=site.url, api_key=site.narrow_key, max_retries=6, http_client=http_client) as again:
            assert again.completions.create(model="echo", prompt="Hi", max_tokens=2, temperature=0).choices[0].text
        assert closing[:2] == ["0", "1"]


def a_server_that_is_away_is_tried_again(site: Site) -> None:
    client, tries = counting(base_url=site.away_url, api_key="none", max_retries=RETRIES)
    with client:
        error = failing(
            openai.InternalServerError, lambda: client.chat.completions.create(model="demo", messages=CAPITAL)
        )
    assert (error.status_code, error.code, tries) == (503, "unavailable", ["0", "1", "2"])
    assert error.response.headers["retry-after"]


def an_address_where_nobody_is_is_tried_again(site: Site) -> None:
    client, tries = counting(base_url=site.nowhere_url, api_key="none", max_retries=RETRIES)
    with client:
        failing(openai.APIConnectionError, client.models.list)
    assert tries == ["0", "1", "2"]


def a_request_that_is_wrong_is_tried_once(site: Site) -> None:
    client, tries = counting(base_url=site.url, api_key=site.key, max_retries=RETRIES)
    with client:
        failing(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-5", messages=CAPITAL))
        failing(openai.BadRequestError, lambda: client.completions.create(model="demo", prompt="Hi", temperature=3))
        failing(openai.AuthenticationError, client.with_options(api_key="tri-nobody").models.list)
    assert tries == ["0", "0", "0"]


def wait_for_room(site: Site) -> None:
    """Return once the narrow key has a place: what was cancelled has ended."""
    deadline_s = time.monotonic() + FREED_S
    with client_of(site, api_key=site.narrow_key) as client:
        while True:
            try:
                client.completions.create(model="echo", prompt="Hi", max_tokens=1, temperature=0)
            except openai.RateLimitError:
                assert time.monotonic() < deadline_s, "a cancelled request holds its place"
                time.sleep(0.1)
            else:
                return


def a_stream_ends_in_the_middle(site: Site) -> None:
    with client_of(site, api_key=site.narrow_key) as client:
        with client.completions.create(stream=True, **LONG) as stream:
            assert next(iter(stream)).choices[0].text
        wait_for_room(site)
        with client.responses.stream(model="slow", input="a " * 700, temperature=0) as events:
            for event in events:
                if event.type == "response.output_text.delta":
                    break
        wait_for_room(site)


async def a_task_is_cancelled_in_the_middle(site: Site) -> None:
    async with AsyncOpenAI(base_url=site.url, api_key=site.narrow_key, max_retries=0) as client:
        for is_streaming in (False, True):

            async def ask(*, is_streaming: bool = is_streaming) -> None:
                answer: Any = await client.completions.create(stream=is_streaming, **LONG)
                if is_streaming:
                    async for _ in answer:
                        pass

            task = asyncio.create_task(ask())
            await asyncio.sleep(0.5)
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            await asyncio.to_thread(wait_for_room, site)


def tools_are_called_and_answered(site: Site) -> None:
    tools: Any = [openai.pydantic_function_tool(Weather)]
    with client_of(site) as client:
        messages = list(ASKED_TO_CALL)
        [choice] = client.chat.completions.parse(model="echo", messages=messages, tools=tools, temperature=0).choices
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls or []
        assert call.function.parsed_arguments == Weather(town="Rome")
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny in Rome."}]
        [answer] = client.chat.completions.create(model="echo", messages=messages, tools=tools, temperature=0).choices
        assert (answer.message.content, answer.finish_reason) == ("Sunny in Rome.", "stop")
        with client.chat.completions.stream(model="echo", messages=ASKED_TO_CALL, tools=tools, temperature=0) as stream:
            kinds = [event.type for event in stream]
            [streamed] = stream.get_final_completion().choices[0].message.tool_calls or []
        assert "tool_calls.function.arguments.delta" in kinds
        assert "tool_calls.function.arguments.done" in kinds
        assert streamed.function.parsed_arguments == Weather(town="Rome")


def tools_are_called_in_responses(site: Site) -> None:
    tools: Any = [openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}]
    with client_of(site) as client:
        first = client.responses.create(model="echo", input=CALL, tools=tools, temperature=0)
        [call] = first.output
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"town": "Rome"}
        conversation: Any = [
            {"role": "user", "content": CALL},
            *first.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny in Rome."},
        ]
        second = client.responses.create(model="echo", input=conversation, tools=tools, temperature=0)
        assert second.output_text == "Sunny in Rome."


def calls_are_made_where_there_must_be_some(site: Site) -> None:
    offered: Any = [openai.pydantic_function_tool(Forecast), openai.pydantic_function_tool(City)]
    named: Any = {"type": "function", "function": {"name": "Forecast"}}
    body: dict[str, Any] = {"model": "maker", "messages": CAPITAL, "tools": offered, "temperature": 0}
    with client_of(site) as client:
        free = client.chat.completions.create(**body).choices[0]
        assert not free.message.tool_calls  # this model never calls by itself
        one = client.chat.completions.parse(**body, tool_choice="required", parallel_tool_calls=False).choices[0]
        assert one.finish_reason == "tool_calls"
        assert one.message.content is None
        [call] = one.message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Forecast | City)
        with client.chat.completions.stream(**body, tool_choice=named) as stream:
            kinds = [event.type for event in stream]
            [called] = stream.get_final_completion().choices[0].message.tool_calls or []
        assert "tool_calls.function.arguments.delta" in kinds
        assert "content.delta" not in kinds
        assert isinstance(called.function.parsed_arguments, Forecast)
        flat: Any = [each["function"] | {"type": "function"} for each in offered]
        response = client.responses.parse(
            model="maker", input="Rome?", tools=flat, tool_choice={"type": "function", "name": "City"}, temperature=0
        )
        item: Any = response.output[0]
        assert (item.type, City.model_validate_json(item.arguments).name != "") == ("function_call", True)
        city: Any = {"type": "function", "function": {"name": "City"}}
        allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [city]}}
        among = client.chat.completions.parse(**body, tool_choice=allowed, parallel_tool_calls=False).choices[0]
        [call] = among.message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, City)
        names: Any = [{"type": "function", "name": "City"}]
        flat_choice: Any = {"type": "allowed_tools", "mode": "required", "tools": names}
        chosen = client.responses.create(
            model="maker", input="Rome?", tools=flat, tool_choice=flat_choice, parallel_tool_calls=False, temperature=0
        )
        assert [getattr(item, "name", None) for item in chosen.output] == ["City"]
        refused = failing(
            openai.BadRequestError,
            lambda: client.chat.completions.create(
                model="echo", messages=CAPITAL, tools=offered, tool_choice="required"
            ),
        )
        assert refused.param == "tool_choice"  # the engine without a model cannot guide


def texts_become_vectors(site: Site) -> None:
    with client_of(site) as client:
        both = client.embeddings.create(model="embed", input=["hello", "bye"])  # as base64, of the client's own accord
        one = client.embeddings.create(model="embed", input="hello", encoding_format="float")
        assert [len(each.embedding) for each in both.data] == [16, 16]
        pairs = zip(both.data[0].embedding, one.data[0].embedding, strict=True)
        assert all(abs(value - other) < 1e-6 for value, other in pairs)
        assert both.usage.total_tokens > one.usage.total_tokens > 0
        refused = failing(
            openai.BadRequestError, lambda: client.embeddings.create(model="embed", input=["hello", "b " * 99])
        )
        assert (refused.code, refused.param) == ("context_length_exceeded", "input")


def texts_become_vectors_without_waiting(site: Site) -> None:
    async def ask() -> Any:
        async with AsyncOpenAI(base_url=site.url, api_key=site.key, max_retries=0) as client:
            asked = (client.embeddings.create(model="embed", input=f"text {number}") for number in range(20))
            return await asyncio.gather(*asked)

    assert {len(answer.data[0].embedding) for answer in asyncio.run(ask())} == {16}


if __name__ == "__main__":
    run_all(
        a_streamed_chat_is_the_whole_one,
        the_same_without_waiting,
        raw_responses_have_their_headers,
        answers_are_parsed_into_types,
        answers_are_parsed_without_waiting,
        responses_come_whole_and_as_events,
        responses_come_by_a_socket,
        responses_come_by_a_socket_without_waiting,
        a_time_out_is_tried_again_as_often_as_said,
        a_limit_is_tried_again_until_there_is_room,
        a_server_that_is_away_is_tried_again,
        an_address_where_nobody_is_is_tried_again,
        a_request_that_is_wrong_is_tried_once,
        a_stream_ends_in_the_middle,
        a_task_is_cancelled_in_the_middle,
        tools_are_called_and_answered,
        tools_are_called_in_responses,
        calls_are_made_where_there_must_be_some,
        texts_become_vectors,
        texts_become_vectors_without_waiting,
    )
