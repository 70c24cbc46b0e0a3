# SPDX-License-Identifier: Apache-2.0
"""OpenAI's official client, unchanged, at a gateway before the real server."""

import asyncio
import time
from collections.abc import Iterator

import openai
import pytest
from gateway_process import GatewayProcess
from openai import AsyncOpenAI, OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam
from running_server import RunningServer

CAPITAL: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of Italy?"}]
ROME = "The capital of Italy is Rome."
FREED_S = 0.25  # from a caller's end to free KV cache blocks


@pytest.fixture(scope="module")
def gateway(openvino: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(openvino, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="module")
def name(client: OpenAI) -> str:
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    return model.id


def text_of(answer: ChatCompletion) -> str:
    text = answer.choices[0].message.content
    assert text is not None
    return text.strip()


def usage_of(answer: ChatCompletion | ChatCompletionChunk) -> CompletionUsage:
    assert answer.usage is not None
    return answer.usage


def test_a_chat_is_answered(client: OpenAI, name: str) -> None:
    answer = client.chat.completions.create(model=name, messages=CAPITAL, temperature=0)
    assert text_of(answer) == ROME
    assert answer.choices[0].finish_reason == "stop"
    usage = usage_of(answer)
    assert usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_streamed_chat_is_the_same_text(client: OpenAI, name: str) -> None:
    whole = client.chat.completions.create(model=name, messages=CAPITAL, temperature=0)
    events = list(
        client.chat.completions.create(
            model=name, messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    texts = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(texts).strip() == text_of(whole)
    assert len([text for text in texts if text]) > 1
    assert usage_of(events[-1]) == usage_of(whole)


def test_the_client_s_own_reader_of_streams_gathers_the_answer(client: OpenAI, name: str) -> None:
    with client.chat.completions.stream(model=name, messages=CAPITAL, temperature=0) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert text_of(answer) == ROME
    assert answer.choices[0].message.role == "assistant"


def test_a_text_completion_stops_where_it_is_told(client: OpenAI, name: str) -> None:
    prompt = "<|user|>What is the capital of Italy?<|end|><|assistant|>"
    answer = client.completions.create(model=name, prompt=prompt, max_tokens=12, temperature=0, stop=["Italy"])
    assert answer.choices[0].text.strip() == "The capital of"
    assert answer.choices[0].finish_reason == "stop"


def test_several_answers_differ_by_their_seed_and_repeat_with_it(client: OpenAI, name: str) -> None:
    def ask() -> list[str]:
        answer = client.chat.completions.create(
            model=name, messages=CAPITAL, n=3, seed=5, temperature=2.0, max_completion_tokens=16
        )
        return [choice.message.content or "" for choice in sorted(answer.choices, key=lambda one: one.index)]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_the_log_probabilities_are_of_the_tokens_of_the_answer(
    client: OpenAI, name: str, *, is_streaming: bool
) -> None:
    if is_streaming:
        events = client.chat.completions.create(model=name, messages=CAPITAL, temperature=0, logprobs=True, stream=True)
        choices = [event.choices[0] for event in events]
        text = "".join(choice.delta.content or "" for choice in choices)
        told = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or []]
    else:
        [whole] = client.chat.completions.create(model=name, messages=CAPITAL, temperature=0, logprobs=True).choices
        assert whole.logprobs is not None
        text, told = whole.message.content or "", whole.logprobs.content or []
    assert b"".join(bytes(token.bytes or []) for token in told).decode() == text
    assert text.strip() == ROME
    assert all(-5 < token.logprob <= 0 for token in told)


def test_many_streams_at_a_time_have_each_their_own_text(gateway: GatewayProcess, name: str) -> None:
    async def ask(client: AsyncOpenAI, country: str) -> str:
        stream = await client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": f"What is the capital of {country}?"}],
            temperature=0,
            stream=True,
        )
        return "".join([event.choices[0].delta.content or "" async for event in stream])

    async def ask_all() -> list[str]:
        async with AsyncOpenAI(base_url=gateway.url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, country) for country in ["Italy", "France"] * 16))

    texts = asyncio.run(ask_all())
    assert {text.strip() for text in texts[::2]} == {ROME}
    assert {text.strip() for text in texts[1::2]} == {"The capital of France is Paris."}


def test_errors_have_the_client_s_own_types(client: OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=name, messages=CAPITAL, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-5", messages=CAPITAL)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unfit:  # the server refuses that
        client.chat.completions.create(model=name, messages=CAPITAL, max_tokens=100_000)
    assert unfit.value.param == "max_tokens"


def test_a_prompt_without_room_is_refused_whole_and_as_a_stream(client: OpenAI, name: str) -> None:
    for is_streaming in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=name, prompt="word " * 4000, stream=is_streaming)
        assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_a_caller_who_leaves_frees_the_kv_cache(
    simulated: RunningServer, tmp_path_factory: pytest.TempPathFactory, *, is_streaming: bool
) -> None:
    with GatewayProcess(simulated, tmp_path_factory.mktemp("gateway")) as gateway:
        client = OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=1.0)
        assert simulated.num_streams() == 0
        if is_streaming:
            stream = client.completions.create(
                model="simulated", prompt="Hi", max_tokens=1500, stream=True, temperature=0
            )
            next(iter(stream))
            assert simulated.num_streams() == 1
            stream.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                client.completions.create(model="simulated", prompt="Hi", max_tokens=1500, temperature=0)
        left_s = time.monotonic()
        while simulated.num_streams():
            assert time.monotonic() < left_s + FREED_S
            time.sleep(0.005)
