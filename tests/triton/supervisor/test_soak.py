# SPDX-License-Identifier: Apache-2.0
"""The full counts of the long checks (`make soak`); their figures go into the result of the run.

Every check here has a small, seeded sample of itself among the other tests of this folder.
"""

import asyncio
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from killed_clients import KILLED_CLIENT, SLOW
from mixed_load import MixedLoad
from resident_memory import resident_mib
from running_server import ENDPOINTS, PROJECT, SUPPORT, RunningServer
from test_cancellation import DIRECT, assert_kills_leave_nothing, open_http_stream
from test_in_flight_batching import answer, ask_alone, request, workload
from test_shutdown import assert_nothing_left, interrupt_while_streaming
from waiting import wait_until

from benchmarks.soak import Evidence
from clients.streaming import AsyncTritonClient, GenerateRequest
from trireme.base.errors import Unavailable

pytestmark = [pytest.mark.soak, pytest.mark.quiet, pytest.mark.timeout(3600)]

OPENVINO: dict[str, object] = {"provider": "openvino", "dir": str(PROJECT / "examples/demo_model/openvino/target")}
# The goals; a miss is written as a miss. tritonserver 2.51 keeps 60 to 116 bytes of a request here, 20 to 30 without
# any code of ours (whose the rest is was not found). OpenVINO's caches of kernels are not full after 2,000 requests.
GROWTH, ROUNDS_GROWTH, KILLED_CLIENT_MS, CLIENT_THAT_LEAVES_MS = 0.02, 0.1, 90.0, 250.0
FAST: dict[str, object] = {"provider": "simulated", "step_ms": 1.0, "num_kv_blocks": 4096}


async def leave_early(client: AsyncTritonClient, one: GenerateRequest, after_chunks: int, model: str) -> None:
    async with contextlib.aclosing(client.generate(one, model=model)) as chunks:
        for _ in range(after_chunks):
            await anext(chunks, None)


def test_a_hundred_rounds_of_64_streams_with_clients_that_leave(
    start_server: Callable[..., RunningServer], evidence: Evidence, model: str
) -> None:
    server = start_server(engine=FAST, endpoints=[model])
    asked = workload(64)
    expected = asyncio.run(ask_alone(server.url, asked, model))
    rng = random.Random(7)

    async def one_round() -> None:
        async with AsyncTritonClient(server.url) as client:
            leaving = [
                leave_early(client, request("I will not stay", 1500), rng.randrange(1, 20), model) for _ in range(16)
            ]
            results = await asyncio.gather(*(answer(client, one, model) for one in asked), *leaving)
        assert results[:64] == expected

    memory, rounds = [], 0
    while rounds < 100:
        asyncio.run(one_round())
        rounds += 1
        if rounds in {20, 100}:
            memory.append(resident_mib(server))
    wait_until(lambda: server.used_kv_blocks() == 0, 10)
    figures = {"rounds": rounds, "complete": rounds * 64, "left_early": rounds * 16}
    evidence.note(f"streams of {model}", {**figures, "rss_mib_after_20_and_100_rounds": memory})
    for name, before in memory[0].items():
        growth = memory[1][name] / before - 1
        evidence.hold(f"growth of {name} with streams of {model} from round 20 to 100", growth, at_most=ROUNDS_GROWTH)
    evidence.end()


@pytest.mark.parametrize("provider", ["simulated", "openvino"])
def test_memory_is_flat_from_request_2000_to_20000(
    start_server: Callable[..., RunningServer], evidence: Evidence, provider: str
) -> None:
    engines: dict[str, dict[str, object]] = {"simulated": FAST, "openvino": OPENVINO}
    server = start_server(engine=engines[provider])
    load = MixedLoad(server.url, seed=11)
    memory = {}
    for upto in (2_000, 5_000, 10_000, 20_000):
        load.run(upto - load.outcomes.total())
        wait_until(lambda: server.num_streams() == 0 and server.used_kv_blocks() == 0, 10)
        memory[upto] = resident_mib(server)
    found = {"outcomes": load.outcomes, "responses": load.num_responses, "rss_mib_after_requests": memory}
    evidence.note(f"memory on {provider}", found)
    for name, before in memory[2_000].items():
        growth = memory[20_000][name] / before - 1
        evidence.hold(f"growth of {name} on {provider} from request 2,000 to 20,000", growth, at_most=GROWTH)
    evidence.end()


