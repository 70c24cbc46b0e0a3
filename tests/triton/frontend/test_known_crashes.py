# SPDX-License-Identifier: Apache-2.0
"""Crashes that a client causes in a Triton that it reaches directly, and none of them through the frontends.

With the header `triton_grpc_error: true`, two requests in one stream, the first answered with an error while the second
runs: SIGSEGV; seldom one request alone that is answered with an error. Over HTTP: JSON that is nested too deeply, in
whose parser the stack overflows, unless the server limits it; and 5 MB of any body of a form's content type, which is
curl's and urllib's default: libevhtp reads it as a query and takes twice its length from the stack
(`evhtp_parse_query_wflags`). With a tensor of no elements whose other dims are too many for numpy: the stub of the
model that takes it aborts. With an output of text wanted as classes (KServe's classification extension): 2.51 divides
by the size of a text, which is none.

Of what a server may or may not have, it is asked (`asked_server`). If a test fails because a server lives that has
no answer of that kind, the fault is gone there: then docs/support.md and docs/frontend.md are to say so.
"""

import asyncio
import contextlib
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import psutil
import pytest
import tritonclient.grpc as grpcclient
from fuzzed_requests import Given, Sent, numbers, strings
from raw_calls import arrays, infer_inputs
from running_server import ENDPOINTS, PROJECT, RunningServer, deployment_text
from test_fuzz import LOST, ask_grpc
from test_http_frontend import ask as ask_http
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient
from serving.doctor.server_features import ServerFeatures

SLOW = {"provider": "simulated", "step_ms": 20.0}
HEADER = {"triton_grpc_error": "true"}
WRONG: dict[str, object] = {"text_input": "hello", "max_tokens": 0, "stream": True}
RIGHT: dict[str, object] = {"text_input": "hello", "max_tokens": 500, "stream": True}
BARE = {"is_guarded": False, "restart_backoff_s": 0.0, "max_restarts": 100}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server as it is served: nothing here ends it."""
    text = deployment_text("guarded", engine=SLOW, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path_factory.mktemp("guarded")) as server:
        before = server.descendants()
        yield server
        assert server.descendants() == before, "a process has ended, or another has begun"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server without its frontends, which tests crash as often as they like."""
    text = deployment_text("bare", engine=SLOW, endpoints=["ensemble", "ensemble_graph"], triton=BARE)
    with RunningServer(text, tmp_path_factory.mktemp("bare")) as server:
        yield server


def send(server: RunningServer, requests: list[dict[str, object]]) -> list[object]:
    """Send requests in one stream with the header; return what comes until the stream fails."""
    responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: responses.put((result, error)), headers=HEADER)
        for tensors in requests:
            try:
                client.async_stream_infer("ensemble", infer_inputs(arrays(tensors)))
            except InferenceServerException as exc:  # the stream has failed before it could be used
                return [exc]
            if tensors is RIGHT:
                assert responses.get(timeout=10)[1] is None  # it runs
        errors: list[object] = []
        while not errors:
            _, error = responses.get(timeout=10)
            errors = [error] if error is not None else []
    return errors


def test_the_header_crashes_the_server_and_it_is_back_by_itself(bare: RunningServer) -> None:
    triton = bare.tritonserver()
    for _ in range(10):  # freed memory is read, and on a busy machine sometimes it is still what it was
        send(bare, [RIGHT, WRONG])
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not triton.is_running(), 2)
            break
    assert_it_died_and_is_back(bare, triton)


def assert_it_died_and_is_back(server: RunningServer, triton: psutil.Process) -> None:
    wait_until(lambda: not triton.is_running(), 10)
    wait_until(lambda: is_another_ready(server, triton), 30)
    assert "tritonserver ended by itself with status" in server.log()
    with TritonClient(server.url) as client:
        chunks = client.generate(GenerateRequest(text_input="hello", max_tokens=5, return_num_output_tokens=True))
        assert sum(chunk.num_output_tokens or 0 for chunk in chunks) == 5


def is_another_ready(server: RunningServer, triton: psutil.Process) -> bool:
    with contextlib.suppress(ValueError):  # there is none at this moment
        return server.tritonserver() != triton and server.is_ready()
    return False


def test_through_the_frontend_the_header_does_nothing(guarded: RunningServer) -> None:
    errors = send(guarded, [RIGHT, WRONG])
    assert "INVALID_ARG" in str(errors[0])  # in the stream, as without the header


EMPTY_AND_HUGE = Given("INT32", (1, 0, 2**62), b"")


def test_a_tensor_without_elements_but_with_a_huge_dim_crashes_a_stub_and_it_is_back_by_itself(
    bare: RunningServer,
) -> None:
    triton, stub = bare.tritonserver(), bare.stub("postprocessing")
    kind, _ = asyncio.run(ask(bare, Sent("postprocessing", {"TOKENS_BATCH": EMPTY_AND_HUGE})))
    assert kind == LOST
    wait_until(lambda: not stub.is_running(), 10)
    wait_until(lambda: is_another_ready(bare, triton), 30)
    assert "the process of model postprocessing died; starting it again" in bare.log()


def test_through_the_frontend_such_a_tensor_is_refused_by_name(guarded: RunningServer) -> None:
    kind, told = asyncio.run(ask(guarded, Sent("postprocessing", {"TOKENS_BATCH": EMPTY_AND_HUGE})))
    assert kind == "refused: INVALID_ARGUMENT"
    assert "[INVALID_ARG field=TOKENS_BATCH" in told
    assert "4611686018427387904" in told


