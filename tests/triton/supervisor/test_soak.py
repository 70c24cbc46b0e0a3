# SPDX-License-Identifier: Apache-2.0
"""The full counts of the long checks (`make soak`); their figures go to benchmarks/results and are committed.

Every check here has a small, seeded sample of itself among the other tests of this folder.
"""

import asyncio
import contextlib
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from killed_clients import KILLED_CLIENT, SLOW
from mixed_load import MixedLoad
from resident_memory import resident_mib
from running_server import PROJECT, SUPPORT, RunningServer
from test_cancellation import DIRECT, assert_kills_leave_nothing, open_http_stream
from test_in_flight_batching import answer, ask_alone, request, workload
from test_shutdown import assert_nothing_left, interrupt_while_streaming
from waiting import wait_until

from benchmarks.support.report import environment, result_path, write_result
from clients.streaming import AsyncTritonClient, GenerateRequest
from trireme.base.errors import Unavailable

pytestmark = [pytest.mark.soak, pytest.mark.quiet, pytest.mark.timeout(3600)]

OPENVINO: dict[str, object] = {"provider": "openvino", "dir": str(PROJECT / "examples/demo_model/openvino/target")}
# What tritonserver 2.51 keeps of a request: 60 to 116 bytes measured here, 20 to 30 without any code of ours. Whose the
# rest is was not found; no process of ours grows with it.
KEPT_BY_TRITON_BYTES = 160
FAST: dict[str, object] = {"provider": "simulated", "step_ms": 1.0, "num_kv_blocks": 4096}


@pytest.fixture(scope="module")
def figures(simulated: RunningServer) -> Iterator[dict[str, object]]:
    """Yield the figures of this file's checks.

    They are written when all are done, beside what others of them found that day.
    """
    where = environment(triton_http=f"127.0.0.1:{simulated.http_port}")
    found: dict[str, object] = {}
    yield found
    earlier = result_path("soak")
    before = json.loads(earlier.read_text())["figures"] if earlier.exists() else {}
    write_result("soak", {"benchmark": "soak", "figures": before | found, "environment": where})


async def leave_early(client: AsyncTritonClient, one: GenerateRequest, after_chunks: int, model: str) -> None:
    async with contextlib.aclosing(client.generate(one, model=model)) as chunks:
        for _ in range(after_chunks):
            await anext(chunks, None)


def test_a_hundred_rounds_of_64_streams_with_clients_that_leave(
    start_server: Callable[..., RunningServer], figures: dict[str, object], model: str
) -> None:
    server = start_server(engine=FAST)
    asked = workload(64)
    expected = asyncio.run(ask_alone(server.url, asked))
    rng = random.Random(7)

    async def one_round() -> None:
        async with AsyncTritonClient(server.url) as client:
            leaving = [
                leave_early(client, request("I will not stay", 1500), rng.randrange(1, 20), model) for _ in range(16)
            ]
            results = await asyncio.gather(*(answer(client, one, model) for one in asked), *leaving)
        assert results[:64] == expected

    memory = []
    for index in range(100):
        asyncio.run(one_round())
        if index in {19, 99}:
            memory.append(resident_mib(server))
    wait_until(lambda: server.used_kv_blocks() == 0, 10)
    figures[f"streams of {model}"] = {
        "rounds": 100,
        "complete": 6400,
        "left_early": 1600,
        "rss_mib_after_20_and_100_rounds": memory,
    }
    for name, before in memory[0].items():
        assert memory[1][name] < 1.1 * before, f"{name} grows: {memory}"


@pytest.mark.parametrize("provider", ["simulated", "openvino"])
def test_memory_is_flat_from_request_2000_to_20000(
    start_server: Callable[..., RunningServer], figures: dict[str, object], provider: str
) -> None:
    engines: dict[str, dict[str, object]] = {"simulated": FAST, "openvino": OPENVINO}
    server = start_server(engine=engines[provider])
    load = MixedLoad(server.url, seed=11)
    memory = {}
    for upto in (2_000, 5_000, 10_000, 20_000):
        load.run(upto - load.outcomes.total())
        wait_until(lambda: server.num_streams() == 0 and server.used_kv_blocks() == 0, 10)
        memory[upto] = resident_mib(server)
    figures[f"memory on {provider}"] = {
        "outcomes": load.outcomes,
        "responses": load.num_responses,
        "rss_mib_after_requests": memory,
    }
    allowed = dict.fromkeys(memory[2_000], 0.0) | {"tritonserver": KEPT_BY_TRITON_BYTES * 18_000 / 2**20}
    # OpenVINO's caches of kernels are not quite full after 2,000 requests: 2.6 % were measured for its process.
    limits = {"simulated": 1.02, "openvino": 1.04}
    for name, before in memory[2_000].items():
        assert memory[20_000][name] < limits[provider] * before + allowed[name], f"{name} grows: {memory}"


