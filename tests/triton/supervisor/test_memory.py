# SPDX-License-Identifier: Apache-2.0
"""A sample of what `make soak` holds 20,000 requests to: no process grows with the requests that it has served."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from fuzzed_requests import Sent, strings
from mixed_load import MixedLoad
from resident_memory import kept_by_a_round, resident_mib
from running_server import RunningServer
from tritonclient.grpc import service_pb2_grpc
from waiting import wait_until

from clients.streaming import AsyncTritonClient, GenerateRequest

NUM_REQUESTS = 1_000


def test_after_a_warm_up_no_process_grows_by_1_kib_a_request(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine={"provider": "simulated", "step_ms": 1.0, "num_kv_blocks": 4096})
    load = MixedLoad(server.url, seed=3)
    memory = []
    for _ in range(2):
        load.run(NUM_REQUESTS)
        wait_until(lambda: server.num_streams() == 0 and server.used_kv_blocks() == 0, 10)
        memory.append(resident_mib(server))
    before, after = memory
    growth_kib = {name: 1024 * (after[name] - before[name]) / NUM_REQUESTS for name in before}
    assert max(growth_kib.values()) < 1, growth_kib
    assert load.outcomes["read"] > 800
    assert min(load.outcomes.values()) > 50


async def _leave(url: str, model: str, num_streams: int) -> None:
    async with AsyncTritonClient(url) as client:

        async def leave_one() -> None:
            request = GenerateRequest(text_input="I will not stay", max_tokens=800, stream=True)
            async with contextlib.aclosing(client.generate(request, model=model)) as chunks:
                for _ in range(3):
                    await anext(chunks)

        for _ in range(0, num_streams, 30):
            await asyncio.gather(*(leave_one() for _ in range(30)))


@pytest.mark.parametrize("model", ["ensemble", pytest.param("ensemble_graph", marks=pytest.mark.soak)])
def test_a_stream_that_its_client_leaves_costs_the_server_less_than_1_kib(
    start_server: Callable[..., RunningServer], model: str
) -> None:
    # A busy machine's engine with steps of 1 to 10 ms outruns the server, and the graph most of all: responses that
    # nobody will read make rounds that hold 50 MB more than any before, beside which a leak of 1 KiB a stream is lost.
    server = start_server(engine={"provider": "simulated", "step_ms": 50.0, "num_kv_blocks": 4096}, endpoints=[model])
    memory = []
    for _ in range(4):
        asyncio.run(_leave(server.url, model, 600))
        wait_until(lambda: server.num_streams() == 0 and server.used_kv_blocks() == 0, 10)
        memory.append(1024 * resident_mib(server)["tritonserver"])
    assert kept_by_a_round(memory) / 600 < 1, memory


def _ask_nobody(url: str, num_streams: int) -> None:
    """Ask for a model that is not there, and cancel each stream at its error, as tritonclient does."""
    message = Sent("nobody", {"text_input": strings(b"hello")}).message()
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(num_streams):
            is_over = threading.Event()

            def requests(is_over: threading.Event = is_over) -> Iterator[Any]:
                yield message
                is_over.wait(10)

            call = stub.ModelStreamInfer(requests())
            assert "unknown model" in next(call).error_message
            call.cancel()
            is_over.set()


def test_a_stream_to_a_model_that_is_not_there_costs_the_server_less_than_1_kib(simulated: RunningServer) -> None:
    memory = []
    for _ in range(4):
        _ask_nobody(simulated.url, 500)
        time.sleep(2)
        memory.append(1024 * resident_mib(simulated)["tritonserver"])
    assert kept_by_a_round(memory) / 500 < 1, memory


def test_large_messages_leave_nothing_with_the_server(simulated: RunningServer) -> None:
    before = resident_mib(simulated)["tritonserver"]
    message = Sent("nobody", {"text_input": strings(b"a" * 40_000_000)}).message()
    options = [("grpc.max_send_message_length", -1)]

    def ask() -> None:
        with grpc.insecure_channel(simulated.url, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(4):
                assert "unknown model" in next(stub.ModelStreamInfer(iter([message]))).error_message

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: resident_mib(simulated)["tritonserver"] < before + 20, 10)
