# SPDX-License-Identifier: Apache-2.0
"""The real vLLM for CPUs behind Triton: its text, its prefix cache, what ends it, and random requests."""

import contextlib
import json
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_here import needs_prometheus
from running_server import RunningServer, deployment_text
from test_fuzz import fuzz
from vllm_own_server import ENGINE, MODEL, own_server
from waiting import wait_until

from benchmarks.soak import Evidence
from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.chat.prefix_numbers import prompt_prefix
from ensemble_configs.spec.release_spec import TokenizerSpec
from observability.dashboards.panels import dashboards, filled_in
from observability.local_prometheus import LocalPrometheus
from observability.rules.objectives import Objectives
from serving.engines.vllm.vllm_start import openmp_note
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import Unavailable
from trireme.base.free_ports import free_ports

TOKENIZER = PromptTokenizer.from_spec(TokenizerSpec(dir=MODEL))
BLOCK_TOKENS = 32  # of `ENGINE`
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
COUNTER = 'trireme_cached_prompt_tokens_total{model="ensemble"}'
NUM_LOST = 20  # engines, of the soak
NUM_CALLERS = 6  # beside whom they are lost


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    engine = ENGINE | {"watchdog_s": WATCHDOG_S}
    endpoints = ("ensemble", "ensemble_graph", "tensorrt_llm_bls")
    text = deployment_text("vllm", engine=engine, endpoints=endpoints, kv_events={"tells_tokens": True})
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


def prefix_counts(server: RunningServer) -> tuple[float, float]:
    """Return the prompt tokens that were looked for in the KV cache, and those that were there."""
    queried, cached = (
        server.metric(f"trireme_{name}_total", model="ensemble", version="1")
        for name in ("prefix_cache_queries", "cached_prompt_tokens")
    )
    return queried, cached


def settled(server: RunningServer) -> tuple[float, float]:
    """Return these counts once all requests before are in them: they come a moment after an answer."""
    with TritonClient(server.url) as client:
        text_of(client, request("Anything", 2))  # an engine that has told nothing has not reused nothing
    seen = (-1.0, -1.0)
    while True:
        time.sleep(1.5)
        with contextlib.suppress(AssertionError):  # not told yet
            if seen == (seen := prefix_counts(server)):
                return seen


