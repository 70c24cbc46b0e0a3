# SPDX-License-Identifier: Apache-2.0
"""The default requests of each official client of `inflight_batcher_llm`, and what it reads from the answer.

The requests are ours, with the tensors, types, shapes and defaults of the client that a test names; what they read back
they read in the way it does.
"""

import json
import queue
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from raw_calls import Array, infer_inputs
from running_server import RunningServer
from tritonclient.utils import InferenceServerException
from waiting import wait_idle

StartServer = Callable[..., RunningServer]

PROMPT = "Born in north-east France, Soyer trained as a"
# Of the 50 to 120 ids of the demo's tokenizer for such a prompt; the engine does not mind which.
INPUT_IDS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]


def int32(value: object) -> Array:
    return np.array(value, dtype=np.int32)


def float32(value: object) -> Array:
    return np.array(value, dtype=np.float32)


def boolean(value: object) -> Array:
    return np.array(value, dtype=bool)


def text(value: object) -> Array:
    return np.array(value, dtype=object)


class Call:
    """A call as the upstream scripts use tritonclient: one stream, half-closed once everything is sent, then read."""

    def __init__(self, server: RunningServer, model: str) -> None:
        self._model = model
        self._received: queue.Queue[Any] = queue.Queue()
        self._client = grpcclient.InferenceServerClient(server.url)
        self._client.start_stream(lambda result, error: self._received.put(error if error else result))

    def send(
        self, tensors: dict[str, Array], *, outputs: list[str] | None = None, request_id: str = "", **more: Any
    ) -> None:
        asked = None if outputs is None else [grpcclient.InferRequestedOutput(name) for name in outputs]
        self._client.async_stream_infer(
            self._model, infer_inputs(tensors), outputs=asked, request_id=request_id, **more
        )

    def finish(self, *, cancel_requests: bool = False) -> list[Any]:
        """Return results and errors, in the order in which they came."""
        self._client.stop_stream(cancel_requests=cancel_requests)  # waits until the server closes the stream
        self._client.close()
        received = []
        while not self._received.empty():
            received.append(self._received.get())
        return received


def results(received: list[Any]) -> list[grpcclient.InferResult]:
    errors = [item for item in received if isinstance(item, InferenceServerException)]
    assert errors == [], str(errors[0])
    return received


# end_to_end_grpc_client.py


def end_to_end(*, streaming: bool, output_len: int = 100, **more: Array) -> dict[str, Array]:
    """Return the tensors that are always sent; `more` are sent only where a flag asks for it."""
    return {
        "text_input": text([[PROMPT]]),
        "max_tokens": np.ones_like([[PROMPT]], dtype=np.int32) * int32(output_len),
        "stream": boolean([[streaming]]),
        "beam_width": int32([[1]]),
        "temperature": float32([[1.0]]),
        "exclude_input_in_output": boolean([[False]]),
        **more,
    }


def read_text(received: list[Any]) -> str:
    """Return deltas joined; an index that is not there counts as 0."""
    joined = ""
    for result in results(received):
        output = result.as_numpy("text_output")
        assert output.shape == (1,)
        for index in ("batch_index", "sequence_index", "output_log_probs", "context_logits", "generation_logits"):
            assert result.as_numpy(index) is None
        joined += output[0].decode("utf-8")
    return joined


def ask_end_to_end(server: RunningServer, tensors: dict[str, Array]) -> list[Any]:
    call = Call(server, "ensemble")
    call.send(tensors, outputs=["text_output"])
    return call.finish()


def test_end_to_end_grpc_client_with_its_defaults(simulated: RunningServer) -> None:
    [whole] = results(ask_end_to_end(simulated, end_to_end(streaming=False)))
    answer = read_text([whole])
    assert answer.startswith(PROMPT)
    assert len(answer) > len(PROMPT) + 100


def test_end_to_end_grpc_client_streaming_joins_to_the_same(simulated: RunningServer) -> None:
    # In upstream a stream never has the prompt; a whole response has it unless it is excluded.
    streamed = ask_end_to_end(simulated, end_to_end(streaming=True))
    assert len(streamed) > 10
    excluded = end_to_end(streaming=False) | {"exclude_input_in_output": boolean([[True]])}
    assert read_text(streamed).removeprefix(PROMPT) == read_text(ask_end_to_end(simulated, excluded))


def test_end_to_end_grpc_client_with_stop_words_and_ids(simulated: RunningServer) -> None:
    more = {"stop_words": text([["zzz", "\n\n"]]), "end_id": int32([[2]]), "pad_id": int32([[2]])}
    assert read_text(ask_end_to_end(simulated, end_to_end(streaming=True, output_len=16, **more)))