def classes_wanted(model: str) -> Any:
    message = Sent(model, {"text_input": strings(b"hello"), "max_tokens": numbers("INT32", [3])}).message()
    message.outputs.add(name="text_output").parameters["classification"].int64_param = 3
    return message


def ask_whole(server: RunningServer, message: Any) -> list[str]:
    """Return the errors of the responses."""
    with grpc.insecure_channel(server.url) as channel:
        calls = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]), timeout=10)
        return [response.error_message for response in calls]


def test_classes_of_a_text_crash_the_server_or_are_refused_and_it_is_back_by_itself(
    bare: RunningServer,
) -> None:
    triton = bare.tritonserver()
    try:
        errors = ask_whole(bare, classes_wanted("ensemble"))
    except grpc.RpcError:
        assert_it_died_and_is_back(bare, triton)
    else:  # newer servers say so
        assert "class result not available for output due to unsupported type" in errors[0]


def test_through_the_frontend_classes_are_refused_by_name(guarded: RunningServer) -> None:
    triton = guarded.tritonserver()
    for model in ("ensemble", "ensemble_graph", "tensorrt_llm_bls"):
        with pytest.raises(grpc.RpcError, match="the output text_output is no classification"):
            ask_whole(guarded, classes_wanted(model))
        outputs = [{"name": "text_output", "parameters": {"classification": 3}}]
        inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"]}]
        body = {"inputs": inputs, "outputs": outputs}
        status, answer = ask_http(guarded.http_port, f"/v2/models/{model}/infer", body)
        assert status == 400
        assert "the output text_output is no classification" in answer["error"]
    assert triton == guarded.tritonserver()


def test_a_batch_of_none_is_refused(simulated: RunningServer) -> None:
    # With upstream's `reshape` of the engine step's scalars it would be the end of the server.
    none = Given("INT32", (0, 1), b"")
    before = simulated.descendants()
    sent = Sent("tensorrt_llm", {"input_lengths": none, "request_output_len": none})
    assert asyncio.run(ask(simulated, sent))[0] == "failed"
    assert simulated.descendants() == before


async def ask(server: RunningServer, sent: Sent) -> tuple[str, str]:
    async with grpc.aio.insecure_channel(server.url) as channel:
        return await ask_grpc(service_pb2_grpc.GRPCInferenceServiceStub(channel), sent)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm"])
def test_deeply_nested_json_is_refused_or_crashes_the_server_and_it_is_back_by_itself(
    bare: RunningServer, asked_server: ServerFeatures, model: str
) -> None:
    triton = bare.tritonserver()
    assert nested(bare, model, 10_000) == 400
    assert triton.is_running()
    if asked_server.limits_json_depth:
        assert nested(bare, model, 1_000_000) == 400
        assert triton.is_running()
        return
    assert nested(bare, model, 1_000_000) is None
    assert_it_died_and_is_back(bare, triton)


def test_five_megabytes_of_json_are_answered_or_crash_the_server_and_it_is_back_by_itself(
    bare: RunningServer, asked_server: ServerFeatures
) -> None:
    triton = bare.tritonserver()
    assert generate(bare, "ensemble", b'"%s"' % (b"a" * 3_000_000)) == 400  # far longer than it may be
    assert triton.is_running()
    if asked_server.limits_http_bytes:
        assert generate(bare, "ensemble", b'"%s"' % (b"a" * 5_000_000)) == 400
        assert triton.is_running()
        return
    assert generate(bare, "ensemble", b'"%s"' % (b"a" * 5_000_000)) is None
    assert_it_died_and_is_back(bare, triton)


@pytest.mark.parametrize("depth", [10, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm", "nobody"])
def test_through_the_frontend_deep_json_is_refused(guarded: RunningServer, model: str, depth: int) -> None:
    assert nested(guarded, model, depth) == (404 if model == "nobody" else 400)


@pytest.mark.parametrize(("num_bytes", "status"), [(5_000_000, 400), (10_000_000, 400), (100_000_000, 413)])
def test_through_the_frontend_long_texts_are_refused(guarded: RunningServer, num_bytes: int, status: int) -> None:
    assert generate(guarded, "ensemble", b'"%s"' % (b"a" * num_bytes)) == status


def nested(server: RunningServer, model: str, depth: int) -> int | None:
    """Return the status of the answer to a list in a list, `depth` of them; None: there was no answer."""
    return generate(server, model, b"[" * depth + b"]" * depth)


def generate(server: RunningServer, model: str, text_input: bytes) -> int | None:
    """Return the status of the answer to a JSON value as `text_input`; None: there was no answer."""
    body = b'{"text_input": %s}' % text_input
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}/v2/models/{model}/generate", data=body)
    try:
        urllib.request.urlopen(request, timeout=20).close()
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code
    except OSError:
        return None
    return 200


def test_one_request_in_a_stream_with_the_header_is_answered_or_ends_the_server_which_is_then_back_by_itself(
    bare: RunningServer,
) -> None:
    triton = bare.tritonserver()
    for _ in range(20):
        [error] = send(bare, [WRONG])
        if "INVALID_ARG" not in str(error):  # seldom, and more often on a busy machine
            assert_it_died_and_is_back(bare, triton)
            return
    assert triton.is_running()


@pytest.mark.parametrize("room", ["clients", "benchmarks"])
def test_no_client_of_ours_sends_it(room: str) -> None:
    sources = [path for path in Path(PROJECT / room).rglob("*.py") if "triton_grpc_error" in path.read_text()]
    assert sources == []
