# SPDX-License-Identifier: Apache-2.0
"""Responses past Triton, on the real server: as a client sees them, as Triton counts them, and when one side dies."""

import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from process_words import words_of
from running_server import ENDPOINTS, PROJECT, RunningServer, deployment_text
from tritonclient.grpc import service_pb2_grpc
from waiting import wait_idle, wait_until

from clients.infer_messages import GenerateRequest, encode_request

ENGINE = {"provider": "simulated", "step_ms": 20.0, "num_kv_blocks": 4096}
TOKENS = 24
PROMPT = "the quick brown fox jumps over the lazy dog"
PROMTOOL = PROJECT / ".tools/prometheus/usr/bin/promtool"


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    text = deployment_text("direct", engine=ENGINE, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path_factory.mktemp("direct")) as server:
        connect(server)
        yield server


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    text = deployment_text("direct", engine=ENGINE, endpoints=ENDPOINTS, triton={"has_direct_responses": False})
    with RunningServer(text, tmp_path_factory.mktemp("through")) as server:
        yield server


def connect(server: RunningServer) -> None:
    """Ask until the models and the frontend are connected: the first requests go through Triton."""
    models = ("ensemble", "tensorrt_llm_bls")
    for model in models:
        ask(server, message(model=model, stream=True))
    wait_until(lambda: num_models(server) == len(models), 30)


def grpc_frontend(server: RunningServer) -> psutil.Process:
    [found] = [each for each in server.descendants() if any('"kind":"grpc"' in part for part in words_of(each))]
    return found


def num_models(server: RunningServer) -> int:
    """Return how many models are connected to the frontend."""
    sockets = grpc_frontend(server).net_connections("unix")
    return sum(str(each.laddr).endswith(".replies") for each in sockets) - 1  # one listens


def message(
    *, model: str = "ensemble", request_id: str = "r1", version: str = "", max_tokens: int = TOKENS, **more: Any
) -> Any:
    request = GenerateRequest(text_input=PROMPT, max_tokens=max_tokens, **more)
    return encode_request(request, model=model, model_version=version, request_id=request_id)