def test_end_to_end_grpc_client_with_beams_reads_each_ones_text_and_probabilities(openvino: RunningServer) -> None:
    more = {"beam_width": int32([[3]]), "return_log_probs": boolean([[True]])}
    for model in ("ensemble", "ensemble_graph"):
        call = Call(openvino, model)
        call.send(end_to_end(streaming=False, output_len=8) | more)
        [result] = results(call.finish())
        texts = [output.decode() for output in result.as_numpy("text_output")]
        assert len(texts) == 3
        assert all(text.startswith(PROMPT) for text in texts)
        assert result.as_numpy("cum_log_probs").shape == (1, 3)
        assert result.as_numpy("output_log_probs").shape == (1, 3, 8)


def test_end_to_end_grpc_client_streaming_with_beams_is_told_why_not(openvino: RunningServer) -> None:
    more = {"beam_width": int32([[2]])}
    [error] = ask_end_to_end(openvino, end_to_end(streaming=True, output_len=5) | more)
    assert isinstance(error, InferenceServerException)
    assert "[INVALID_ARG field=beam_width value=2] beam_width (2) does not go with stream" in str(error)


# inflight_batcher_llm_client.py


def inflight(*, streaming: bool, output_len: int = 16, end_id: int = -1, pad_id: int = 50256) -> dict[str, Array]:
    """Return tensors with ids from a file: its own end and pad id, which may lie outside the vocabulary."""
    return {
        "input_ids": int32(INPUT_IDS),
        "input_lengths": int32([[len(INPUT_IDS[0])]]),
        "request_output_len": int32([[output_len]]),
        "beam_width": int32([[1]]),
        "temperature": float32([[1.0]]),
        "streaming": boolean([[streaming]]),
        "end_id": int32([[end_id]]),
        "pad_id": int32([[pad_id]]),
        "runtime_top_k": int32([[1]]),
        "runtime_top_p": float32([[0.0]]),
    }


STOP = {
    "input_ids": np.full([1, 1], 123456789, dtype=np.int32),  # upstream's is not even initialized
    "input_lengths": np.zeros([1, 1], dtype=np.int32),
    "request_output_len": int32([[0]]),
    "stop": boolean([[True]]),
}


def read_tokens(received: list[Any]) -> list[int]:
    tokens: list[int] = []
    for result in results(received):
        output_ids = result.as_numpy("output_ids")
        if output_ids is None:
            continue  # the answer to a stop request
        assert result.as_numpy("sequence_index") is None
        assert output_ids.shape[:2] == (1, 1)
        if result.as_numpy("sequence_length")[0][0] > 0:
            tokens += output_ids[0][0].tolist()
    return tokens


@pytest.mark.parametrize(("end_id", "pad_id"), [(-1, 50256), (2, 2)], ids=["ids from a file", "ids of a tokenizer"])
def test_inflight_batcher_llm_client_streaming_with_its_defaults(
    simulated: RunningServer, end_id: int, pad_id: int
) -> None:
    call = Call(simulated, "tensorrt_llm")
    call.send(inflight(streaming=True, end_id=end_id, pad_id=pad_id))
    received = call.finish()
    # It begins with the prompt itself, of which a stream has nothing.
    assert len(read_tokens(received)) == 16


def test_inflight_batcher_llm_client_reads_each_beam_up_to_its_length(openvino: RunningServer) -> None:
    call = Call(openvino, "tensorrt_llm")
    call.send(inflight(streaming=False) | {"beam_width": int32([[2]])})
    [result] = results(call.finish())
    assert result.as_numpy("output_ids").shape == (1, 2, len(INPUT_IDS[0]) + 16)
    assert result.as_numpy("sequence_length").tolist() == [[len(INPUT_IDS[0]) + 16] * 2]


def test_the_phases_of_disaggregated_serving_are_two_requests(compiled: RunningServer) -> None:
    asked = inflight(streaming=False) | {"exclude_input_in_output": boolean([[True]])}
    whole, prefill = Call(compiled, "tensorrt_llm"), Call(compiled, "tensorrt_llm")
    whole.send(asked)
    prefill.send(asked, parameters={"request_type": "context_only"})
    [expected], [handed] = results(whole.finish()), results(prefill.finish())
    assert handed.as_numpy("output_ids").size == 1
    decode = Call(compiled, "tensorrt_llm")
    decode.send(asked | {"context_phase_params": handed.as_numpy("context_phase_params")})
    [answer] = results(decode.finish())
    assert answer.as_numpy("output_ids").tolist() == expected.as_numpy("output_ids").tolist()


def test_inflight_batcher_llm_client_reads_the_outputs_that_it_asked_for_and_no_others(
    simulated: RunningServer,
) -> None:
    call = Call(simulated, "tensorrt_llm")
    call.send(inflight(streaming=True), outputs=["output_ids", "sequence_length"])
    for result in results(call.finish()):
        assert {output.name for output in result.get_response().outputs} == {"output_ids", "sequence_length"}


