# SPDX-License-Identifier: Apache-2.0
"""A client with several connections, each with one stream, that waits to be killed: ``killed_clients.py url models``.

It says so when every stream has had a token, or is waiting for one: those after the first `num_running` wait for long.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc.aio
from fuzzed_requests import Given, Sent, numbers, strings
from tritonclient.grpc import service_pb2_grpc

ENDLESS = 1500  # tokens

# A long request is half a minute of work: it ends in time only because it is cancelled.
SLOW = {"provider": "simulated", "step_ms": 20.0, "num_kv_blocks": 512}

# One stream of the engine step, of a client that is killed while it reads; a program of this folder.
KILLED_CLIENT = """
import sys
from raw_calls import engine_request, stream
for response in stream(sys.argv[1], "tensorrt_llm", engine_request([7] * 400, 1500)):
    print("token", flush=True)
"""


def asked(model: str) -> dict[str, Given]:
    """Return a long stream of any model."""
    if model == "tensorrt_llm":
        return {
            "input_ids": numbers("INT32", [7] * 40),
            "input_lengths": numbers("INT32", [40]),
            "request_output_len": numbers("INT32", [ENDLESS]),
            "streaming": numbers("BOOL", [True]),
        }
    return {
        "text_input": strings(b"word " * 40),
        "max_tokens": numbers("INT32", [ENDLESS]),
        "stream": numbers("BOOL", [True]),
    }


async def stream_on_a_connection_of_its_own(url: str, model: str, has_token: asyncio.Event) -> None:
    """Read until the process ends."""
    async with grpc.aio.insecure_channel(url, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        await call.write(Sent(model, asked(model)).message())
        async for response in call:
            assert not response.error_message, response.error_message
            has_token.set()


async def main(url: str, models: list[str], num_running: int) -> None:
    """Open one connection for each of the models named."""
    events = [asyncio.Event() for _ in models]
    streams = [
        asyncio.create_task(stream_on_a_connection_of_its_own(url, model, event))
        for model, event in zip(models, events, strict=True)
    ]
    while sum(event.is_set() for event in events) < num_running:
        assert not any(stream.done() for stream in streams), [stream.exception() for stream in streams if stream.done()]
        await asyncio.sleep(0.01)
    sys.stdout.write("streaming\n")
    sys.stdout.flush()
    await asyncio.gather(*streams)


def start_client(url: str, models: list[str], *, num_running: int) -> "subprocess.Popen[bytes]":
    """Start a process with a connection for each model named; return when `num_running` of its streams have a token."""
    command = [sys.executable, __file__, url, str(num_running), *models]
    folder = Path(__file__).parent
    client = subprocess.Popen(command, cwd=folder, env={"PYTHONPATH": str(folder.parents[2])}, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"streaming\n"
    return client


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[3:], int(sys.argv[2])))
