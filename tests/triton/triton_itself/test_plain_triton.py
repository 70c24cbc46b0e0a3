# SPDX-License-Identifier: Apache-2.0
"""Faults of Triton 2.51 itself: shown on a model of a few lines, with nothing of ours but the way to start it.

If a test here fails, the server in use does not have the fault any more: then what it justifies can go, in
docs/known_limits.md and `clients.streaming`.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.process.installation import find_triton
from trireme.base.free_ports import free_ports

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

CONFIG = """
name: "counter" backend: "python" max_batch_size: 0
input [{ name: "n" data_type: TYPE_INT32 dims: [1] }] output [{ name: "i" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }] model_transaction_policy { decoupled: true }
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, count = request.get_response_sender(), pb_utils.get_input_tensor_by_name(request, "n").as_numpy()[0]
            for i in range(count):
                flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if i == count - 1 else 0
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("i", np.array([i], np.int32))]), flags=flags)
"""
NUM_STREAMS = 1_000


@pytest.fixture
def plain_triton(tmp_path: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Yield the server's process, and the address of its gRPC endpoint."""
    (tmp_path / "repository/counter/1").mkdir(parents=True)
    (tmp_path / "repository/counter/config.pbtxt").write_text(CONFIG)
    (tmp_path / "repository/counter/1/model.py").write_text(MODEL)
    http, gRPC, metrics = free_ports(3)  # noqa: N806
    found = find_triton()
    options = [f"--http-port={http}", f"--grpc-port={gRPC}", f"--metrics-port={metrics}"]
    if found.backend_directory is not None:
        options.append(f"--backend-directory={found.backend_directory}")
    command = [str(found.tritonserver), f"--model-repository={tmp_path / 'repository'}", *options]
    env = found.environment(run_dir_variable="TRIREME_UNUSED", run_dir=tmp_path)
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, env=env, stdout=log, stderr=log) as server:
        url = f"127.0.0.1:{gRPC}"
        asyncio.run(_wait_ready(url))
        yield psutil.Process(server.pid), url
        server.terminate()  # it removes its shared memory itself
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


async def _wait_ready(url: str) -> None:
    deadline_s = time.monotonic() + 60
    async with grpc.aio.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if (await stub.ServerReady(service_pb2.ServerReadyRequest())).ready:
                    return
            assert time.monotonic() < deadline_s, "not ready in time"
            await asyncio.sleep(0.2)


async def ask(url: str, model: str, *, is_cancelled_at_first: bool, num_streams: int = NUM_STREAMS) -> None:
    """Ask streams of one request each, 16 at a time, half-closed or cancelled at their first response."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="n", datatype="INT32", shape=[1])
    message.raw_input_contents.append(np.array([1], np.int32).tobytes())

    async def call_in_turn(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
        for _ in range(num_streams // 16):
            call = stub.ModelStreamInfer()
            await call.write(message)
            await call.read()
            if is_cancelled_at_first:
                call.cancel()
            else:
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF

    async with grpc.aio.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        await asyncio.gather(*(call_in_turn(stub) for _ in range(16)))


def growth_kib(triton: psutil.Process, url: str, model: str, *, is_cancelled_at_first: bool) -> float:
    """Return the growth of the server's memory for a stream, in KiB."""
    before = triton.memory_info().rss
    asyncio.run(ask(url, model, is_cancelled_at_first=is_cancelled_at_first))
    time.sleep(1)
    return (triton.memory_info().rss - before) / 1024 / NUM_STREAMS


def test_a_stream_that_is_cancelled_upon_an_error_leaves_memory_behind_or_ends_the_server(
    plain_triton: tuple[psutil.Process, str],
) -> None:
    triton, url = plain_triton
    asyncio.run(ask(url, "counter", is_cancelled_at_first=False))  # a warm-up
    assert growth_kib(triton, url, "counter", is_cancelled_at_first=False) < 1
    assert growth_kib(triton, url, "no_such_model", is_cancelled_at_first=False) < 1
    try:
        assert growth_kib(triton, url, "no_such_model", is_cancelled_at_first=True) > 5
    except (grpc.aio.AioRpcError, psutil.NoSuchProcess):
        assert not triton.is_running() or triton.status() == psutil.STATUS_ZOMBIE