def test_inflight_batcher_llm_client_counts_tokens(simulated: RunningServer) -> None:
    counts = {"return_num_input_tokens": boolean([[True]]), "return_num_output_tokens": boolean([[True]])}
    call = Call(simulated, "tensorrt_llm")
    call.send(inflight(streaming=True) | counts)
    received = results(call.finish())
    assert {result.as_numpy("num_input_tokens")[0][0] for result in received} == {len(INPUT_IDS[0])}
    assert sum(result.as_numpy("num_output_tokens")[0][0] for result in received) == 16


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])
def test_inflight_batcher_llm_client_stops_after_some_ms_by_a_stop_request(
    simulated: RunningServer, streaming: bool
) -> None:
    call = Call(simulated, "tensorrt_llm")
    call.send(inflight(streaming=streaming, output_len=1000), request_id="1")
    time.sleep(0.3)
    call.send(STOP, request_id="1", parameters={"Streaming": True})
    received = call.finish()  # returns: both requests had their last response
    num_prompt_tokens = 0 if streaming else len(INPUT_IDS[0])
    assert 0 < len(read_tokens(received)) - num_prompt_tokens < 1000
    assert sum(result.as_numpy("output_ids") is None for result in received) <= 1
    assert streaming or len(received) <= 2
    wait_idle(simulated, 2)


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])
def test_inflight_batcher_llm_client_stops_after_some_ms_by_request_cancel(
    simulated: RunningServer, streaming: bool
) -> None:
    call = Call(simulated, "tensorrt_llm")
    call.send(inflight(streaming=streaming, output_len=1000))
    time.sleep(0.3)
    *received, last = call.finish(cancel_requests=True)
    assert isinstance(last, InferenceServerException)
    assert last.status() == "StatusCode.CANCELLED"
    assert 0 < len(read_tokens(received)) < 1000 if streaming else received == []
    wait_idle(simulated, 2)


def test_inflight_batcher_llm_client_not_streaming_is_told_to_stream(simulated: RunningServer) -> None:
    # Triton itself has no ModelInfer for a decoupled model: upstream's client says so too, and works with --streaming.
    with (
        grpcclient.InferenceServerClient(simulated.url) as client,
        pytest.raises(InferenceServerException, match="decoupled"),
    ):
        client.infer("tensorrt_llm", infer_inputs(inflight(streaming=False)))


def test_a_whole_response_of_the_engine_step_over_a_stream_has_the_prompt(simulated: RunningServer) -> None:
    call = Call(simulated, "tensorrt_llm")
    call.send(inflight(streaming=False))
    [whole] = results(call.finish())
    assert whole.as_numpy("output_ids")[0][0].tolist()[: len(INPUT_IDS[0])] == INPUT_IDS[0]
    assert whole.as_numpy("sequence_length").tolist() == [[len(INPUT_IDS[0]) + 16]]


# genai-perf and perf_analyzer: what --input-data holds, each row in a batch of one


def perf_analyzer(server: RunningServer, model: str, tensors: dict[str, Array], request_id: str) -> list[Any]:
    """Ask for the empty final response, and count responses until it comes, as perf_analyzer does."""
    call = Call(server, model)
    call.send(tensors, request_id=request_id, enable_empty_final_response=True)
    received = results(call.finish())
    finals = [result.get_response().parameters["triton_final_response"].bool_param for result in received]
    assert finals.count(True) == 1
    assert finals[-1]
    return [result for result in received if result.get_response().outputs]


@pytest.mark.parametrize("more", [{}, {"min_length": int32([[256]])}], ids=["mean", "deterministic"])
def test_genai_perf_on_the_ensemble(simulated: RunningServer, more: dict[str, Array]) -> None:
    tensors = {
        "text_input": text([[PROMPT]]),
        "max_tokens": int32([[256]]),
        "stream": boolean([[True]]),
        "exclude_input_in_output": boolean([[True]]),
    }
    received = perf_analyzer(simulated, "ensemble", tensors | more, "1")
    assert len(received) > 20
    assert all(result.as_numpy("text_output").shape == (1,) for result in received)
    joined = "".join(result.as_numpy("text_output")[0].decode() for result in received)
    assert PROMPT not in joined


@pytest.mark.parametrize("more", [{}, {"min_length": int32([[256]])}], ids=["mean", "deterministic"])
def test_genai_perf_on_the_engine(simulated: RunningServer, more: dict[str, Array]) -> None:
    tensors = {
        "input_ids": int32(INPUT_IDS),
        "input_lengths": int32([[len(INPUT_IDS[0])]]),
        "request_output_len": int32([[256]]),
        "streaming": boolean([[True]]),
    }
    assert len(read_tokens(perf_analyzer(simulated, "tensorrt_llm", tensors | more, "1"))) == 256