def test_two_hundred_killed_clients_of_the_engine_step(
    start_server: Callable[..., RunningServer], figures: dict[str, object]
) -> None:
    server = start_server(engine=SLOW)
    seconds = []
    for _ in range(200):
        command = [sys.executable, "-c", KILLED_CLIENT, server.url]
        with subprocess.Popen(command, cwd=SUPPORT, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"token\n"
            wait_until(lambda: server.used_kv_blocks() > 0, 5)
            client.kill()
            seconds.append(wait_until(lambda: server.used_kv_blocks() == 0, 5))
    milliseconds = sorted(1000 * s for s in seconds)
    figures["killed_client_kv_free_ms"] = {
        "clients": 200, "p50": statistics.median(milliseconds), "p99": milliseconds[197], "max": milliseconds[-1],
    }  # fmt: skip
    assert milliseconds[197] <= 250


def test_a_hundred_clients_that_leave(
    start_server: Callable[..., RunningServer], figures: dict[str, object], model: str
) -> None:
    server = start_server(engine=SLOW)
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
    assert note_kv_free_ms(figures, f"left {model}", milliseconds) <= 250


@pytest.mark.parametrize("model", DIRECT)
def test_a_hundred_clients_of_generate_stream_that_leave(
    start_server: Callable[..., RunningServer], figures: dict[str, object], model: str
) -> None:
    server = start_server(engine=SLOW)
    milliseconds = []
    for _ in range(100):
        connection = open_http_stream(server, model)
        wait_until(lambda: server.used_kv_blocks() > 0, 5)
        connection.close()
        milliseconds.append(1000 * wait_until(lambda: server.used_kv_blocks() == 0, 5))
    assert note_kv_free_ms(figures, f"left generate_stream of {model}", milliseconds) <= 250


def test_a_thousand_connections_that_are_killed_leave_no_state_in_any_model(
    start_server: Callable[..., RunningServer], figures: dict[str, object]
) -> None:
    server = start_server(engine=SLOW | {"max_num_seqs": 8})
    assert_kills_leave_nothing(server, num_clients=50, seed=8)
    figures["killed_connections"] = {"connections": 1000, "processes": 50, "streams_left": 0, "kv_blocks_left": 0}


def note_kv_free_ms(figures: dict[str, object], what: str, milliseconds: list[float]) -> float:
    """Write down how long clients' KV blocks stayed behind; return the p99."""
    ordered = sorted(milliseconds)
    p99 = ordered[len(ordered) * 99 // 100 - 1]
    figures[f"{what}, kv_free_ms"] = {
        "clients": len(ordered), "p50": statistics.median(ordered), "p99": p99, "max": ordered[-1],
    }  # fmt: skip
    return p99


def test_twenty_drains_of_16_streams(start_server: Callable[..., RunningServer], figures: dict[str, object]) -> None:
    seconds = []
    for index in range(20):
        server = start_server(engine=SLOW)
        processes = server.descendants()
        number = (signal.SIGTERM, signal.SIGINT)[index % 2]
        assert asyncio.run(interrupt_while_streaming(server, 100 + index, 16, number)) == [100 + index] * 16
        start_s = time.monotonic()
        assert server.stop() == 0
        seconds.append(time.monotonic() - start_s)
        assert_nothing_left(processes, server)
    figures["drains"] = {"drains": 20, "streams_each": 16, "stop_after_last_token_s_median": statistics.median(seconds)}


def test_fifty_dead_engines(start_server: Callable[..., RunningServer], figures: dict[str, object]) -> None:
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
    figures["dead_engine_to_first_whole_answer_s"] = {
        "kills": 50,
        "p50": statistics.median(seconds),
        "max": max(seconds),
    }


def _succeeds(ask: Callable[[], Awaitable[int]]) -> bool:
    async def run() -> int:
        return await ask()

    try:
        return asyncio.run(run()) == 20
    except Unavailable:
        return False
