# SPDX-License-Identifier: Apache-2.0
"""The real vLLM for CPUs behind Triton: its text, its prefix cache, what ends it, and random requests."""

import json
import signal
import time
from collections.abc import Iterator

import pytest
from running_server import RunningServer, deployment_text
from test_fuzz import fuzz
from vllm_own_server import ENGINE, own_server
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient
from trireme.base.errors import Unavailable

READY_S = 240.0  # torch and vLLM are imported, which a busy machine takes its time for
WATCHDOG_S = 15.0
PROMPTS = [
    "What is the capital of France?",
    "法国的首都是哪里？",
    "フランスの首都はどこですか？",
    "ما هي عاصمة فرنسا؟",
    "फ्रांस की राजधानी क्या है?",
    "😀 🎉",
    "23 + 45 =",
    "Tell me a story about a fox.",
    "Once upon a time",
    "The",
]
SEED = 20261128


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    engine = ENGINE | {"watchdog_s": WATCHDOG_S}
    text = deployment_text("vllm", engine=engine, endpoints=("ensemble", "ensemble_graph", "tensorrt_llm_bls"))
    with RunningServer(text, tmp_path_factory.mktemp("vllm"), ready_s=READY_S) as running:
        yield running


def request(prompt: str, max_tokens: int, **more: object) -> GenerateRequest:
    options = {"stream": True, "exclude_input_in_output": True} | more
    return GenerateRequest(text_input=prompt, max_tokens=max_tokens, **options)  # type: ignore[arg-type]


def text_of(client: TritonClient, asked: GenerateRequest) -> str:
    return "".join(chunk.text for chunk in client.generate(asked))


def test_greedy_text_is_that_of_vllms_own_server(
    server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with own_server(tmp_path_factory.mktemp("own")) as own, TritonClient(server.url) as client:
        for prompt in PROMPTS:
            # Of a character that max_tokens cuts, vLLM's text says nothing, and ours that there is something.
            assert text_of(client, request(prompt, 24)).rstrip("\ufffd") == own.text(prompt, 24), prompt
        stopped = own.text("Once upon a time", 60, stop=["the"])
        assert text_of(client, request("Once upon a time", 60, stop_words=("the",))) == stopped
        biased = own.text("The", 12, frequency_penalty=1.5, repetition_penalty=1.3)
        asked = request("The", 12, frequency_penalty=1.5, repetition_penalty=1.3)
        assert text_of(client, asked) == biased


def test_a_shared_beginning_is_found_in_the_prefix_cache_and_counted(server: RunningServer) -> None:
    beginning = "A long story begins here, and nobody knows how it will end. " * 20
    labels = {"model": "ensemble", "version": "1"}

    def counts() -> tuple[float, float]:
        names = ("prompt_tokens", "cached_prompt_tokens")
        return tuple(server.metric(f"trireme_{name}_total", **labels) for name in names)  # type: ignore[return-value]

    with TritonClient(server.url) as client:
        text_of(client, request("Anything", 2))  # an engine that has told nothing has not reused nothing
        wait_until(lambda: counts()[0] > 0, 5)
        before, cached = counts()
        text_of(client, request(f"{beginning} First", 2))
        wait_until(lambda: counts()[0] > before, 5)
        cold, still = counts()
        assert still == cached
        text_of(client, request(f"{beginning} Second", 2))
        wait_until(lambda: counts()[0] > cold, 5)
    shared = (cold - before) // 32 * 32
    assert shared - 32 <= counts()[1] - cached <= shared, "all whole blocks of the beginning"
    assert counts()[1] % 32 == 0


def test_an_answer_follows_its_guide(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
    with TritonClient(server.url) as client:
        asked = request(
            "23 + 45 =", 60, guided_decoding_guide_type="json_schema", guided_decoding_guide=json.dumps(schema)
        )
        answer = text_of(client, asked)
        assert isinstance(json.loads(answer)["n"], bool)


def test_random_requests_are_all_answered(server: RunningServer) -> None:
    run = fuzz(server, SEED, lambda count: count > 400)
    assert run.num_answered == 400
    assert run.outcomes["answered"] > 60
    assert run.outcomes["failed"] > 20


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_random_requests_are_all_answered(server: RunningServer) -> None:
    run = fuzz(server, SEED + 1, lambda count: count > 10_000)
    assert run.num_answered == 10_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "engine_died"), (signal.SIGSTOP, "engine_hung")], ids=["killed", "hung"]
)
def test_a_stream_of_an_engine_that_ends_is_told_so_and_the_next_engine_answers(
    server: RunningServer, number: int, reason: str
) -> None:
    engine = server.engine_process()
    with TritonClient(server.url) as client:
        stream = client.generate(request("Once upon a time", 1500, min_tokens=1500))
        next(stream)
        engine.send_signal(number)
        with pytest.raises(Unavailable, match=reason if number == signal.SIGKILL else "engine_"):
            list(stream)

        def is_back() -> bool:
            try:
                return text_of(client, request(PROMPTS[0], 8)) != ""
            except Unavailable:
                time.sleep(0.2)
                return False

        wait_until(is_back, READY_S)
    assert not engine.is_running()
    assert server.used_kv_blocks() == 0
