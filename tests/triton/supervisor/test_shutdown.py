# SPDX-License-Identifier: Apache-2.0
"""`trireme serve` stops without losing an answer, and leaves nothing behind."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import psutil
import pytest
from raw_calls import StreamFailed, engine_request, stream
from running_server import ENDPOINTS, RunningServer, still_running

from clients.streaming import AsyncTritonClient, GenerateRequest
from serving.process.shared_memory import remove_dead_regions
from trireme.base.errors import Unavailable

StartServer = Callable[..., RunningServer]

SLOW = {"provider": "simulated", "step_ms": 20.0}


def request(max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        text_input="hello", max_tokens=max_tokens, stream=True, exclude_input_in_output=True,
        return_num_output_tokens=True, return_finish_reason=True,
    )  # fmt: skip


async def interrupt_while_streaming(
    server: RunningServer, max_tokens: int, number: int, *, models: Sequence[str] = ("ensemble",)
) -> list[int | BaseException]:
    """Send a signal once a stream of each model named has its first token; return their tokens, or how they failed."""
    async with AsyncTritonClient(server.url) as client:
        have_first = asyncio.Barrier(len(models) + 1)

        async def read(model: str) -> int:
            num_tokens, is_first = 0, True
            async for chunk in client.generate(request(max_tokens), model=model):
                num_tokens += chunk.num_output_tokens or 0
                if is_first:
                    is_first = False
                    await have_first.wait()
            return num_tokens

        readers = [asyncio.create_task(read(model)) for model in models]
        await have_first.wait()
        server.interrupt(number)
        return await asyncio.gather(*readers, return_exceptions=True)


def assert_nothing_left(processes: list[psutil.Process], server: RunningServer) -> None:
    deadline_s = time.monotonic() + 5
    while still_running(processes):
        assert time.monotonic() < deadline_s, "processes are left"
        time.sleep(0.05)
    assert server.shared_memory() == []


@pytest.mark.parametrize(
    ("number", "endpoints"),
    [
        pytest.param(signal.SIGTERM, ENDPOINTS, id="SIGTERM"),
        *(
            pytest.param(number, [endpoint], id=f"{name}-{endpoint}", marks=pytest.mark.soak)
            for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C"))
            for endpoint in ENDPOINTS
        ),
    ],
)
def test_16_running_ensemble_streams_are_finished_before_the_server_stops(
    start_server: StartServer, number: int, endpoints: Sequence[str]
) -> None:
    server = start_server(engine=SLOW, endpoints=endpoints)
    processes = server.descendants()
    assert len(processes) >= 6  # two frontends, Triton, two stubs or more, the engine
    models = list(islice(cycle(endpoints), 16))
    assert asyncio.run(interrupt_while_streaming(server, 120, number, models=models)) == [120] * 16
    assert server.stop() == 0
    assert_nothing_left(processes, server)


def test_a_stream_longer_than_the_timeout_is_ended_with_an_error_and_the_server_stops(
    start_server: StartServer,
) -> None:
    server = start_server(engine=SLOW, options=("--exit-timeout-s", "1"))
    processes = server.descendants()
    [outcome] = asyncio.run(interrupt_while_streaming(server, 2000, signal.SIGTERM))
    assert isinstance(outcome, Unavailable)
    assert outcome.facts["reason"] == "shutdown"
    assert server.stop() == 0
    assert_nothing_left(processes, server)


def test_while_it_drains_ready_says_no_and_new_requests_are_refused(start_server: StartServer) -> None:
    server = start_server(engine=SLOW)
    running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 150, "stream": True})
    next(running)
    server.interrupt()
    deadline_s = time.monotonic() + 2
    while server.is_ready():
        assert time.monotonic() < deadline_s
    time.sleep(0.2)
    with pytest.raises(StreamFailed, match=r"\[UNAVAILABLE reason=draining\]"):
        list(stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 2}))
    assert len(list(running)) > 50
    assert server.stop() == 0


def test_a_second_ctrl_c_does_not_wait_for_running_streams(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, options=("--exit-timeout-s", "600"))
    running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 2000, "stream": True})
    next(running)
    server.interrupt(signal.SIGINT)
    time.sleep(0.5)
    server.interrupt(signal.SIGINT)
    with pytest.raises(StreamFailed, match="reason=shutdown"):
        list(running)
    assert server.stop() == 0


def test_a_server_whose_stub_is_dead_is_stopped_all_the_same(start_server: StartServer) -> None:
    server = start_server(engine=SLOW)
    processes = server.descendants()
    for process in processes:
        if process.name().startswith("triton_python"):
            process.kill()
    assert server.stop() == 0
    assert_nothing_left(processes, server)


def test_a_killed_parent_takes_the_server_with_it_though_streams_run(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, endpoints=ENDPOINTS)
    processes = server.descendants()
    running = [
        stream(server.url, model, {"text_input": "hello", "max_tokens": 1500, "stream": True}) for model in ENDPOINTS
    ]
    running.append(stream(server.url, "tensorrt_llm", engine_request([7] * 40, 1500)))
    for responses in running:
        next(responses)
    server.process.kill()
    server.process.wait()
    deadline_s = time.monotonic() + 25  # a stub that waits for the server keeps its interpreter to itself for 15 s
    while still_running(processes):
        assert time.monotonic() < deadline_s, "processes are left"
        time.sleep(0.1)
    remove_dead_regions()  # as the next server does when it starts
    assert server.shared_memory() == []