def test_two_hundred_killed_clients_of_the_engine_step(
    start_server: Callable[..., RunningServer], evidence: Evidence
) -> None:
    server = start_server(engine=SLOW)
    milliseconds = []
    for _ in range(200):
        command = [sys.executable, "-c", KILLED_CLIENT, server.url]
        with subprocess.Popen(command, cwd=SUPPORT, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"token\n"
            wait_until(lambda: server.used_kv_blocks() > 0, 5)
            client.kill()
            milliseconds.append(1000 * wait_until(lambda: server.used_kv_blocks() == 0, 5))
    hold_kv_free_ms(evidence, "killed client of tensorrt_llm", milliseconds, at_most=KILLED_CLIENT_MS)


def test_a_hundred_clients_that_leave(
    start_server: Callable[..., RunningServer], evidence: Evidence, model: str
) -> None:
    server = start_server(engine=SLOW, endpoints=[model])
    rng, milliseconds = random.Random(7), []

    async def leave(after_chunks: int) -> float:
        asked = request("word " * 100, 1500)
        async with AsyncTritonClient(server.url) as client:
            chunks = client.generate(asked, model=model)
            for _ in range(after_chunks):
                await anext(chunks)
            await asyncio.to_thread(wait_until, lambda: server.used_kv_blocks() > 0, 5)
            left_s = time.monotonic()
            await chunks.aclose()
            return left_s

    for _ in range(100):
        left_s = asyncio.run(leave(rng.randrange(1, 5)))
        wait_until(lambda: server.used_kv_blocks() == 0, 5)
        milliseconds.append(1000 * (time.monotonic() - left_s))
    hold_kv_free_ms(evidence, f"left {model}", milliseconds, at_most=CLIENT_THAT_LEAVES_MS)


@pytest.mark.parametrize("model", DIRECT)
def test_a_hundred_clients_of_generate_stream_that_leave(
    start_server: Callable[..., RunningServer], evidence: Evidence, model: str
) -> None:
    server = start_server(engine=SLOW, endpoints=[model])
    milliseconds = []
    for _ in range(100):
        connection = open_http_stream(server, model)
        wait_until(lambda: server.used_kv_blocks() > 0, 5)
        connection.close()
        milliseconds.append(1000 * wait_until(lambda: server.used_kv_blocks() == 0, 5))
    hold_kv_free_ms(evidence, f"left generate_stream of {model}", milliseconds, at_most=CLIENT_THAT_LEAVES_MS)


def test_a_thousand_connections_that_are_killed_leave_no_state_in_any_model(
    start_server: Callable[..., RunningServer], evidence: Evidence
) -> None:
    server = start_server(engine=SLOW | {"max_num_seqs": 8}, endpoints=ENDPOINTS)
    connections = assert_kills_leave_nothing(server, num_clients=50, seed=8)
    found = {
        "connections": connections,
        "streams_left": server.num_streams(),
        "kv_blocks_left": server.used_kv_blocks(),
    }
    evidence.note("killed_connections", found)


def hold_kv_free_ms(evidence: Evidence, what: str, milliseconds: list[float], *, at_most: float) -> None:
    """Write down how long clients' KV blocks stayed behind, and hold the p99 to its goal."""
    ordered = sorted(milliseconds)
    p99 = ordered[len(ordered) * 99 // 100 - 1]
    found = {"clients": len(ordered), "p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}
    evidence.note(f"{what}, kv_free_ms", found)
    evidence.hold(f"{what}: KV blocks free, p99 in ms", p99, at_most=at_most)
    evidence.end()


def test_twenty_drains_of_16_streams(start_server: Callable[..., RunningServer], evidence: Evidence) -> None:
    seconds = []
    for index in range(20):
        server = start_server(engine=SLOW)
        processes = server.descendants()
        number = (signal.SIGTERM, signal.SIGINT)[index % 2]
        assert (
            asyncio.run(interrupt_while_streaming(server, 100 + index, number, models=["ensemble"] * 16))
            == [100 + index] * 16
        )
        start_s = time.monotonic()
        assert server.stop() == 0
        seconds.append(time.monotonic() - start_s)
        assert_nothing_left(processes, server)
    found = {"drains": len(seconds), "streams_each": 16, "stop_after_last_token_s_median": statistics.median(seconds)}
    evidence.note("drains", found)


def test_fifty_dead_engines(start_server: Callable[..., RunningServer], evidence: Evidence) -> None:
    server = start_server(engine=FAST)
    seconds = []

    async def ask() -> int:
        async with AsyncTritonClient(server.url) as client:
            return (await answer(client, request("hello", 20)))[1]

    for _ in range(50):
        server.engine_process().kill()
        start_s = time.monotonic()
        wait_until(lambda: _succeeds(ask), 30)
        seconds.append(time.monotonic() - start_s)
    found = {"kills": len(seconds), "p50": statistics.median(seconds), "max": max(seconds)}
    evidence.note("dead_engine_to_first_whole_answer_s", found)


def _succeeds(ask: Callable[[], Awaitable[int]]) -> bool:
    async def run() -> int:
        return await ask()

    try:
        return asyncio.run(run()) == 20
    except Unavailable:
        return False
