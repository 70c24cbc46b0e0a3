# SPDX-License-Identifier: Apache-2.0
"""The other answers of a newer tritonserver over gRPC, stood in for by `newer_triton_grpc`, for our clients."""

import asyncio
import os
import queue
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import tritonclient.grpc as grpcclient
from newer_triton import write_newer_triton
from newer_triton_grpc import STOPPING
from plain_triton import PlainTriton, write_model
from process_words import words_of
from raw_calls import StreamFailed, arrays, infer_inputs, stream
from running_server import ENDPOINTS, RunningServer, deployment_text
from test_shutdown import SLOW, interrupt_while_streaming
from waiting import wait_until

from clients.error_tokens import parse_error
from clients.streaming import GenerateRequest, TritonClient
from serving.doctor.server_features import ServerFeatures
from serving.process.installation import RECORD
from trireme.base.errors import Unavailable

STEP_S = 0.02
CONFIG = """max_batch_size: 1 model_transaction_policy { decoupled: true }
input [{ name: "text_input" data_type: TYPE_STRING dims: [1] }, { name: "max_tokens" data_type: TYPE_INT32 dims: [1] },
       { name: "stream" data_type: TYPE_BOOL dims: [1] optional: true }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [-1] }]
instance_group [{ count: 1 kind: KIND_CPU }]"""
CODE = f"""import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy().item())
            threading.Thread(target=self.send, args=(request.get_response_sender(), count)).start()

    def send(self, sender, count):
        word = pb_utils.Tensor("text_output", np.array([b"x"], dtype=np.object_))
        for number in range(count):
            time.sleep({STEP_S})
            last = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if number == count - 1 else 0
            sender.send(pb_utils.InferenceResponse([word]), flags=last)
"""
GRAPH = """name: "graph" platform: "ensemble" max_batch_size: 1
input [{ name: "text_input" data_type: TYPE_STRING dims: [1] }, { name: "max_tokens" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [-1] }]
ensemble_scheduling { step [{ model_name: "ensemble" model_version: -1
  input_map [{ key: "text_input" value: "text_input" }, { key: "max_tokens" value: "max_tokens" }]
  output_map { key: "text_output" value: "text_output" } }] }
"""


@pytest.fixture
def newer_path(tmp_path: Path) -> str:
    """Return a PATH on which the newer server is found first."""
    return f"{write_newer_triton(tmp_path / 'bin', RECORD)}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Write a model that streams words as slowly as it is told, and an ensemble of it."""
    write_model(tmp_path / "models", "ensemble", config=CONFIG, code=CODE)
    (tmp_path / "models" / "graph" / "1").mkdir(parents=True)
    (tmp_path / "models" / "graph" / "config.pbtxt").write_text(GRAPH)
    return tmp_path / "models"


