# SPDX-License-Identifier: Apache-2.0
"""The contract of the ensemble as clients of upstream see it, on the real server with the simulated engine."""

import numpy as np
import pytest
from raw_calls import StreamFailed, engine_request, stream
from running_server import RunningServer

PROMPT = "What is the capital of France?"
ASK: dict[str, object] = {"text_input": PROMPT, "max_tokens": 12, "exclude_input_in_output": True}


def texts(server: RunningServer, model: str, **tensors: object) -> list[str]:
    return [response["text_output"][0].decode() for response in stream(server.url, model, ASK | tensors)]


def test_streamed_chunks_join_to_the_whole_response(simulated: RunningServer, model: str) -> None:
    whole = texts(simulated, model, stream=False)
    assert len(whole) == 1
    assert len(whole[0]) > 12
    streamed = texts(simulated, model, stream=True)
    assert len(streamed) > 1
    assert "".join(streamed) == whole[0]


def test_a_whole_response_has_the_prompt_unless_it_is_excluded(simulated: RunningServer, model: str) -> None:
    [whole] = texts(simulated, model, stream=False)
    [echoed] = texts(simulated, model, stream=False, exclude_input_in_output=False)
    assert echoed == PROMPT + whole
    without_option = {key: value for key, value in ASK.items() if key != "exclude_input_in_output"}
    [response] = stream(simulated.url, model, without_option)
    assert response["text_output"][0].decode() == echoed


def test_shapes_and_absent_outputs_are_upstreams(simulated: RunningServer, model: str) -> None:
    asked = {
        "stream": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_finish_reason": True,
    }
    responses = list(stream(simulated.url, model, ASK | asked))
    assert all(response["text_output"].shape == (1,) for response in responses)
    assert all(response["num_input_tokens"].shape == (1, 1) for response in responses)
    assert sum(response["num_output_tokens"][0][0] for response in responses) == 12
    assert [set(response) for response in stream(simulated.url, model, ASK)] == [{"text_output"}]
    assert all("finish_reason" not in response for response in responses[:-1])
    assert responses[-1]["finish_reason"] == np.array([[b"length"]])


def test_a_stop_string_ends_the_text_before_itself_and_counts_to_its_last_token(
    simulated: RunningServer, model: str
) -> None:
    [whole] = texts(simulated, model)
    stop = whole[10:14]
    asked = {"stop_words": [stop], "return_finish_reason": True, "return_num_output_tokens": True}
    for is_streaming in (True, False):
        responses = list(stream(simulated.url, model, ASK | asked | {"stream": is_streaming}))
        assert "".join(r["text_output"][0].decode() for r in responses) == whole[: whole.index(stop)]
        assert responses[-1]["finish_reason"][0][0] == b"stop_string"
        assert sum(r["num_output_tokens"][0][0] for r in responses) < 12


def test_as_many_stop_strings_as_a_request_may_have_are_all_looked_for(simulated: RunningServer, model: str) -> None:
    [whole] = texts(simulated, model)
    stop = whole[10:14]
    others = [f"@{number:015}" for number in range(4095)]
    for strings in ([stop, *others], [*others, stop]):
        assert texts(simulated, model, stop_words=strings) == [whole[: whole.index(stop)]]


def test_a_stop_string_in_an_echoed_prompt_does_not_cut_it(simulated: RunningServer, model: str) -> None:
    [echoed] = texts(simulated, model, exclude_input_in_output=False, stop_words=["capital"])
    assert echoed.startswith(PROMPT)
    assert len(echoed) > len(PROMPT)


