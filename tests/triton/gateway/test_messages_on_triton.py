# SPDX-License-Identifier: Apache-2.0
"""Anthropic's official client, unchanged, at a gateway before the real server."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from gateway_process import GatewayProcess
from openai import OpenAI
from running_server import RunningServer
from waiting import wait_until

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message, MessageParam

CAPITAL: "list[MessageParam]" = [{"role": "user", "content": "What is the capital of Italy?"}]
ROME = "The capital of Italy is Rome."
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def gateway(openvino: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(openvino, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> "Iterator[Anthropic]":
    from anthropic import Anthropic

    with Anthropic(base_url=gateway.url.removesuffix("/v1"), api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="module")
def name(client: "Anthropic") -> str:
    [model] = client.models.list().data
    return model.id


def text_of(answer: "Message") -> str:
    assert all(block.type == "text" for block in answer.content)
    return "".join(block.text for block in answer.content if block.type == "text").strip()


def test_a_message_is_the_answer_that_openai_s_client_gets(
    client: "Anthropic", gateway: GatewayProcess, name: str
) -> None:
    answer = client.messages.create(model=name, max_tokens=50, messages=CAPITAL, extra_body=GREEDY)
    assert text_of(answer) == ROME
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    with OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as other:
        whole = other.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "What is the capital of Italy?"}],
            temperature=0,
            max_tokens=50,
        )
    assert whole.usage is not None
    read = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert (read, answer.usage.output_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert (whole.choices[0].message.content or "").strip() == ROME


def test_the_client_s_own_reader_of_streams_gathers_the_answer(client: "Anthropic", name: str) -> None:
    whole = client.messages.create(model=name, max_tokens=50, messages=CAPITAL, extra_body=GREEDY)
    with client.messages.stream(model=name, max_tokens=50, messages=CAPITAL, extra_body=GREEDY) as stream:
        texts = list(stream.text_stream)
        answer: Message = stream.get_final_message()
    assert "".join(texts).strip() == text_of(answer) == text_of(whole) == ROME
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == whole.usage.output_tokens


def test_an_answer_stops_where_it_is_told(client: "Anthropic", name: str) -> None:
    at_word = client.messages.create(
        model=name, max_tokens=50, messages=CAPITAL, stop_sequences=["Italy"], extra_body=GREEDY
    )
    assert text_of(at_word) == "The capital of"
    assert (at_word.stop_reason, at_word.stop_sequence) == ("stop_sequence", "Italy")
    for several, ended_by in ((["Paris", "taly", "Italy"], "Italy"), (["is", "taly"], "taly")):
        at_one = client.messages.create(
            model=name, max_tokens=50, messages=CAPITAL, stop_sequences=several, extra_body=GREEDY
        )
        assert (at_one.stop_reason, at_one.stop_sequence) == ("stop_sequence", ended_by)
    at_limit = client.messages.create(model=name, max_tokens=2, messages=CAPITAL, extra_body=GREEDY)
    assert at_limit.stop_reason == "max_tokens"
    assert at_limit.usage.output_tokens == 2


def test_a_conversation_with_blocks_is_one_with_text(client: "Anthropic", name: str) -> None:
    texts: list[MessageParam] = [*CAPITAL, {"role": "assistant", "content": ROME}, *CAPITAL]
    asked: MessageParam = {"role": "user", "content": [{"type": "text", "text": "What is the capital of Italy?"}]}
    said: MessageParam = {"role": "assistant", "content": [{"type": "text", "text": ROME}]}
    blocks = [asked, said, asked]
    first, second = (
        client.messages.create(model=name, max_tokens=20, messages=each, extra_body=GREEDY) for each in (texts, blocks)
    )
    assert text_of(first) == text_of(second)


def test_many_streams_at_a_time_have_each_their_own_text(gateway: GatewayProcess, name: str) -> None:
    from anthropic import AsyncAnthropic

    async def ask(client: AsyncAnthropic, country: str) -> str:
        async with client.messages.stream(
            model=name,
            max_tokens=50,
            messages=[{"role": "user", "content": f"What is the capital of {country}?"}],
            extra_body=GREEDY,
        ) as stream:
            return (await stream.get_final_text()).strip()

    async def ask_all() -> list[str]:
        base = gateway.url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, country) for country in ["Italy", "France"] * 8))

    texts = asyncio.run(ask_all())
    assert set(texts[::2]) == {ROME}
    assert set(texts[1::2]) == {"The capital of France is Paris."}


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_errors_have_the_client_s_own_types(client: "Anthropic", name: str, *, is_streaming: bool) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="claude", max_tokens=5, messages=CAPITAL, stream=is_streaming)
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as warm:
        client.messages.create(
            model=name, max_tokens=5, messages=CAPITAL, stream=is_streaming, extra_body={"temperature": 1.5}
        )
    assert warm.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):  # the server refuses that
        client.messages.create(model=name, max_tokens=100_000, messages=CAPITAL, stream=is_streaming, timeout=60)
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        client.messages.create(
            model=name, max_tokens=5, messages=[{"role": "user", "content": "word " * 4000}], stream=is_streaming
        )
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model=name, messages=CAPITAL)


def test_a_caller_who_leaves_frees_the_kv_cache(
    simulated: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from anthropic import Anthropic

    with GatewayProcess(simulated, tmp_path_factory.mktemp("gateway")) as gateway:
        base = gateway.url.removesuffix("/v1")
        with Anthropic(base_url=base, api_key="none", max_retries=0) as client:
            body = {"model": "simulated", "max_tokens": 1500, "stream": True, "messages": CAPITAL}
            stream = client.messages.create(**body)  # type: ignore[call-overload]
            next(iter(stream))
            assert simulated.num_streams() == 1
            stream.close()
            wait_until(lambda: simulated.num_streams() == 0, 10.0)
