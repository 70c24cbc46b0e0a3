# SPDX-License-Identifier: Apache-2.0
"""A client that sends megabytes of text is answered, and nobody else waits for it; on the real server."""

import multiprocessing
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from raw_calls import StreamFailed, arrays, infer_inputs, stream
from running_server import ENDPOINTS, PROJECT, RunningServer, deployment_text
from waiting import wait_until

from benchmarks.support.report import environment, write_result
from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.text.tokenization import PromptTokenizer

MEGABYTE = 1 << 20
HANG_TIMEOUT_S = 2.0
WINDOW_S = 2.5
WORDS = ("the", "capital", "of", "France", "is", "Paris", "once", "upon", "a", "time", "king", "horse", "xqz")


def text_of(num_bytes: int, *, seed: int = 1) -> str:
    choose = random.Random(seed)
    words: list[str] = []
    size = 0
    while size < num_bytes:
        words.append(choose.choice(WORDS))
        size += len(words[-1]) + 1
    return " ".join(words)[:num_bytes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server of prompts of 131,071 tokens, 4.3 MB of the demo's longest ones; a stub may be silent for 2 s."""
    engine = {"provider": "simulated", "step_ms": 5.0, "max_seq_len": 131_072, "num_kv_blocks": 16_384}
    text = deployment_text("long", engine=engine, endpoints=ENDPOINTS, triton={"hang_timeout_s": HANG_TIMEOUT_S})
    with RunningServer(text, tmp_path_factory.mktemp("long")) as running:
        yield running


def refusal(server: RunningServer, model: str, **tensors: object) -> str:
    with pytest.raises(StreamFailed) as caught:
        list(stream(server.url, model, {"max_tokens": 4} | tensors))
    return str(caught.value)


class ShortRequests:
    """Short requests, one after the other until it is left, and the time of each to its first token."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.took_s: list[tuple[float, float]] = []  # when each was sent, and its time
        self.failures: list[Exception] = []

    def __enter__(self) -> "ShortRequests":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def times_s(self, begin_s: float, end_s: float) -> list[float]:
        """Return how long each request took that was sent between two times, in seconds."""
        return [took_s for sent_s, took_s in self.took_s if begin_s <= sent_s < end_s]

    def _ask(self) -> None:
        request = GenerateRequest(text_input="hello there", max_tokens=4, stream=True)
        with TritonClient(self._url) as client:
            while not self._is_over.is_set():
                sent_s = time.monotonic()
                try:
                    list(client.generate(request, model=self._model))
                except Exception as exc:
                    self.failures.append(exc)
                self.took_s.append((sent_s, time.monotonic() - sent_s))


def send_long(url: str, model: str, text: str, for_s: float) -> list[str]:
    """Send a text again and again; return the refusals. For another process: to pack megabytes takes long, too."""
    end_s, errors = time.monotonic() + for_s, []
    while time.monotonic() < end_s:
        try:
            list(stream(url, model, {"text_input": text, "max_tokens": 4}))
        except StreamFailed as exc:
            errors.append(str(exc))
    return errors


CASES = [("ensemble", 1), ("ensemble", 4), ("ensemble", 10), ("ensemble_graph", 4), ("ensemble_graph", 10)]


def beside_long_texts(server: RunningServer, model: str, megabytes: int, *, pairs: int) -> list[dict[str, float]]:
    """Return, for each pair of times without and with long texts, how many short requests it had, and their p99."""
    text = text_of(megabytes * MEGABYTE)
    found = []
    stubs = {name: server.stub(name).pid for name in ("ensemble", "tensorrt_llm", "preprocessing", "tensorrt_llm_bls")}
    context = multiprocessing.get_context("spawn")
    with (
        ShortRequests(server.url, model) as short,
        ProcessPoolExecutor(1, context, os.nice, (10,)) as pool,  # as from another machine
    ):
        pool.submit(text_of, 1).result()  # it is there
        for _ in range(pairs):
            begin_s = time.monotonic()
            time.sleep(WINDOW_S)
            middle_s = time.monotonic()
            errors = pool.submit(send_long, server.url, model, text, WINDOW_S).result()
            end_s = time.monotonic()
            assert {error for error in errors if "field=text_input" not in error} == set()
            assert errors
            calm, beside = short.times_s(begin_s, middle_s), short.times_s(middle_s, end_s)
            found.append(
                {
                    "short_requests_ratio": len(beside) / (end_s - middle_s) / (len(calm) / (middle_s - begin_s)),
                    "p99_ms": 1e3 * float(np.percentile(beside, 99)),
                    "p99_ratio": float(np.percentile(beside, 99) / np.percentile(calm, 99)),
                }
            )
    assert short.failures == []
    assert {name: server.stub(name).pid for name in stubs} == stubs
    assert "starting it again" not in server.log()
    return found


@pytest.mark.parametrize(("model", "megabytes"), CASES)
def test_short_requests_pass_by_long_ones_and_no_stub_is_taken_for_hung(
    server: RunningServer, model: str, megabytes: int
) -> None:
    """Count short requests: a window has one or two where each long text holds them up until it is tokenized."""
    [pair] = beside_long_texts(server, model, megabytes, pairs=1)
    assert pair["short_requests_ratio"] > 0.2


@pytest.mark.soak
@pytest.mark.quiet
def test_how_late_short_requests_are_beside_long_ones(server: RunningServer) -> None:
    """Hold every size to twice the p99; 10 MB miss that, for Triton and its stub copy them before they are refused."""
    pairs = {case: beside_long_texts(server, *case, pairs=5) for case in CASES}
    where = environment(triton_http=f"127.0.0.1:{server.http_port}")
    cases = [{"model": model, "megabytes": size, "pairs": found} for (model, size), found in pairs.items()]
    write_result("long_texts", {"environment": where, "engine": "simulated, 5 ms a step", "cases": cases})
    for (model, megabytes), found in pairs.items():
        median = statistics.median(pair["p99_ratio"] for pair in found)
        assert median <= 2, (model, megabytes, found)


def test_every_input_that_is_tokenized_has_the_limit_and_is_named(server: RunningServer) -> None:
    text = text_of(5 * MEGABYTE)
    for tensors, field, words in (
        ({"text_input": text}, "text_input", "5242880 bytes; send at most 4325343"),
        (
            {"text_input": "hello", "decoder_text_input": text},
            "decoder_text_input",
            "5242880 bytes; send at most 4325343",
        ),
        ({"text_input": "hello", "bad_words": [text]}, "bad_words", "send at most 1000 characters"),
        ({"text_input": "hello", "stop_words": [text]}, "stop_words", "send at most 1000"),
        (
            {"text_input": "hello", "embedding_bias_words": [text], "embedding_bias_weights": [1.0]},
            "embedding_bias_words",
            "send at most 1000 characters",
        ),
    ):
        error = refusal(server, "ensemble", **tensors)
        assert f"field={field}" in error
        assert words in error


def test_what_is_long_and_fits_is_answered_as_what_is_short(server: RunningServer, model: str) -> None:
    text = text_of(200_000)
    asked = {"text_input": text, "max_tokens": 8, "exclude_input_in_output": True, "return_num_input_tokens": True}
    [long] = stream(server.url, model, asked)
    tokenizer = PromptTokenizer.from_spec(TokenizerSpec(dir=PROJECT / "examples/demo_model/target"))
    assert long["num_input_tokens"].item() == len(tokenizer.encode(text))
    assert long["text_output"].item()


def test_a_caller_of_preprocessing_gets_long_text_in_ids(server: RunningServer) -> None:
    text = text_of(100_000)
    tensors = {"QUERY": text, "REQUEST_OUTPUT_LEN": 1}
    with grpcclient.InferenceServerClient(server.url) as client:
        ids = client.infer("preprocessing", infer_inputs(arrays(tensors))).as_numpy("INPUT_ID")
    assert ids is not None
    tokenizer = PromptTokenizer.from_spec(TokenizerSpec(dir=PROJECT / "examples/demo_model/target"))
    assert ids[0].tolist() == tokenizer.encode(text).tolist()


def holds(server: RunningServer, num_streams: int) -> bool:
    return server.num_streams() == num_streams


def test_a_client_that_leaves_while_its_text_waits_is_dropped(server: RunningServer) -> None:
    text = "a" * (4 * MEGABYTE)  # one word, of which only the whole tells how many tokens it is
    begin_s = time.monotonic()
    first = threading.Thread(target=refusal, args=(server, "ensemble"), kwargs={"text_input": text})
    first.start()
    wait_until(lambda: server.num_streams() == 1, 20)
    inputs = infer_inputs(arrays({"text_input": text, "max_tokens": 4}))
    for num_before in range(1, 5):
        client = grpcclient.InferenceServerClient(server.url)
        client.start_stream(lambda **_: None)
        client.async_stream_infer("ensemble", inputs)
        wait_until(partial(holds, server, num_before + 1), 20)
        client.stop_stream(cancel_requests=True)
        client.close()
    first.join()
    end_s = time.monotonic()
    wait_until(lambda: server.num_streams() == 0, 20)
    assert time.monotonic() - end_s < end_s - begin_s  # four of them would take four times as long
