# SPDX-License-Identifier: Apache-2.0
"""Several prompts in one request on the real server: each is answered as if it were alone, by any model."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from raw_calls import Array, StreamFailed, stream
from running_server import RunningServer
from waiting import wait_until

NUM = 3
NONE = np.zeros(0)
TEXTS = [b"What is it?", b"Where are you, my friend?", b"Hm"]


def column(values: list[object], dtype: type[np.generic]) -> Array:
    return np.array([[value] for value in values], dtype=dtype)


def batch(**more: Array) -> dict[str, Array]:
    """Return three prompts that differ in all that they ask for."""
    return {
        "text_input": column([*TEXTS], np.object_),
        "max_tokens": column([5, 20, 11], np.int32),
        "exclude_input_in_output": column([True, False, True], np.bool_),
        "top_p": column([0.9, 0.0, 0.5], np.float32),
        "seed": column([1, 2, 3], np.uint64),
        "stop_words": np.array([[b"zzz", b""], [b"e", b"o"], [b"", b""]], dtype=np.object_),
        "return_finish_reason": column([True] * NUM, np.bool_),
        "return_num_output_tokens": column([True] * NUM, np.bool_),
    } | more


def row_of(tensors: dict[str, Array], index: int) -> dict[str, Array]:
    return {name: array[index : index + 1] for name, array in tensors.items()}


def told(responses: list[dict[str, Array]], output: str = "text_output") -> dict[str, object]:
    """Return what a sequence was told, joined."""
    ids = [item for response in responses for item in response[output].reshape(-1).tolist()]
    return {
        "tokens": b"".join(ids) if output == "text_output" else ids,
        "log_probs": [p for response in responses for p in response.get("output_log_probs", NONE).reshape(-1).tolist()],
        "num": sum(response["num_output_tokens"].item() for response in responses),
        "end": [response["finish_reason"].item() for response in responses if "finish_reason" in response],
    }


def ask_each_alone(
    server: RunningServer, model: str, tensors: dict[str, Array], output: str = "text_output"
) -> list[dict[str, object]]:
    rows = [list(stream(server.url, model, row_of(tensors, index))) for index in range(NUM)]
    assert not any("batch_index" in response for row in rows for response in row)
    return [told(row, output) for row in rows]


def ask_together(
    server: RunningServer, model: str, tensors: dict[str, Array], output: str = "text_output"
) -> list[dict[str, object]]:
    responses = list(stream(server.url, model, tensors))
    assert all(response["batch_index"].shape == (1, 1) for response in responses)
    assert all(response["batch_index"].dtype == np.int32 for response in responses)
    own = [[r for r in responses if r["batch_index"].item() == index] for index in range(NUM)]
    return [told(each, output) for each in own]


STREAMS = {"streaming": [True] * NUM, "whole": [False] * NUM, "each as it says": [True, False, True]}


@pytest.mark.parametrize("how", STREAMS)
def test_each_prompt_of_a_batch_is_answered_as_if_it_were_alone(simulated: RunningServer, model: str, how: str) -> None:
    tensors = batch(stream=column([*STREAMS[how]], np.bool_))
    together = ask_together(simulated, model, tensors)
    assert together == ask_each_alone(simulated, model, tensors)
    assert together[1]["end"] == [b"stop_string"], "a stop string of its own"
    wait_until(lambda: simulated.num_streams() == 0, 5)


@pytest.mark.parametrize("is_streaming", [True, False])
def test_the_engine_step_takes_a_batch_of_padded_ids(simulated: RunningServer, is_streaming: bool) -> None:
    ids = [[20, 21, 22, 23, 24], [30, 31, 0, 0, 0], [40, 41, 42, 0, 0]]
    tensors = {
        "input_ids": np.array(ids, dtype=np.int32),
        "input_lengths": column([5, 2, 3], np.int32),
        "request_output_len": column([4, 9, 6], np.int32),
        "runtime_top_p": column([0.9, 0.0, 0.5], np.float32),
        "seed": column([1, 2, 3], np.uint64),
        "streaming": column([is_streaming] * NUM, np.bool_),
        "return_num_output_tokens": column([True] * NUM, np.bool_),
        "return_finish_reason": column([True] * NUM, np.bool_),
    }
    rows = []
    for index, length in enumerate((5, 2, 3)):
        alone = row_of(tensors, index) | {"input_ids": np.array([ids[index][:length]], dtype=np.int32)}
        rows.append(told(list(stream(simulated.url, "tensorrt_llm", alone)), "output_ids"))
    assert ask_together(simulated, "tensorrt_llm", tensors, "output_ids") == rows


def test_what_preprocessing_makes_of_a_batch_is_what_the_engine_step_takes(compiled: RunningServer) -> None:
    asked = {
        "QUERY": column([*TEXTS], np.object_),
        "REQUEST_OUTPUT_LEN": column([5, 20, 11], np.int32),
        "PAD_ID": column([7, 8, 9], np.int32),
        "BAD_WORDS_DICT": np.array([[b"the", b"a"], [b"", b""], [b" a", b""]], dtype=np.object_),
    }
    [prepared] = stream(compiled.url, "preprocessing", asked)
    lengths = prepared["REQUEST_INPUT_LEN"][:, 0].tolist()
    assert prepared["INPUT_ID"].shape == (NUM, max(lengths))
    assert [row[length:].tolist() for row, length in zip(prepared["INPUT_ID"], lengths, strict=True)] == [
        [pad] * (max(lengths) - length) for pad, length in zip((7, 8, 9), lengths, strict=True)
    ]
    given = {
        "input_ids": prepared["INPUT_ID"],
        "input_lengths": prepared["REQUEST_INPUT_LEN"],
        "request_output_len": prepared["REQUEST_OUTPUT_LEN"],
        "bad_words_list": prepared["BAD_WORDS_IDS"],
        "exclude_input_in_output": column([True] * NUM, np.bool_),
        **{name: column([True] * NUM, np.bool_) for name in ("return_log_probs", "return_num_output_tokens")},
        "return_finish_reason": column([True] * NUM, np.bool_),
    }
    together = ask_together(compiled, "tensorrt_llm", given, "output_ids")
    for index in range(NUM):
        [alone] = stream(compiled.url, "preprocessing", row_of(asked, index))
        one = row_of(given, index) | {"input_ids": alone["INPUT_ID"], "input_lengths": alone["REQUEST_INPUT_LEN"]}
        del one["bad_words_list"]
        if "BAD_WORDS_IDS" in alone:
            one["bad_words_list"] = alone["BAD_WORDS_IDS"]
        assert together[index] == told(list(stream(compiled.url, "tensorrt_llm", one)), "output_ids")


def test_each_sequence_of_each_prompt_is_told_apart(simulated: RunningServer, model: str) -> None:
    tensors = batch(stream=column([True] * NUM, np.bool_), num_return_sequences=column([2, 1, 3], np.int32))
    responses = list(stream(simulated.url, model, tensors))
    assert all("batch_index" in response for response in responses)
    for index, num_sequences in enumerate((2, 1, 3)):
        own = [r for r in responses if r["batch_index"].item() == index]
        alone = list(stream(simulated.url, model, row_of(tensors, index)))
        indices = range(num_sequences) if num_sequences > 1 else [None]
        for sequence in indices:
            assert told([r for r in own if sequence_of(r) == sequence]) == told(
                [r for r in alone if sequence_of(r) == sequence]
            )


def sequence_of(response: dict[str, Array]) -> int | None:
    return int(response["sequence_index"].item()) if "sequence_index" in response else None


BAD: dict[str, tuple[dict[str, Array], str]] = {
    "text": ({"text_input": column([b"a", b"", b"b"], np.object_)}, "field=text_input batch_index=1"),
    "not UTF-8": ({"text_input": column([b"a", b"b", b"\xff"], np.object_)}, "field=text_input byte=0 batch_index=2"),
    "option": ({"top_p": column([0.5, 1.5, 0.5], np.float32)}, "field=top_p value=1.5 batch_index=1"),
    "length": ({"max_tokens": column([5, 5, 0], np.int32)}, "field=max_tokens value=0 batch_index=2"),
    "another size": ({"top_p": column([0.5, 0.5], np.float32)}, "batch"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_fails_its_request_and_says_which_one_it_is(simulated: RunningServer, model: str, name: str) -> None:
    changes, token = BAD[name]
    with pytest.raises(StreamFailed) as failure:
        list(stream(simulated.url, model, batch(**changes)))
    assert token in str(failure.value)
    wait_until(lambda: simulated.num_streams() == 0, 5)


def test_128_prompts_are_taken_and_129_are_not(simulated: RunningServer, model: str) -> None:
    def ask(count: int) -> list[int]:
        asked = {
            "text_input": column([b"x"] * count, np.object_),
            "max_tokens": column([2] * count, np.int32),
        }
        return [response["batch_index"].item() for response in stream(simulated.url, model, asked)]

    assert sorted(ask(128)) == list(range(128))
    with pytest.raises(StreamFailed, match=r"\[INVALID_ARG field=text_input value=129 max=128\]"):
        ask(129)


def test_a_client_that_leaves_ends_all_prompts(simulated: RunningServer, model: str) -> None:
    tensors = batch(max_tokens=column([1500] * NUM, np.int32), stop_words=np.array([[b""]] * NUM, dtype=np.object_))
    chunks = stream(simulated.url, model, tensors | {"stream": column([True] * NUM, np.bool_)})
    next(chunks)
    chunks.close()
    wait_until(lambda: simulated.num_streams() == 0, 5)
    wait_until(lambda: simulated.used_kv_blocks() == 0, 5)


def test_a_stop_request_ends_all_prompts_with_what_they_have(simulated: RunningServer, model: str) -> None:
    tensors = batch(max_tokens=column([1500] * NUM, np.int32), stop_words=np.array([[b""]] * NUM, dtype=np.object_))
    running = stream(
        simulated.url, model, tensors | {"stream": column([True] * NUM, np.bool_)}, request_id=f"batch {model}"
    )
    next(running)
    stop = {name: np.array([[1]], dtype=np.int32) for name in ("input_ids", "input_lengths", "request_output_len")}
    stop_it = stream(simulated.url, "tensorrt_llm", stop | {"stop": np.array([[True]])}, request_id=f"batch {model}")
    assert len(list(stop_it)) == 1
    ends = [r["finish_reason"].item() for r in running if "finish_reason" in r]
    assert ends == [b"cancelled"] * NUM


# Over HTTP


def post(server: RunningServer, endpoint: str, **body: object) -> str:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/ensemble/{endpoint}"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=20) as response:
        return str(response.read().decode())


@pytest.mark.parametrize(
    "several", [{"text_input": ["a", "b"], "max_tokens": [3, 3]}, {"num_return_sequences": 2}, {"stream": True}]
)
def test_generate_takes_one_response_and_says_so_where_there_are_several(
    simulated: RunningServer, several: dict[str, object]
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        post(simulated, "generate", **({"text_input": "a", "max_tokens": 3} | several))
    with refusal.value as error:
        assert error.code == 400
        answer = json.loads(error.read())
    assert set(answer) == {"error"}
    assert "generate expects model to produce exactly 1 response, use generate stream" in answer["error"]
    wait_until(lambda: simulated.num_streams() == 0, 5)


@pytest.mark.parametrize("words", ["x", ["x", "y"], [["x"], ["y"]]])
def test_a_list_of_words_over_http_is_one_row_however_it_is_nested(simulated: RunningServer, words: object) -> None:
    asked: dict[str, object] = {"text_input": ["a", "b"], "max_tokens": [3, 3], "stop_words": words}
    with pytest.raises(urllib.error.HTTPError) as refusal:
        post(simulated, "generate_stream", **asked)
    with refusal.value as error:
        assert error.code == 400
        told = error.read()
        assert b"input 'stop_words' batch size does not match other inputs" in told or b"a list of lists" in told


def test_generate_stream_takes_a_batch(simulated: RunningServer) -> None:
    asked = {"text_input": [text.decode() for text in TEXTS], "max_tokens": [4, 5, 6]}
    events = post(simulated, "generate_stream", **asked).strip().split("\n\n")
    answers = [json.loads(event.removeprefix("data: ")) for event in events]
    texts = {answer["batch_index"]: answer["text_output"] for answer in answers}
    assert len(answers) == NUM
    for index, text in enumerate(TEXTS):
        alone = post(simulated, "generate", text_input=text.decode(), max_tokens=4 + index)
        assert texts[index] == json.loads(alone)["text_output"]


def test_a_batch_on_a_real_model_is_its_prompts_alone(openvino: RunningServer, model: str) -> None:
    tensors = {
        "text_input": column([b"Who are you?", b"Once upon a time there was", b"The capital of France is"], np.object_),
        "max_tokens": column([12, 20, 6], np.int32),
        "stream": column([True, False, True], np.bool_),
        **{name: column([True] * NUM, np.bool_) for name in ("return_log_probs", "return_num_output_tokens")},
        "return_finish_reason": column([True] * NUM, np.bool_),
    }
    together, alone = (ask(openvino, model, tensors) for ask in (ask_together, ask_each_alone))
    # The same sums of f32 in another order: the probabilities differ in the last digits.
    log_probs = [[one.pop("log_probs") for one in told_] for told_ in (together, alone)]
    assert together == alone
    for own, expected in zip(*log_probs, strict=True):
        assert own == pytest.approx(expected, abs=1e-4)