def ask(server: RunningServer, *messages: Any) -> list[Any]:
    """Return the responses of one stream."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return list(stub.ModelStreamInfer(iter(messages), timeout=60))


def text(responses: list[Any]) -> str:
    parts = []
    for each in responses:
        raw = dict(
            zip([o.name for o in each.infer_response.outputs], each.infer_response.raw_output_contents, strict=True)
        )
        parts.append(raw["text_output"][4:] if "text_output" in raw else b"")
    return b"".join(parts).decode()


def num_tokens(responses: list[Any]) -> int:
    """Return how many tokens responses tell of, which were asked for their numbers."""
    found = 0
    for each in list(responses):
        names = [output.name for output in each.infer_response.outputs]
        if "num_output_tokens" in names:
            raw = each.infer_response.raw_output_contents[names.index("num_output_tokens")]
            found += int.from_bytes(raw, "little")
    return found


def forms(responses: list[Any]) -> set[tuple[object, ...]]:
    """Return the forms of responses: each with what names it, and its tensors with their types and shapes.

    How many tokens a response has is a matter of the moment, so a dimension of tokens is not looked at.
    """
    found = set[tuple[object, ...]]()
    for each in responses:
        assert not each.error_message
        response = each.infer_response
        tensors = tuple(
            (o.name, o.datatype, tuple(o.shape)[:-1] if o.name in {"token_ids", "output_log_probs"} else tuple(o.shape))
            for o in response.outputs
        )
        parameters = frozenset((name, str(value)) for name, value in response.parameters.items())
        found.add((response.model_name, response.model_version, response.id, parameters, tensors))
    return found


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "counts": {"return_num_input_tokens": True, "return_num_output_tokens": True, "return_finish_reason": True},
    "ids": {"return_token_ids": True, "return_release": True},
    "perf": {"return_perf_metrics": True},
    "several": {"num_return_sequences": 3, "seed": 5},
    "whole": {"stream": False},
    "without_id": {"request_id": ""},
    "bls": {"model": "tensorrt_llm_bls"},
    "graph": {"model": "ensemble_graph"},
}


@pytest.mark.parametrize("name", CASES)
def test_a_client_sees_no_difference(direct: RunningServer, through: RunningServer, name: str) -> None:
    asked = message(**{"stream": True, **CASES[name]})
    found, expected = ask(direct, asked), ask(through, asked)
    assert text(found) == text(expected) or name == "several"
    assert sorted(text(found)) == sorted(text(expected))
    assert forms(found) == forms(expected)
    ends = [each.infer_response.parameters["triton_final_response"].bool_param for each in found]
    assert ends == [False] * (len(found) - 1) + [True]


def test_requests_of_one_stream_have_their_own_answers(direct: RunningServer) -> None:
    ids = [f"r{number}" for number in range(12)]
    models = ["ensemble", "tensorrt_llm_bls", "ensemble_graph"]
    asked = [
        message(request_id=name, model=models[index % 3], stream=True, seed=index) for index, name in enumerate(ids)
    ]
    alone = {each.id: text(ask(direct, each)) for each in asked}
    found = ask(direct, *asked)
    for name in ids:
        assert text([each for each in found if each.infer_response.id == name]) == alone[name]


def test_the_time_between_tokens_is_a_histogram_on_the_page(direct: RunningServer) -> None:
    before = direct.metric("trireme_inter_token_latency_seconds_count", model="ensemble")
    num_responses = len(ask(direct, message(stream=True)))

    def num_more() -> float:
        return direct.metric("trireme_inter_token_latency_seconds_count", model="ensemble") - before

    wait_until(lambda: num_more() >= num_responses - 2, 10)
    with urllib.request.urlopen(f"http://127.0.0.1:{direct.metrics_port}/metrics", timeout=5) as response:
        page = response.read()
    assert b"# TYPE trireme_inter_token_latency_seconds histogram\n" in page
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, check=False)
    said = checked.stdout + checked.stderr
    assert b"inter_token" not in said, said
    assert b"error while linting" not in said, said


class Slow:
    """A stream of a long answer, read on a thread."""

    def __init__(self, server: RunningServer, *, max_tokens: int = 1_000) -> None:
        self.responses: list[Any] = []
        self.error: grpc.RpcError | None = None
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        request = GenerateRequest(text_input=PROMPT, max_tokens=max_tokens, stream=True, return_num_output_tokens=True)
        asked = encode_request(request, model="ensemble", model_version="", request_id="slow")
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._call = stub.ModelStreamInfer(iter([asked]), timeout=120)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: len(self.responses) > 20, 30)

    def _read(self) -> None:
        try:
            self.responses.extend(self._call)
        except grpc.RpcError as exc:
            self.error = exc

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._channel.close()


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_triton_that_stands_still_holds_up_the_last_response_alone(
    direct: RunningServer, through: RunningServer, is_direct: bool
) -> None:
    server = direct if is_direct else through
    slow = Slow(server, max_tokens=100)
    triton = server.tritonserver()
    triton.send_signal(signal.SIGSTOP)
    try:
        if is_direct:
            wait_until(
                lambda: num_tokens(slow.responses) >= 90, 8
            )  # a server that is silent for 10 s is taken for dead
            assert not slow.is_over
        else:
            time.sleep(0.3)  # what had left Triton before
            num_before = len(slow.responses)
            time.sleep(1)
            assert len(slow.responses) == num_before
    finally:
        triton.send_signal(signal.SIGCONT)
    slow.end()
    assert slow.error is None
    assert text(slow.responses) == text(ask(server, message(stream=True, max_tokens=100)))


def test_a_model_that_dies_ends_the_stream_behind_its_last_token(tmp_path: Path) -> None:
    with RunningServer(deployment_text("direct", engine=ENGINE, endpoints=ENDPOINTS), tmp_path) as server:
        connect(server)
        slow = Slow(server)
        server.stub("ensemble").send_signal(signal.SIGKILL)
        slow.end()
        last = slow.responses[-1]
        assert last.error_message or slow.error is not None
        good = [each for each in slow.responses if not each.error_message]
        assert text(good)
        wait_until(server.is_ready, 60)
        assert text(ask(server, message(stream=True)))
        server.hurry()


def test_a_frontend_that_dies_ends_its_streams_and_the_next_one_takes_responses_too(tmp_path: Path) -> None:
    with RunningServer(deployment_text("direct", engine=ENGINE, endpoints=ENDPOINTS), tmp_path) as server:
        connect(server)
        slow = Slow(server)
        grpc_frontend(server).send_signal(signal.SIGKILL)
        slow.end()
        assert slow.error is not None
        assert slow.error.code() is grpc.StatusCode.UNAVAILABLE
        wait_idle(server, 10)
        wait_until(lambda: is_answering(server), 30)
        connect(server)
        assert server.num_streams() == 0
        server.hurry()


def is_answering(server: RunningServer) -> bool:
    try:
        return bool(text(ask(server, message(stream=True))))
    except grpc.RpcError:
        return False


def test_a_client_that_leaves_ends_its_generation(direct: RunningServer) -> None:
    slow = Slow(direct)
    slow._call.cancel()
    slow.end()
    wait_idle(direct, 10)