def test_greedy_repeats_and_sampling_follows_its_seed(simulated: RunningServer, model: str) -> None:
    assert texts(simulated, model) == texts(simulated, model)
    first, again, other = (texts(simulated, model, top_p=0.9, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert texts(simulated, model, top_p=0.9, random_seed=1) == first  # the older name


def test_the_engine_step_serves_direct_callers_in_token_ids(simulated: RunningServer) -> None:
    request = engine_request([5, 6, 7], 6)
    streamed = list(stream(simulated.url, "tensorrt_llm", request))
    assert all(response["output_ids"].shape[:2] == (1, 1) for response in streamed)
    ids = [int(i) for response in streamed for i in response["output_ids"][0][0]]
    assert len(ids) == 6
    [whole] = stream(simulated.url, "tensorrt_llm", request | {"streaming": False, "exclude_input_in_output": True})
    assert whole["output_ids"][0][0].tolist() == ids
    assert whole["sequence_length"].tolist() == [[6]]
    assert set(whole) == {"output_ids", "sequence_length"}
    [echoed] = stream(simulated.url, "tensorrt_llm", request | {"streaming": False})
    assert echoed["output_ids"][0][0].tolist() == [5, 6, 7, *ids]


def test_a_direct_callers_stop_words_are_token_ids_and_match_on_text(simulated: RunningServer) -> None:
    request = engine_request([5, 6, 7], 30, streaming=False, exclude_input_in_output=True)
    [whole] = stream(simulated.url, "tensorrt_llm", request)
    ids = whole["output_ids"][0][0].tolist()
    words = np.array([[[ids[9], ids[10]], [2, -1]]], dtype=np.int32)
    [stopped] = stream(
        simulated.url, "tensorrt_llm", request | {"stop_words_list": words, "return_finish_reason": True}
    )
    assert stopped["finish_reason"][0][0] == b"stop_string"
    assert stopped["output_ids"][0][0].tolist() == ids[:11]


def test_tensor_values_survive_the_stub(simulated: RunningServer) -> None:
    # numpy 2 in the stub's environment would send every tensor with no bytes, and no error.
    [response] = stream(
        simulated.url,
        "preprocessing",
        {"QUERY": np.array([[b"hello"]], dtype=np.object_), "REQUEST_OUTPUT_LEN": np.array([[3]], dtype=np.int32)},
    )
    assert response["REQUEST_OUTPUT_LEN"].tolist() == [[3]]
    assert response["INPUT_ID"].size == response["REQUEST_INPUT_LEN"].item() > 1


BAD: dict[str, tuple[dict[str, object], str]] = {
    "top_p above 1": ({"top_p": 1.5}, "[INVALID_ARG field=top_p value=1.5] top_p must be 0 to 1"),
    "top_p below 0": ({"top_p": -0.1}, "[INVALID_ARG field=top_p value=-0.1]"),
    "negative temperature": ({"temperature": -1.0}, "[INVALID_ARG field=temperature value=-1.0]"),
    "temperature not a number": ({"temperature": float("nan")}, "[INVALID_ARG field=temperature value=nan]"),
    "max_tokens 0": ({"max_tokens": 0}, "[INVALID_ARG field=max_tokens value=0]"),
    "max_tokens negative": ({"max_tokens": -5}, "[INVALID_ARG field=max_tokens value=-5]"),
    "max_tokens beyond the limit": ({"max_tokens": 2048}, "[INVALID_ARG field=max_tokens value=2048]"),
    "negative top_k": ({"top_k": -1}, "[INVALID_ARG field=top_k value=-1]"),
    "empty prompt": ({"text_input": ""}, "[INVALID_ARG field=text_input] text_input is empty"),
    "prompt longer than the model": ({"text_input": "word " * 3000}, "[INVALID_ARG field=input_ids value="),
    "invalid UTF-8": ({"text_input": b"\xff\xfe"}, "[INVALID_ARG field=text_input"),
    "invalid UTF-8 in a stop string": ({"stop_words": [b"\xff"]}, "[INVALID_ARG field=stop_words"),
    "too many stop strings": (
        {"stop_words": [str(i) for i in range(4097)]},
        "[INVALID_ARG field=stop_words value=4097 max=4096",
    ),
    "wrong type": ({"max_tokens": np.array([[5.0]], dtype=np.float32)}, "data-type is 'FP32'"),
    "stop words that are numbers": ({"stop_words": np.array([[5]], dtype=np.int32)}, "data-type is 'INT32'"),
    "wrong shape": ({"max_tokens": np.array([[5, 6]], dtype=np.int32)}, "unexpected shape for input 'max_tokens'"),
    "a bias without its weight": (
        {"embedding_bias_words": ["x"]},
        "[INVALID_ARG field=embedding_bias_weights value=0] embedding_bias_words has 1 words",
    ),
    "what needs a model": (
        {"beam_width": 4},
        "[INVALID_ARG field=beam_width value=4 provider=simulated] beam_width (4) is not supported",
    ),
    "a penalty out of range": (
        {"presence_penalty": 2.5},
        "[INVALID_ARG field=presence_penalty value=2.5] presence_penalty must be -2 to 2",
    ),
    "both names with different values": ({"seed": 1, "random_seed": 2}, "contradicts"),
    "a tensor nobody knows": ({"colour": True}, "unexpected inference input 'colour'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_fails_alone_with_an_error_that_names_it(simulated: RunningServer, model: str, name: str) -> None:
    tensors, error = BAD[name]
    bystander = stream(simulated.url, model, ASK | {"stream": True})
    first = next(bystander)["text_output"][0].decode()
    with pytest.raises(StreamFailed) as failure:
        list(stream(simulated.url, model, ASK | tensors))
    assert error in str(failure.value)
    assert "Traceback" not in str(failure.value)
    assert first + "".join(r["text_output"][0].decode() for r in bystander) == texts(simulated, model)[0]


def test_values_that_ask_for_nothing_are_accepted_as_upstreams_clients_send_them(
    simulated: RunningServer, model: str
) -> None:
    always_sent = {
        "beam_width": 1,
        "temperature": 1.0,
        "top_p": 0.0,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "return_log_probs": False,
        "num_return_sequences": 1,
        "bad_words": "",
        "stop_words": "",
    }
    assert texts(simulated, model, **always_sent) == texts(simulated, model)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"max_tokens": 3, "top_p": 0.5}, "text_input"),
        ({"max_tokens": 3, "stop_words": "x"}, "text_input"),
        ({"text_input": "hi", "top_p": 0.5}, "max_tokens"),
        ({"stop_words": "x", "stream": True}, "text_input"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value,
)
def test_a_required_input_that_is_missing_is_named_whatever_else_is_there(
    simulated: RunningServer, model: str, given: dict[str, object], missing: str
) -> None:
    with pytest.raises(StreamFailed, match=rf"\[INVALID_ARG field={missing}\] {missing} is missing"):
        list(stream(simulated.url, model, given))


def test_without_any_input_of_the_first_step_it_is_an_error_too(simulated: RunningServer, model: str) -> None:
    with pytest.raises(StreamFailed, match=r"missing|request has 0 inputs"):
        list(stream(simulated.url, model, {"top_p": 0.5, "temperature": 0.5}))
