# SPDX-License-Identifier: Apache-2.0
"""Iteration-level batching and streams kept apart, seen from a client of the real server."""

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest
from running_server import RunningServer
from text_models import ONE_AND_IN_SOAK_ALL

from clients.streaming import AsyncTritonClient, GenerateRequest

STORY = "Once upon a time"
LANGUAGES = [
    "What is the capital of France?",
    "法国的首都是哪里？",
    "フランスの首都はどこですか？",
    "ما هي عاصمة فرنسا؟",
    "फ्रांस की राजधानी क्या है?",
    "😀 🎉",
    "23 + 45 =",
    "Tell me a story about a fox.",
]


def request(prompt: str, max_tokens: int, *, min_tokens: int | None = None) -> GenerateRequest:
    return GenerateRequest(
        text_input=prompt,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stream=True,
        exclude_input_in_output=True,
        return_num_output_tokens=True,
        return_finish_reason=True,
    )


async def answer(client: AsyncTritonClient, asked: GenerateRequest, model: str = "ensemble") -> tuple[str, int]:
    text, num_tokens, is_final = "", 0, False
    async for chunk in client.generate(asked, model=model):
        assert not is_final
        text, num_tokens, is_final = text + chunk.text, num_tokens + (chunk.num_output_tokens or 0), chunk.is_final
    assert is_final
    return text, num_tokens


@pytest.mark.parametrize("server", ["simulated", "openvino"])
def test_a_short_request_sent_later_finishes_before_a_long_one_that_was_running(
    server: str, request_fixture: Callable[[str], RunningServer]
) -> None:
    async def run() -> list[str]:
        finished: list[str] = []
        async with AsyncTritonClient(request_fixture(server).url) as client:
            long = client.generate(request(STORY, 200, min_tokens=200))
            await anext(long)

            async def read_long() -> None:
                async for _ in long:
                    pass
                finished.append("long")

            async def read_short() -> None:
                await answer(client, request("23 + 45 =", 5, min_tokens=5))
                finished.append("short")

            await asyncio.gather(read_long(), read_short())
        return finished

    assert asyncio.run(run()) == ["short", "long"]


@pytest.fixture
def request_fixture(request: pytest.FixtureRequest) -> Callable[[str], RunningServer]:
    fixture: Callable[[str], RunningServer] = request.getfixturevalue
    return fixture


def workload(count: int) -> list[GenerateRequest]:
    """Return requests of mixed lengths and languages, no two of them alike."""
    rng = random.Random(count)
    prompts = [f"{rng.choice(LANGUAGES)} {index} {'word ' * rng.randrange(60)}" for index in range(count)]
    return [request(prompt, rng.randrange(1, 120)) for prompt in prompts]


async def ask_together(url: str, asked: list[GenerateRequest], model: str = "ensemble") -> list[tuple[str, int]]:
    async with AsyncTritonClient(url) as client:
        return await asyncio.gather(*(answer(client, one, model) for one in asked))


async def ask_alone(url: str, asked: list[GenerateRequest], model: str = "ensemble") -> list[tuple[str, int]]:
    async with AsyncTritonClient(url) as client:
        return [await answer(client, one, model) for one in asked]


@pytest.mark.parametrize("model", ONE_AND_IN_SOAK_ALL)
def test_64_concurrent_streams_equal_the_same_requests_alone(simulated: RunningServer, model: str) -> None:
    asked = workload(64)
    together = asyncio.run(ask_together(simulated.url, asked, model))
    assert [num_tokens for _, num_tokens in together] == [one.max_tokens for one in asked]
    assert together == asyncio.run(ask_alone(simulated.url, asked))


def test_64_concurrent_streams_of_the_real_engine_are_complete_and_not_mixed_up(openvino: RunningServer) -> None:
    # Sums of known numbers: whose answer it is can be read from the answer, or from what it is alone. (A batch may
    # change a rounding and with it a token, so equality alone is not asked for.)
    asked = [request(f"What is {10 + index} + {90 - index}?", 24) for index in range(64)]
    together = asyncio.run(ask_together(openvino.url, asked))
    alone = asyncio.run(ask_alone(openvino.url, asked))
    for index, (answer_together, answer_alone) in enumerate(zip(together, alone, strict=True)):
        assert answer_together[1] >= 1
        assert answer_together == answer_alone or f"{10 + index} + {90 - index}" in answer_together[0]


def test_a_stream_that_nobody_finishes_reading_does_not_disturb_the_others(simulated: RunningServer) -> None:
    async def run() -> tuple[str, int]:
        async with AsyncTritonClient(simulated.url) as client:
            for _ in range(20):
                async with contextlib.aclosing(client.generate(request(STORY, 500))) as stream:
                    await anext(stream)
            return await answer(client, request(STORY, 30))

    assert asyncio.run(run())[1] == 30
