# SPDX-License-Identifier: Apache-2.0
"""The real vLLM for CPUs behind Triton under load: many adapters that come and go, too few KV blocks, cancels."""

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from demo_adapters import write_demo_adapter
from running_server import RunningServer, deployment_text
from vllm_own_server import ENGINE
from waiting import wait_until

from benchmarks.soak import Evidence
from clients.streaming import AsyncTritonClient, GenerateRequest, TritonClient
from trireme.base.errors import RequestError
from trireme.commands import run_command

READY_S = 240.0
NUM_ADAPTERS = 20
NUM_CALLERS = 8
PROMPT = "Tell me a story about a fox."
SEED = 20261129
# Exact numbers, so that a request's company changes nothing; 40 blocks hold 1,280 tokens of all requests together.
FEW_BLOCKS: dict[str, object] = {"dtype": "float32", "max_seq_len": 1024, "num_kv_blocks": 40}
CANCEL_MS = 250.0  # of a client that leaves, at the 99th percentile, as in the soak of the other engines
MAX_GROWTH = 0.05  # of the engine's memory, from the first full set of adapters to the last


class Served:
    """A server with a folder of adapters, and what its clients ask."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server

    def adapters(self, *args: object) -> None:
        argv = [*map(str, args), "--deployment", str(self.server.folder / "deployment.yaml")]
        with pytest.raises(SystemExit) as ended:
            run_command("adapters", argv)
        assert not ended.value.code

    def load(self, names: Sequence[str]) -> None:
        for number, name in enumerate(names):
            source = self.server.folder / "sources" / name
            write_demo_adapter(
                source, seed=number, modules=("q_proj", "v_proj") if number % 2 else ("q_proj", "o_proj")
            )
            self.adapters("load", source, "--name", name)

    def text(self, client: TritonClient, name: str | None, max_tokens: int = 12) -> str:
        return "".join(chunk.text for chunk in client.generate(asked(max_tokens, lora_name=name)))

    def engine_mib(self) -> float:
        return float(psutil.Process(self.server.engine_process().pid).memory_info().rss) / 2**20


def asked(max_tokens: int, prompt: str = PROMPT, **more: object) -> GenerateRequest:
    options = {"stream": True, "exclude_input_in_output": True, "min_tokens": max_tokens} | more
    return GenerateRequest(text_input=prompt, max_tokens=max_tokens, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm_load")
    (folder / "lora").mkdir()
    lora = {"dir": str(folder / "lora"), "max_rank": 8, "max_device_adapters": 4, "max_host_adapters": 8}
    engine = ENGINE | FEW_BLOCKS | {"lora": lora}
    with RunningServer(deployment_text("vllm_load", engine=engine), folder / "server", ready_s=READY_S) as server:
        yield Served(server)


def use_at_random_and_unload(served: Served, *, num_requests: int, seed: int) -> Counter[str]:
    """Load 20 adapters, send requests that name them at random, and take most out meanwhile; return the outcomes."""
    names = [f"style-{number}" for number in range(NUM_ADAPTERS)]
    served.load(names)
    with TritonClient(served.server.url) as client:
        alone = {name: served.text(client, name) for name in (*names, None)}
    assert len(set(alone.values())) == len(alone), "adapters that differ"
    rng, outcomes = random.Random(seed), Counter[str]()
    asked_for = [rng.choice([*names, None]) for _ in range(num_requests)]
    leaving = rng.sample(names, NUM_ADAPTERS - 4)
    going, gone = set[str](), set[str]()

    def call(number: int) -> str:
        name = asked_for[number]
        is_gone = name in gone
        with TritonClient(served.server.url) as client:
            try:
                text = served.text(client, name)
            except RequestError as exc:
                return "refused by name" if f"lora_name ({name})" in str(exc) and name in going else str(exc)
        assert not is_gone, f"{name} was out"
        assert text == alone[name], f"the answer of {name}"
        return "its own adapter's"

    def take_out() -> None:
        for number, name in enumerate(leaving):
            wait_until(lambda: outcomes.total() >= (number + 1) * num_requests // (NUM_ADAPTERS + 4), 120)  # noqa: B023
            going.add(name)  # a request that comes meanwhile may be answered, or refused
            served.adapters("unload", name)
            gone.add(name)

    with ThreadPoolExecutor(NUM_CALLERS + 1) as pool:
        unloading = pool.submit(take_out)
        for outcome in pool.map(call, range(num_requests)):
            outcomes[outcome] += 1
        unloading.result()
    for name in set(names) - gone:
        served.adapters("unload", name)
    wait_until(lambda: served.server.used_kv_blocks() == 0, 10)
    return outcomes


def test_twenty_adapters_used_at_random_and_unloaded_meanwhile_give_each_its_own_answer(served: Served) -> None:
    outcomes = use_at_random_and_unload(served, num_requests=120, seed=SEED)
    assert outcomes["its own adapter's"] > 30
    assert outcomes["refused by name"] > 10
    assert outcomes.total() == outcomes["its own adapter's"] + outcomes["refused by name"] == 120, outcomes


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_adapters_come_and_go_thirty_times_and_leave_no_memory(served: Served, evidence: Evidence) -> None:
    memory, outcomes = [], Counter[str]()
    for turn in range(30):
        outcomes += use_at_random_and_unload(served, num_requests=200, seed=SEED + turn)
        memory.append(served.engine_mib())
    evidence.note("adapters of vllm", {"rounds": 30, "outcomes": outcomes, "engine_mib": memory})
    evidence.hold(
        "growth of vllm's engine over 25 rounds of 20 adapters", memory[-1] / memory[4] - 1, at_most=MAX_GROWTH
    )
    evidence.end()


def test_preempted_streams_are_answered_as_alone_and_counted_in_the_metrics(served: Served) -> None:
    prompts = [f"{PROMPT} {number}" for number in range(7)]

    def answer(prompt: str) -> str:
        with TritonClient(served.server.url) as client:
            return "".join(chunk.text for chunk in client.generate(asked(200, prompt)))

    def preemptions() -> float:
        return served.server.metric("trireme_preemptions_total", model="tensorrt_llm")

    alone = [answer(prompt) for prompt in prompts]
    before = preemptions()
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(answer, prompts)) == alone
    wait_until(lambda: preemptions() > before, 5)
    wait_until(lambda: served.server.used_kv_blocks() == 0, 5)


def milliseconds_until_blocks_are_free(server: RunningServer, num_clients: int) -> list[float]:
    """Return, for clients that leave one after the other, the time from leaving until no KV block is used."""
    rng, found = random.Random(SEED), []

    async def leave(after_chunks: int) -> float:
        async with AsyncTritonClient(server.url) as client:
            chunks = client.generate(asked(900))
            for _ in range(after_chunks):
                await anext(chunks)
            await asyncio.to_thread(wait_until, lambda: server.used_kv_blocks() > 0, 5)
            left_s = time.monotonic()
            await chunks.aclose()
            return left_s

    for _ in range(num_clients):
        left_s = asyncio.run(leave(rng.randrange(1, 5)))
        wait_until(lambda: server.used_kv_blocks() == 0, 5)
        found.append(1000 * (time.monotonic() - left_s))
    return sorted(found)


def test_a_client_that_leaves_frees_its_kv_blocks(served: Served) -> None:
    found = milliseconds_until_blocks_are_free(served.server, 20)
    # The goal is a p99 of 250 ms, to which `make soak` holds 200 clients on a machine that does nothing else.
    assert statistics.median(found) < CANCEL_MS
    assert found[-1] < 4 * CANCEL_MS


@pytest.mark.soak
@pytest.mark.quiet
@pytest.mark.timeout(3600)
def test_two_hundred_clients_that_leave_free_their_kv_blocks_in_time(served: Served, evidence: Evidence) -> None:
    found = milliseconds_until_blocks_are_free(served.server, 200)
    p99 = found[len(found) * 99 // 100 - 1]
    evidence.note(
        "left ensemble on vllm, kv_free_ms", {"clients": len(found), "p50": statistics.median(found), "p99": p99}
    )
    evidence.hold("left ensemble on vllm: KV blocks free, p99 in ms", p99, at_most=CANCEL_MS)
    evidence.end()