def test_perf_analyzer_sends_the_same_input_data_again_and_again(simulated: RunningServer) -> None:
    tensors = {"text_input": text([[PROMPT]]), "max_tokens": int32([[16]]), "stream": boolean([[True]])}
    answers = {
        b"".join(result.as_numpy("text_output")[0] for result in perf_analyzer(simulated, "ensemble", tensors, str(i)))
        for i in range(5)
    }
    assert len(answers) == 1


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm"])
def test_perf_analyzer_finds_what_it_asks_of_a_model_first(simulated: RunningServer, model: str) -> None:
    with grpcclient.InferenceServerClient(simulated.url) as client:
        assert client.is_model_ready(model)
        metadata = client.get_model_metadata(model)
        config = client.get_model_config(model).config
    assert config.max_batch_size >= 1
    shapes = {tensor.name: list(tensor.shape) for tensor in metadata.inputs}
    required = {tensor.name for tensor in config.input if not tensor.optional}
    if model == "ensemble":
        # Messages may stand in the place of text_input. What perf_analyzer makes up by itself was never a max_tokens
        # that could be served, so those who use it send input data, which names text_input.
        assert required == {"max_tokens"}
        assert shapes["text_input"] == shapes["max_tokens"] == shapes["stream"] == [-1, 1]
    else:
        assert required == {"input_lengths", "request_output_len"}
        assert shapes["input_ids"] == [-1, -1]
        assert shapes["input_lengths"] == shapes["streaming"] == [-1, 1]


# Triton's generate and generate_stream


def post(server: RunningServer, path: str, body: dict[str, object]) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}/v2/models/{path}", data=json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: bytes = response.read()
    return answer.decode()


def test_generate_and_generate_stream_give_the_same_text(simulated: RunningServer) -> None:
    asked: dict[str, object] = {"text_input": PROMPT, "max_tokens": 20, "bad_words": "", "stop_words": ""}
    whole = json.loads(post(simulated, "ensemble/generate", asked))
    assert whole["model_name"] == "ensemble"
    assert whole["text_output"].startswith(PROMPT)
    events = post(simulated, "ensemble/generate_stream", asked | {"stream": True}).split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    deltas = [json.loads(event.removeprefix("data: "))["text_output"] for event in events]
    assert len(deltas) > 5
    assert PROMPT + "".join(deltas).removeprefix(PROMPT) == whole["text_output"]


# Triton's OpenAI frontend: counts are always asked for, and what the user did not set has OpenAI's default


OPENAI_DEFAULTS = {
    "top_p": float32([[1.0]]),
    "frequency_penalty": float32([[0.0]]),
    "presence_penalty": float32([[0.0]]),
    "temperature": float32([[1.0]]),
    "return_num_input_tokens": boolean([[True]]),
    "return_num_output_tokens": boolean([[True]]),
}


def openai_frontend(*, stream: bool, **more: Array) -> dict[str, Array]:
    asked = {"text_input": text([[PROMPT]]), "stream": boolean([[stream]]), "max_tokens": int32([[16]])}
    return asked | OPENAI_DEFAULTS | more


@pytest.mark.parametrize("echo", [None, False], ids=["chat", "completion"])
def test_the_openai_frontend_adds_up_its_usage_over_the_chunks(simulated: RunningServer, echo: bool | None) -> None:
    more = {} if echo is None else {"exclude_input_in_output": boolean([[not echo]])}
    call = Call(simulated, "ensemble")
    call.send(openai_frontend(stream=True, **more))
    received = results(call.finish())
    # It reads one string and one number of each: by pointer, whatever the shape.
    assert all(result.as_numpy("text_output").size == 1 for result in received)
    assert all(result.as_numpy("num_input_tokens").dtype == np.int32 for result in received)
    assert all(result.as_numpy("num_output_tokens").size == 1 for result in received)
    assert len({result.as_numpy("num_input_tokens").item() for result in received}) == 1
    assert sum(result.as_numpy("num_output_tokens").item() for result in received) == 16


def test_the_openai_frontend_gets_one_or_two_responses_when_it_does_not_stream(simulated: RunningServer) -> None:
    more = {"stop_words": text([["zzz"]]), "seed": np.array([[7]], dtype=np.uint64)}
    call = Call(simulated, "ensemble")
    call.send(openai_frontend(stream=False, **more), enable_empty_final_response=True)
    received = results(call.finish())
    assert 1 <= len(received) <= 2
    assert received[-1].get_response().parameters["triton_final_response"].bool_param
    assert received[0].as_numpy("num_output_tokens").item() == 16
