# SPDX-License-Identifier: Apache-2.0
"""HTTP as clients have it, beside Triton's own HTTP behind it: the same answers, but where Triton's are a fault.

A request goes to the server's port and to the port that its tritonserver has for itself.
"""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.http as httpclient
from killed_clients import ENDLESS, start_client
from process_words import words_of
from resident_memory import kept_by_a_round
from running_server import ENDPOINTS, RunningServer, deployment_text
from waiting import wait_idle, wait_until

TEXT = {"text_input": "Once upon a time", "max_tokens": 6}
OWN_MODELS = ["ensemble", "ensemble_graph", "tensorrt_llm_bls"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    engine = {"provider": "simulated", "step_ms": 5.0, "num_kv_blocks": 2048}
    text = deployment_text("http", engine=engine, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path_factory.mktemp("http")) as started:
        before = started.descendants()
        yield started
        assert started.descendants() == before, "a process has ended, or another has begun"
        assert "Traceback" not in started.log(), "a client fills the log"


def ask(port: int, path: str, body: object = None, *, method: str | None = None, **headers: str) -> tuple[int, Any]:
    """Return the status, and the body as JSON where it is that."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method or ("GET" if data is None else "POST"), path, data, names)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if text.startswith(b"data: "):
        return answer.status, whole(text)
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text.decode()


def whole(events: bytes) -> dict[str, Any]:
    """Return what the events of a stream say together: tokens may come in other pieces, and prompts in any order."""
    found: dict[int, dict[str, Any]] = {}
    for event in events.decode().removesuffix("\n\n").split("\n\n"):
        told = json.loads(event.removeprefix("data: "))
        index = told.get("batch_index", 0)
        told["text_output"] = found.get(index, {}).get("text_output", "") + told.get("text_output", "")
        found[index] = told
    return {str(index): told for index, told in found.items()} if "error" not in found[0] else found[0]


SAME = {
    "generate": ("ensemble/generate", TEXT),
    "a version": ("ensemble/versions/1/generate", TEXT),
    "an id": ("ensemble/generate", TEXT | {"id": "mine"}),
    "what is nested counts": ("ensemble/generate", {"text_input": "a", "parameters": {"max_tokens": 3, "top_k": 1}}),
    "lists": ("ensemble/generate", TEXT | {"stop_words": ["q", "zz"], "bad_words": [""]}),
    "what needs a model": ("ensemble/generate", TEXT | {"beam_width": 2}),
    "a tenant": ("ensemble/generate", TEXT | {"tenant": "a", "priority_class": "batch"}),
    "graph": ("ensemble_graph/generate", TEXT),
    "bls": ("tensorrt_llm_bls/generate", TEXT),
    "a stream": ("ensemble/generate_stream", TEXT | {"stream": True}),
    "a stream of the graph": ("ensemble_graph/generate_stream", TEXT | {"stream": True}),
    "a stream that does not": ("ensemble/generate_stream", TEXT),
    "a batch": ("ensemble/generate_stream", {"text_input": ["a", "b"], "max_tokens": [3, 3]}),
    "tokens": ("tensorrt_llm/generate", {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 4}),
    "other characters": ("ensemble/generate", {"text_input": '\u00fc \u20ac \U0001f98a \\ " \n', "max_tokens": 4}),
    "infer": (
        "preprocessing/infer",
        {
            "id": "7",
            "inputs": [
                {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": ["hello you"]},
                {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [1, 1], "data": [[5]]},
            ],
            "outputs": [{"name": "INPUT_ID"}, {"name": "REQUEST_INPUT_LEN"}],
        },
    ),
    "infer of what streams": ("ensemble/infer", {"inputs": []}),
    "no such model": ("nobody/generate", TEXT),
    "no such version": ("ensemble/versions/9/generate", TEXT),
    "nothing to do": ("ensemble/generate", {}),
    "too much of it": ("ensemble/generate", TEXT | {"max_tokens": 0}),
    "text for a number": ("ensemble/generate", TEXT | {"max_tokens": "6"}),
    "a number for text": ("ensemble/generate", {"text_input": 6, "max_tokens": 6}),
    "a fraction": ("ensemble/generate", TEXT | {"max_tokens": 6.5}),
    "a number for a truth": ("ensemble/generate", TEXT | {"stream": 1}),
    "no object": ("ensemble/generate", [TEXT]),
    "no json": ("ensemble/generate", b"{"),
}


@pytest.mark.parametrize("case", SAME)
def test_an_answer_is_what_tritons_own_http_says(server: RunningServer, case: str) -> None:
    path, body = SAME[case]
    (status, answer), (own_status, own) = (
        ask(port, f"/v2/models/{path}", body) for port in (server.http_port, server.own_http_port())
    )
    if isinstance(own, str) or own.keys() != {"error"}:
        assert (status, answer) == (own_status, own)
    else:  # the words may be others
        # Triton has 500 for JSON that it cannot read, and no status of its own for what is no object.
        assert status == {500: 400}.get(own_status, own_status), (answer, own)
        assert answer.keys() == {"error"}


def test_log_probabilities_are_what_tritons_own_http_says(compiled: RunningServer) -> None:
    ports = (compiled.http_port, compiled.own_http_port())
    told, own = (ask(port, "/v2/models/ensemble/generate", TEXT | {"return_log_probs": True}) for port in ports)
    assert told == own
    assert len(told[1]["output_log_probs"]) > 1


READ = [
    *["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/ensemble", "/v2/models/ensemble/versions/1"],
    *["/v2/models/ensemble/ready", "/v2/models/ensemble/config", "/v2/models/nobody", "/v2/models/nobody/config"],
    *["/v2/models/ensemble/versions/1/config", "/v2/nothing", "/", "/v2/models/ensemble/nothing", "/v3"],
]


@pytest.mark.parametrize("path", READ)
def test_what_is_read_is_passed_on(server: RunningServer, path: str) -> None:
    assert ask(server.http_port, path)[0] == ask(server.own_http_port(), path)[0]
    if path not in {"/v2/nothing", "/", "/v2/models/ensemble/nothing", "/v3"}:
        assert ask(server.http_port, path) == ask(server.own_http_port(), path)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_request_of_a_model_is_posted(server: RunningServer, method: str) -> None:
    assert ask(server.http_port, "/v2/models/ensemble/generate", TEXT, method=method)[0] == 405


def test_metrics_are_passed_on(server: RunningServer) -> None:
    status, page = ask(server.metrics_port, "/metrics")
    assert status == 200
    assert "nv_inference_request_success" in page
    assert ask(server.metrics_port, "/v2")[0] == 404


@pytest.mark.parametrize(
    "path", ["/v2/repository/index", "/v2/repository/models/ensemble/unload", "/v2/trace/setting", "/v2/logging"]
)
def test_who_has_no_key_changes_nothing_however_much_is_sent(server: RunningServer, path: str) -> None:
    for body in (b"{}", b"[" * 1_000_000, b"a" * 5_000_000):
        status, answer = ask(server.http_port, path, body)
        assert status == 403
        assert "expecting header 'trireme-control-key'" in answer["error"]


@pytest.mark.parametrize("is_binary", [False, True])
def test_the_official_client_sends_and_gets_tensors(server: RunningServer, is_binary: bool) -> None:
    tensors = {"QUERY": np.array([[b"hello you"]], np.object_), "REQUEST_OUTPUT_LEN": np.array([[5]], np.int32)}
    types = {"QUERY": "BYTES", "REQUEST_OUTPUT_LEN": "INT32"}
    found = []
    for port in (server.http_port, server.own_http_port()):
        with httpclient.InferenceServerClient(f"127.0.0.1:{port}") as client:
            inputs = []
            for name, array in tensors.items():
                inputs.append(httpclient.InferInput(name, list(array.shape), types[name]))
                inputs[-1].set_data_from_numpy(array, binary_data=is_binary)
            for packed in (None, "gzip", "deflate"):
                result = client.infer(
                    *["preprocessing", inputs],
                    outputs=[httpclient.InferRequestedOutput("INPUT_ID", binary_data=is_binary)],
                    request_compression_algorithm=packed,
                    response_compression_algorithm=packed,
                )
                found.append(result.as_numpy("INPUT_ID").tolist())
            found.append(client.infer("preprocessing", inputs).as_numpy("INPUT_ID").tolist())
    assert all(each == found[0] for each in found)
    assert len(found[0][0]) > 1


UNKNOWN = ["temprature", "streaming", "image_bytes", "triton_enable_empty_final_response", "trireme-stream"]


@pytest.mark.parametrize("model", OWN_MODELS)
@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
@pytest.mark.parametrize("key", UNKNOWN)
def test_a_key_that_no_input_has_is_refused_by_name(server: RunningServer, model: str, endpoint: str, key: str) -> None:
    for body in (TEXT | {key: 1}, TEXT | {"parameters": {key: 1}}):
        status, answer = ask(server.http_port, f"/v2/models/{model}/{endpoint}", body)
        assert status == 400
        assert f"[INVALID_ARG field={key}]" in answer["error"]
        assert "docs/contract.md" in answer["error"]


def test_the_input_that_was_probably_meant_is_named(server: RunningServer) -> None:
    _, answer = ask(server.http_port, "/v2/models/ensemble/generate", TEXT | {"temprature": 1.0})
    assert "temperature is one" in answer["error"]


def test_drafts_are_asked_of_the_model_that_has_them(server: RunningServer) -> None:
    _, answer = ask(server.http_port, "/v2/models/ensemble/generate", TEXT | {"num_draft_tokens": 3})
    assert "[INVALID_ARG field=num_draft_tokens" in answer["error"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("max_tokens", 2**32 + 4), ("max_tokens", -(2**31) - 1), ("max_tokens", 10**400), ("seed", -1)],
        *[("seed", 2**64), ("temperature", 1e39), ("temperature", True), ("max_tokens", False), ("max_tokens", None)],
        *[("max_tokens", {}), ("stop_words", [["a"], ["b"]]), ("stop_words", ["a", 1]), ("top_k", [1, 2])],
    ],
)
def test_a_number_that_does_not_fit_is_refused_by_name(server: RunningServer, key: str, value: object) -> None:
    status, answer = ask(server.http_port, "/v2/models/ensemble/generate", TEXT | {key: value})
    assert status == 400
    assert f"[INVALID_ARG field={key}" in answer["error"] or key == "top_k", answer


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    engine = {"provider": "simulated", "step_ms": 20.0, "max_num_seqs": 64, "num_kv_blocks": 16_384}
    text = deployment_text("leaving", engine=engine, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path_factory.mktemp("leaving")) as started:
        yield started


@pytest.mark.parametrize("model", OWN_MODELS)
def test_a_client_that_leaves_generate_stops_it(slow: RunningServer, model: str) -> None:
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", slow.http_port, timeout=20)
        connection.request("POST", f"/v2/models/{model}/generate", json.dumps(TEXT | {"max_tokens": ENDLESS}))
        wait_until(lambda: slow.used_kv_blocks() > 0, 5)
        assert connection.sock is not None
        connection.sock.close()
        connection.close()
        wait_idle(slow, 2)  # 30 s is what it would take
    assert slow.num_streams() == 0


def test_a_killed_client_of_the_graph_stops_its_generation_at_once(slow: RunningServer) -> None:
    triton, memory = slow.tritonserver(), []
    for _ in range(6):
        client = start_client(slow.url, ["ensemble_graph"] * 25, num_running=25)
        client.kill()
        client.communicate()
        wait_idle(slow, 2)
        # The text of left streams is dropped by the next abandoned-stream check, which a busy machine does late.
        wait_until(lambda: slow.num_streams() == 0, 20)
        memory.append(triton.memory_info().rss)
    assert kept_by_a_round(memory) < 5 * 2**20
    assert triton == slow.tritonserver()


def test_a_client_that_leaves_before_its_prompt_is_read_is_stopped(slow: RunningServer) -> None:
    for model in OWN_MODELS:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", slow.http_port)) as client:
                body = json.dumps(TEXT | {"max_tokens": ENDLESS}).encode()
                head = f"POST /v2/models/{model}/generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)
    wait_until(lambda: slow.num_streams() == 0, 5)
    time.sleep(0.3)
    wait_idle(slow, 2)


POST = b"POST /v2/models/ensemble/generate HTTP/1.1\r\nhost: x\r\n"


async def _slow_connections(port: int, sent: bytes, count: int) -> list[asyncio.StreamWriter]:
    found = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        found.append(writer)
    return found


HALVES = {
    "nothing": b"",
    "half a head": POST + b"",
    "half a body": POST + b"content-length: 1000\r\n\r\n{",
    "half a chunk": POST + b"transfer-encoding: chunked\r\n\r\n5\r\n{",
}


@pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES)
def test_slow_connections_keep_nobody_out(server: RunningServer, sent: bytes) -> None:
    async def work() -> None:
        held = await _slow_connections(server.http_port, sent, 200) + await _slow_connections(
            server.grpc_port, sent, 200
        )
        held += await _slow_connections(server.metrics_port, sent, 100)
        status, _ = await asyncio.to_thread(ask, server.http_port, "/v2/models/ensemble/generate", TEXT)
        assert status == 200
        assert (await asyncio.to_thread(ask, server.metrics_port, "/metrics"))[0] == 200
        for writer in held:
            writer.close()

    asyncio.run(work())


WRONG_HEADS = {
    "no http": b"\x00\x01\x02\r\n\r\n",
    "a long line": b"GET /v2/" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a long query": b"GET /v2?" + b"a=b&" * 2_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a long header": b"GET /v2 HTTP/1.1\r\nhost: x\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET /v2 HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 5_000 + b"\r\n",
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a length below 0": POST + b"content-length: -2\r\n\r\n{}",
    "a length beyond all": POST + b"content-length: 99999999999999999999\r\n\r\n{}",
    "a wrong chunk": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a wrong header length": b"POST /v2/models/preprocessing/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
    b"inference-header-content-length: 99999999999999999999999\r\n\r\n{}",
    "an encoded path": b"GET /v2/models/%00%2f..%2f HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("sent", WRONG_HEADS.values(), ids=WRONG_HEADS)
def test_a_wrong_head_is_answered_or_hung_up_on(server: RunningServer, sent: bytes) -> None:
    for port in (server.http_port, server.metrics_port):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while data := client.recv(65_536):
                    answer += data
            except ConnectionError:
                continue
            assert not answer or 400 <= int(answer.split()[1]) < 500 or sent.startswith(b"GET /v2?"), answer[:200]


def test_a_frontend_that_dies_or_hangs_is_started_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = deployment_text("again", engine={"provider": "simulated", "step_ms": 5.0}, triton={"hang_timeout_s": 2})
    with RunningServer(text, tmp_path_factory.mktemp("again")) as server:
        triton = server.tritonserver()
        for number, end in ((9, "kill"), (19, "stop")):
            for kind in ("grpc", "http"):
                frontend(server, kind).send_signal(number)
                wait_until(lambda kind=kind, end=end: _told(server, kind, end), 15)  # type: ignore[misc]
                assert ask(server.http_port, "/v2/models/ensemble/generate", TEXT)[0] == 200
                wait_until(lambda: _streams(server), 15)
        assert server.tritonserver() == triton
        assert server.log().count("starting it again") == 4


def _told(server: RunningServer, kind: str, end: str) -> bool:
    why = "ended with status -9" if end == "kill" else "has been silent for 2 s"
    return f"the {kind} frontend {why}; starting it again" in server.log()


def frontend(server: RunningServer, kind: str) -> psutil.Process:
    [found] = [each for each in server.descendants() if f'"kind":"{kind}"' in " ".join(words_of(each))]
    return found


def _streams(server: RunningServer) -> bool:
    from clients.streaming import GenerateRequest, TritonClient  # noqa: PLC0415
    from trireme.base.errors import Unavailable  # noqa: PLC0415

    try:
        with TritonClient(server.url) as client:
            return bool(list(client.generate(GenerateRequest(text_input="hello", max_tokens=3))))
    except Unavailable:
        return False