def told_by(server: RunningServer) -> list[dict[str, Any]]:
    """Return the events with which a server tells somebody new what its engine holds."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/kv_events", timeout=10) as answer:
        lines = [answer.readline() for _ in range(3)]
    engines = json.loads(lines[2].removeprefix(b"data: "))["engines"]
    return [event for engine in engines for event in engine["events"]]


def test_routers_are_told_of_a_prompt_by_its_tokens_and_gateways_by_its_text(server: RunningServer) -> None:
    prompt = "Routers hear of this prompt, and of each block that it fills. " * 20
    with TritonClient(server.url) as client:
        text_of(client, request(prompt, 4))
    tokens = TOKENIZER.encode(prompt).tolist()
    whole = tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS]
    numbers = prompt_prefix(text=prompt.encode()).numbers
    assert len(numbers) >= 4

    def is_told() -> bool:
        events = told_by(server)
        held = {number for event in events for number in event.get("numbers", ())}
        runs = [event["token_ids"] for event in events if event["type"] == "BlockStored"]
        return any(run[: len(whole)] == whole for run in runs) and held >= set(numbers)

    wait_until(is_told, 10.0)


def test_a_shared_beginning_is_found_in_the_prefix_cache_and_counted(server: RunningServer) -> None:
    beginning = "A long story begins here, and nobody knows how it will end. " * 20
    first, second = f"{beginning} First", f"{beginning} Second"
    one, other = (TOKENIZER.encode(prompt).tolist() for prompt in (first, second))
    shared = next(index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    found = shared // BLOCK_TOKENS * BLOCK_TOKENS
    assert found > 100

    with TritonClient(server.url) as client:
        before = settled(server)
        text_of(client, request(first, 2))
        cold = (before[0] + len(one), before[1])
        wait_until(lambda: prefix_counts(server) == cold, 10)
        text_of(client, request(second, 2))
        wait_until(lambda: prefix_counts(server) == (cold[0] + len(other), cold[1] + found), 10)


@needs_prometheus
def test_the_dashboards_show_the_engines_own_count_of_cached_prompt_tokens(
    server: RunningServer, tmp_path: Path
) -> None:
    [share] = [expr for title, expr in panels("serving") if title == "Prefix cache hits"]
    [saved] = [expr for title, expr in panels("capacity") if title == "Prompt tokens saved"]
    beginning = "A ship sails at dawn, and its crew sings of the harbour it leaves. " * 15
    found = asked = 0

    targets = {"trireme": [f"127.0.0.1:{server.metrics_port}"]}
    ports = free_ports(2)
    with (
        TritonClient(server.url) as client,
        LocalPrometheus(tmp_path, targets, ports=(ports[0], ports[1]), is_fast=True) as prometheus,
    ):
        before = settled(server)

        def value(expr: str) -> float:
            samples = prometheus.query(expr)
            return sum(
                float(sample["value"][1])
                for sample in samples
                if sample["metric"].get("model", "ensemble") == "ensemble"
            )

        wait_until(lambda: value(COUNTER) == before[1], 20)
        for number in range(12):
            counted = request(f"{beginning} {number}", 2, return_num_cached_tokens=True, return_num_input_tokens=True)
            *_, last = client.generate(counted)
            assert last.num_cached_tokens is not None
            assert last.num_input_tokens is not None
            found += last.num_cached_tokens
            asked += last.num_input_tokens
        assert found > 11 * 200
        wait_until(lambda: value(COUNTER) == before[1] + found, 20)
        assert prefix_counts(server) == (before[0] + asked, before[1] + found)
        for expr in (share, saved):  # of two counters that were scraped together, so exact for any window
            wait_until(lambda: value(expr) == pytest.approx(found / asked, rel=1e-6), 20)  # noqa: B023


def panels(uid: str) -> Iterator[tuple[str, str]]:
    """Yield the title and each query of the panels of a dashboard, for a window that holds the whole test."""
    [dashboard] = [each for each in dashboards(Objectives()).values() if each.uid.endswith(uid)]
    for panel in dashboard.panels:
        for expr in panel.queries.values():
            yield panel.title, filled_in(expr, dashboard, window="2m")


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
def test_ten_thousand_random_requests_are_all_answered(server: RunningServer, evidence: Evidence) -> None:
    run = fuzz(server, SEED + 1, lambda count: count > 10_000)
    assert run.num_answered == 10_000
    evidence.note("random requests to vllm", {"requests": run.num_answered, "ends": run.outcomes})


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


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_engines_killed_and_hung_under_load_end_their_requests_by_name_and_leave_nothing(
    server: RunningServer, evidence: Evidence
) -> None:
    is_over = threading.Event()
    outcomes = Counter[str]()

    def call(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        with TritonClient(server.url) as client:
            while not is_over.is_set():
                try:
                    answer = text_of(client, request(prompt, 150, min_tokens=150))
                    outcomes["answered" if answer else "empty"] += 1
                except Unavailable as exc:
                    outcomes[str(exc.facts.get("reason"))] += 1
                    time.sleep(0.1)

    def is_answering(since: int) -> bool:
        time.sleep(0.1)
        return outcomes["answered"] >= since + NUM_CALLERS

    lost = []
    with ThreadPoolExecutor(NUM_CALLERS) as pool:
        callers = [pool.submit(call, number) for number in range(NUM_CALLERS)]
        try:
            for number in range(NUM_LOST):
                since = outcomes["answered"]
                wait_until(lambda: is_answering(since), READY_S)  # noqa: B023
                lost.append(server.engine_process())
                lost[-1].send_signal(signal.SIGSTOP if number % 2 else signal.SIGKILL)
                wait_until(lambda: not lost[-1].is_running(), WATCHDOG_S + 20)
            since = outcomes["answered"]
            wait_until(lambda: is_answering(since), READY_S)
        finally:
            is_over.set()
        for caller in callers:
            caller.result()
    assert outcomes.keys() <= {"answered", "engine_died", "engine_hung", "engine_restarting"}, outcomes
    assert outcomes["engine_died"] + outcomes["engine_hung"] >= NUM_LOST
    wait_until(lambda: server.used_kv_blocks() == 0, 10)
    assert not any(engine.is_running() for engine in lost)
    assert not any(Path(openmp_note(engine.pid)).exists() for engine in lost)
    evidence.note("engines of vllm lost under load", {"lost": len(lost), "users": NUM_CALLERS, "ends": outcomes})
