# SPDX-License-Identifier: Apache-2.0
"""A deployment with `decoupled: false` on the real server: unary clients, which share the engine's batch, too."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from raw_calls import Array, infer_inputs
from running_server import PROJECT, RunningServer
from tritonclient.utils import InferenceServerException
from waiting import wait_idle, wait_until

from clients.streaming import GenerateRequest, TritonClient
from trireme.base.errors import RequestError

ENGINE = {"provider": "simulated", "step_ms": 5.0, "num_kv_blocks": 4096}
MODELS = ["ensemble", "ensemble_graph", "tensorrt_llm_bls"]
PROMPTS = ["What is the capital of France?", "Once", "one two three four five"]


def column(*values: object, dtype: Any = np.int32) -> Array:
    return np.array([[value] for value in values], dtype=dtype)


def asked(*prompts: str, max_tokens: int = 8, **more: Any) -> dict[str, Array]:
    rows = {
        "text_input": column(*(prompt.encode() for prompt in prompts), dtype=np.object_),
        "max_tokens": column(*[max_tokens] * len(prompts)),
        "exclude_input_in_output": column(*[True] * len(prompts), dtype=np.bool_),
    }
    return rows | more


def infer(server: RunningServer, model: str, tensors: dict[str, Array], **more: Any) -> Any:
    with grpcclient.InferenceServerClient(server.url) as client:
        return client.infer(model, infer_inputs(tensors), **more)


def texts(result: Any) -> list[str]:
    return [text.decode() for text in result.as_numpy("text_output").tolist()]


def post(server: RunningServer, path: str, body: dict[str, object]) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, data=json.dumps(body).encode()), timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


@pytest.mark.parametrize("model", MODELS)
def test_a_unary_call_has_the_whole_answer(unary: RunningServer, model: str) -> None:
    result = infer(unary, model, asked(PROMPTS[0]))
    assert [output.name for output in result.get_response().outputs] == ["text_output"]
    assert result.as_numpy("text_output").shape == (1,)
    assert len(texts(result)[0]) > 8
    with httpclient.InferenceServerClient(f"127.0.0.1:{unary.http_port}") as client:
        tensors = asked(PROMPTS[0])
        inputs = [httpclient.InferInput(name, list(data.shape), given.datatype()) for (name, data), given in
                  zip(tensors.items(), infer_inputs(tensors), strict=True)]  # fmt: skip
        for one, data in zip(inputs, tensors.values(), strict=True):
            one.set_data_from_numpy(data)
        assert texts(client.infer(model, inputs)) == texts(result)
    body: dict[str, object] = {"text_input": PROMPTS[0], "max_tokens": 8, "exclude_input_in_output": True}
    assert post(unary, f"{model}/generate", body)["text_output"] == texts(result)[0]


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_has_a_row_for_each_prompt(unary: RunningServer, model: str) -> None:
    result = infer(unary, model, asked(*PROMPTS))
    assert texts(result) == [texts(infer(unary, model, asked(prompt)))[0] for prompt in PROMPTS]
    assert result.as_numpy("batch_index").tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("model", MODELS)
def test_several_sequences_come_in_one_response(unary: RunningServer, model: str) -> None:
    more: dict[str, Any] = {"num_return_sequences": column(2, 2), "top_p": column(1.0, 1.0, dtype=np.float32)}
    result = infer(unary, model, asked(*PROMPTS[:2], **more))
    assert result.as_numpy("sequence_index").tolist() == [[0], [1], [0], [1]]
    assert len(set(texts(result))) == 4


@pytest.mark.parametrize("model", MODELS)
def test_beams_come_in_one_response(openvino_unary: RunningServer, model: str) -> None:
    more: dict[str, Any] = {"beam_width": column(3), "return_log_probs": column(True, dtype=np.bool_)}
    beams = infer(openvino_unary, model, asked(PROMPTS[1], **more))
    assert len(set(texts(beams))) == 3
    assert beams.as_numpy("cum_log_probs").shape == (1, 3)
    assert beams.as_numpy("output_log_probs").shape == (1, 3, 8)


def test_tokens_of_a_batch_are_padded_behind_their_ends(unary: RunningServer) -> None:
    tensors = {
        "input_ids": np.array([[20, 21, 22], [30, 0, 0]], dtype=np.int32),
        "input_lengths": column(3, 1),
        "request_output_len": column(4, 2),
    }
    result = infer(unary, "tensorrt_llm", tensors)
    assert result.as_numpy("output_ids").shape == (2, 1, 7)
    assert result.as_numpy("sequence_length").tolist() == [[7], [3]]
    assert result.as_numpy("output_ids")[1, 0, 3:].tolist() == [-1] * 4


@pytest.mark.parametrize("model", MODELS)
def test_a_short_request_that_comes_later_is_answered_first(unary: RunningServer, model: str) -> None:
    ends: dict[str, float] = {}

    def ask(name: str, max_tokens: int) -> None:
        infer(unary, model, asked(PROMPTS[0], max_tokens=max_tokens))
        ends[name] = time.monotonic()

    long = threading.Thread(target=ask, args=("long", 200))
    long.start()
    time.sleep(0.3)
    ask("short", 5)
    assert long.is_alive()
    long.join()
    assert ends["short"] + 0.5 < ends["long"]


def test_tritons_own_queue_holds_up_no_unary_request(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine=ENGINE, decoupled=False, triton_queue={"max_queue_size": 8})
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(infer, server, "ensemble", asked(PROMPTS[0], max_tokens=300))
        time.sleep(0.3)
        assert texts(infer(server, "ensemble", asked(PROMPTS[0], max_tokens=3)))
        assert not long.done()
        assert texts(long.result(timeout=20))


def test_sixteen_unary_requests_share_the_steps_of_the_engine(unary: RunningServer) -> None:
    began_s = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: texts(infer(unary, "ensemble", asked(PROMPTS[0], max_tokens=50))), range(16)))
    assert len({answer for [answer] in answers}) == 1
    assert time.monotonic() - began_s < 16 * 50 * 0.005 / 2, "one after the other would take 4 s"


@pytest.mark.parametrize("model", MODELS)
def test_who_wants_a_stream_is_told_what_to_change(unary: RunningServer, model: str) -> None:
    stream: dict[str, Any] = {"stream": column(True, dtype=np.bool_)}
    with pytest.raises(InferenceServerException, match=r"\[INVALID_ARG field=stream value=True\].*decoupled: true"):
        infer(unary, model, asked(PROMPTS[0], **stream))
    with pytest.raises(urllib.error.HTTPError) as failure:
        post(unary, f"{model}/generate_stream", {"text_input": "x", "max_tokens": 3, "stream": True})
    assert "field=stream" in failure.value.read().decode()
    with TritonClient(unary.url) as client, pytest.raises(RequestError, match="decoupled: true") as refusal:
        list(client.generate(GenerateRequest(text_input="x", max_tokens=3, stream=True), model=model))
    assert refusal.value.facts["field"] == "stream"


def test_our_client_gets_the_whole_answer_where_it_does_not_ask_for_a_stream(unary: RunningServer) -> None:
    with TritonClient(unary.url) as client:
        [chunk] = client.generate(
            GenerateRequest(text_input=PROMPTS[0], max_tokens=8, exclude_input_in_output=True, stream=False)
        )
    assert [chunk.text] == texts(infer(unary, "ensemble", asked(PROMPTS[0])))


def test_our_client_gets_a_chunk_for_each_sequence(unary: RunningServer) -> None:
    request = GenerateRequest(
        text_input=PROMPTS[0], max_tokens=8, top_p=1.0, num_return_sequences=3, return_num_output_tokens=True
    )
    with TritonClient(unary.url) as client:
        chunks = list(client.generate(request))
    assert [chunk.sequence_index for chunk in chunks] == [0, 1, 2]
    assert [chunk.num_output_tokens for chunk in chunks] == [8] * 3
    assert len({chunk.text for chunk in chunks}) == 3


def test_trireme_generate_shows_the_answer_of_a_unary_deployment(unary: RunningServer) -> None:
    command = [sys.executable, "-m", "trireme", "generate", PROMPTS[0], "--max-tokens", "8", "--url", unary.url]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == texts(infer(unary, "ensemble", asked(PROMPTS[0])))[0] + "\n"


def test_batch_jobs_are_answered_by_a_unary_server(unary: RunningServer, tmp_path: Path) -> None:
    body = {"model": "ensemble", "prompt": PROMPTS[0], "max_tokens": 6, "n": 2, "temperature": 1.0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "requests.jsonl").write_text(json.dumps(line) + "\n")
    command = [sys.executable, "-m", "trireme", "batch", "run", "requests.jsonl", "--out", "results.jsonl"]
    done = subprocess.run(
        [*command, "--without-admission", "--url", unary.url],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert done.returncode == 0, done.stderr
    [result] = (tmp_path / "results.jsonl").read_text().splitlines()
    choices = json.loads(result)["response"]["body"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert len({choice["text"] for choice in choices}) == 2


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
def test_a_unary_client_that_leaves_stops_its_generation(unary: RunningServer, model: str) -> None:
    tensors = asked(PROMPTS[0], max_tokens=1000)
    if model == "tensorrt_llm":
        tensors = {"input_ids": column(20), "input_lengths": column(1), "request_output_len": column(1000)}
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        infer(unary, model, tensors, client_timeout=0.5)
    wait_idle(unary, 2)


def test_a_stop_request_ends_a_unary_request_with_what_it_has(unary: RunningServer) -> None:
    tensors = {"input_ids": column(20), "input_lengths": column(1), "request_output_len": column(1000)}
    stop = {"input_ids": column(0), "input_lengths": column(0), "request_output_len": column(0)}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(infer, unary, "tensorrt_llm", tensors, request_id="7")
        time.sleep(0.5)
        infer(unary, "tensorrt_llm", stop | {"stop": column(True, dtype=np.bool_)}, request_id="7")
        [[length]] = running.result(timeout=5).as_numpy("sequence_length").tolist()
    assert 1 < length < 1000


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm"])
def test_a_unary_request_that_its_client_cancels_says_so(unary: RunningServer, model: str) -> None:
    # inflight_batcher_llm_client.py --stop-after-ms 300 --stop-via-request-cancel
    tensors = asked(PROMPTS[0], max_tokens=1000)
    if model == "tensorrt_llm":
        tensors = {"input_ids": column(20), "input_lengths": column(1), "request_output_len": column(1000)}
    received: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(unary.url) as client:
        call = client.async_infer(model, infer_inputs(tensors), lambda result, error: received.put(error or result))
        time.sleep(0.3)
        call.cancel()
        error = received.get(timeout=5)
    assert isinstance(error, InferenceServerException)
    assert error.status() == "StatusCode.CANCELLED"
    wait_idle(unary, 2)


def test_a_unary_request_is_counted_once_with_its_tokens(unary: RunningServer) -> None:
    labels = {"model": "ensemble", "version": "1"}

    def counts() -> list[float]:
        return [
            unary.metric("trireme_requests_total", finish_reason="length", **labels),
            unary.metric("trireme_generation_tokens_total", **labels),
            unary.metric("trireme_e2e_request_latency_seconds_count", **labels),
        ]

    time.sleep(0.5)  # what others asked before is counted in bunches
    before = counts()
    infer(unary, "ensemble", asked(PROMPTS[0], max_tokens=8))
    wait_until(lambda: [now - then for now, then in zip(counts(), before, strict=True)] == [1, 8, 1], 5)


def test_a_deadline_ends_a_unary_request_where_there_is_admission(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine=ENGINE, decoupled=False, admission={})
    late: dict[str, Any] = {"deadline_ms": column(300)}
    with pytest.raises(InferenceServerException, match=r"\[DEADLINE reason=deadline_ms"):
        infer(server, "ensemble", asked(PROMPTS[0], max_tokens=1000, **late))
    assert texts(infer(server, "ensemble", asked(PROMPTS[0])))
    wait_idle(server, 2)


def test_a_bad_request_fails_alone_and_by_name(unary: RunningServer) -> None:
    bad: dict[str, Any] = {"top_p": column(0.5, 1.5, dtype=np.float32)}
    with pytest.raises(InferenceServerException, match=r"\[INVALID_ARG field=top_p value=1.5 batch_index=1\]"):
        infer(unary, "ensemble", asked(*PROMPTS[:2], **bad))
    assert texts(infer(unary, "ensemble", asked(PROMPTS[0])))


def test_shutdown_lets_unary_requests_end(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine=ENGINE, decoupled=False)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(infer, server, "ensemble", asked(PROMPTS[0], max_tokens=150))
        time.sleep(0.3)
        server.interrupt()
        assert len(texts(running.result(timeout=20))[0]) > 150
    assert server.stop() == 0


def test_the_death_of_the_engine_is_told_to_unary_requests(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(engine=ENGINE, decoupled=False)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(infer, server, "ensemble", asked(PROMPTS[0], max_tokens=1000))
        time.sleep(0.3)
        server.engine_process().kill()
        with pytest.raises(InferenceServerException, match=r"\[UNAVAILABLE reason=engine_died"):
            running.result(timeout=10)
    deadline_s = time.monotonic() + 30
    while True:
        try:
            assert texts(infer(server, "ensemble", asked(PROMPTS[0])))
            break
        except InferenceServerException:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