def is_healthy(url: str) -> bool:
    """Return the answer of gRPC's own health check."""
    with grpc.insecure_channel(url) as channel:
        return bool(channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01")


@pytest.mark.parametrize("is_newer", [False, True], ids=["installed", "newer"])
def test_a_dead_stub_is_told_over_grpc_too(
    is_newer: bool,
    models: Path,
    tmp_path: Path,
    newer_path: str,
    asked_server: ServerFeatures,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_newer:
        monkeypatch.setenv("PATH", newer_path)
    with (
        PlainTriton(models, tmp_path) as server,
        grpcclient.InferenceServerClient(server.url) as client,
        TritonClient(server.url) as ours,
    ):
        asked = ("ensemble", "graph")
        assert (client.is_server_ready(), *map(client.is_model_ready, asked)) == (True, True, True)
        assert ours.is_ready(model="graph")
        assert is_healthy(server.url)
        for process in psutil.Process(server.process.pid).children(recursive=True):
            if any(part.endswith("/ensemble/1/model.py") for part in words_of(process)):
                process.kill()
        is_told = is_newer or asked_server.is_unready_with_dead_stub
        wait_until(lambda: client.is_server_ready() is not is_told, 5)
        assert (client.is_server_ready(), *map(client.is_model_ready, asked)) == (not is_told, not is_told, True)
        assert is_healthy(server.url) is not is_told
        assert ours.is_ready(model="graph") is not is_told, "it says what the server says of itself"


@pytest.fixture
def stopping(
    models: Path, tmp_path: Path, newer_path: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[PlainTriton]:
    """Yield a newer server that waits for streams at its end, half a minute or as long as the parameter says."""
    monkeypatch.setenv("PATH", newer_path)
    with PlainTriton(models, tmp_path, options=(f"--exit-timeout-secs={getattr(request, 'param', 30)}",)) as server:
        yield server


def words(url: str, max_tokens: int, started: "queue.Queue[None]") -> int:
    """Return how many words came to our client; the first is told."""
    asked, count = GenerateRequest(text_input="x", max_tokens=max_tokens, stream=True), 0
    with TritonClient(url) as client:
        for _ in client.generate(asked):
            count += 1
            if count == 1:
                started.put(None)
    return count


def test_a_server_that_ends_finishes_a_stream_and_refuses_the_next_request_by_name(stopping: PlainTriton) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    started: queue.Queue[None] = queue.Queue()
    with ThreadPoolExecutor(1) as pool, grpcclient.InferenceServerClient(stopping.url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        inputs = infer_inputs(arrays({"text_input": "x", "max_tokens": 1}))
        client.async_stream_infer("ensemble", inputs)
        assert answers.get(timeout=30)[1] is None
        running = pool.submit(words, stopping.url, 60, started)
        started.get(timeout=30)
        stopping.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not _is_open(stopping.url), 5)
        client.async_stream_infer("ensemble", inputs)
        refused = parse_error(str(answers.get(timeout=30)[1]))
        assert (type(refused), refused.facts.get("reason")) == (Unavailable, "stopping"), STOPPING
        client.stop_stream()
        assert running.result(timeout=30) == 60
        assert stopping.process.wait(30) == 0


def _is_open(url: str) -> bool:
    with TritonClient(url) as client:
        return client.is_ready(timeout_s=1)


@pytest.mark.parametrize("stopping", [1], indirect=True)
def test_a_stream_that_is_cut_at_the_exit_timeout_is_told_from_one_that_ended(stopping: PlainTriton) -> None:
    started: queue.Queue[None] = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(words, stopping.url, 1000, started)
        started.get(timeout=30)
        stopping.process.send_signal(signal.SIGTERM)
        with pytest.raises(Unavailable) as cut:
            running.result(timeout=30)
    assert cut.value.facts["reason"] == "connection_lost"
    assert stopping.process.wait(30) == -signal.SIGSEGV


def test_an_output_that_is_named_twice_is_refused(stopping: PlainTriton) -> None:
    asked = {"text_input": "x", "max_tokens": 1}
    assert len(list(stream(stopping.url, "ensemble", asked, outputs=["text_output"]))) == 1
    with pytest.raises(StreamFailed, match="output 'text_output' already exists in request"):
        list(stream(stopping.url, "ensemble", asked, outputs=["text_output", "text_output"]))


def test_a_drain_before_it_ends_every_stream_though_an_idle_one_is_cut(tmp_path: Path, newer_path: str) -> None:
    text = deployment_text("live", engine=SLOW, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path / "live", below=("env", f"PATH={newer_path}")) as server:
        ended: queue.Queue[Any] = queue.Queue()
        with grpcclient.InferenceServerClient(server.url) as idle:
            idle.start_stream(lambda result, error: ended.put(error or result))
            idle.async_stream_infer("ensemble", infer_inputs(arrays({"text_input": "x", "max_tokens": 1})))
            assert not isinstance(ended.get(timeout=30), Exception)
            told = asyncio.run(interrupt_while_streaming(server, 60, signal.SIGTERM, models=["ensemble_graph"] * 8))
            assert told == [60] * 8
            began_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began_s < 30
        assert "restarting" not in server.log()
