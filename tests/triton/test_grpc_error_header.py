# SPDX-License-Identifier: Apache-2.0
"""What a client can do to Triton 2.51 with the header `triton_grpc_error: true`, and what is left of it: a short break.

Two requests in one stream, the first answered with an error while the second runs: tritonserver ends with SIGSEGV.
"""

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from raw_calls import arrays, infer_inputs
from running_server import PROJECT, RunningServer
from test_cancellation import wait_until

from clients.streaming import GenerateRequest, TritonClient

SLOW = {"provider": "simulated", "step_ms": 20.0}
HEADER = {"triton_grpc_error": "true"}
WRONG: dict[str, object] = {"text_input": "hello", "max_tokens": 0, "stream": True}
RIGHT: dict[str, object] = {"text_input": "hello", "max_tokens": 500, "stream": True}


def send(server: RunningServer, requests: list[dict[str, object]]) -> list[object]:
    """In one stream with the header; what comes until the stream fails."""
    responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: responses.put((result, error)), headers=HEADER)
        for tensors in requests:
            client.async_stream_infer("ensemble", infer_inputs(arrays(tensors)))
            if tensors is RIGHT:
                assert responses.get(timeout=10)[1] is None  # it runs
        errors: list[object] = []
        while not errors:
            _, error = responses.get(timeout=10)
            errors = [error] if error is not None else []
    return errors


def test_the_header_crashes_the_server_and_it_is_back_by_itself(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine=SLOW)
    triton = server.tritonserver()
    send(server, [RIGHT, WRONG])
    # If this fails, the server in use does not have the fault any more: then the warning of docs/contract.md can go.
    wait_until(lambda: not triton.is_running(), 10)
    wait_until(lambda: "ready again" in server.log(), 30)
    assert "tritonserver ended by itself with status" in server.log()
    with TritonClient(server.url) as client:
        chunks = client.generate(GenerateRequest(text_input="hello", max_tokens=5, return_num_output_tokens=True))
        assert sum(chunk.num_output_tokens or 0 for chunk in chunks) == 5


def test_one_request_in_a_stream_with_the_header_is_safe(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine=SLOW)
    before = server.descendants()
    for _ in range(20):
        [error] = send(server, [WRONG])
        assert "INVALID_ARG" in str(error)
    assert server.descendants() == before


@pytest.mark.parametrize("room", ["clients", "benchmarks"])
def test_no_client_of_ours_sends_it(room: str) -> None:
    sources = [path for path in Path(PROJECT / room).rglob("*.py") if "triton_grpc_error" in path.read_text()]
    assert sources == []
