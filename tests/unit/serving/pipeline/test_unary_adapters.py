# SPDX-License-Identifier: Apache-2.0
"""The adapters of a deployment with `decoupled: false`, on the fake stub: one response to each request."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from ensemble_by_hand import AdapterError, EnsembleByHand
from simulated_release import write_release
from test_adapters import PROMPT, array, question, text_of

Arrays = dict[str, npt.NDArray[np.generic]]
Answers = dict[str, Arrays]

PROMPTS = [b"What is the capital of France?", b"Once", b"one two three four five six seven"]


WHOLE = question(return_num_output_tokens=array(True, np.bool_), return_finish_reason=array(True, np.bool_))


@pytest.fixture(scope="module")
def decoupled_answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Return the answers of a decoupled deployment to `WHOLE`, without streaming; the deployment is closed again."""
    loaded = EnsembleByHand(write_release(tmp_path_factory.mktemp("repository")).parent.parent)
    answers = {model: loaded.ask(WHOLE, model)[0] for model in ("ensemble", "ensemble_graph", "tensorrt_llm_bls")}
    loaded.close()
    return answers


@pytest.fixture(scope="module")
def unary(tmp_path_factory: pytest.TempPathFactory, decoupled_answers: Answers) -> Iterator[EnsembleByHand]:
    assert decoupled_answers, "one repository after the other: the fake stub knows the models of one"
    loaded = EnsembleByHand(write_release(tmp_path_factory.mktemp("repository"), decoupled=False).parent.parent)
    yield loaded
    loaded.close()


@pytest.fixture(params=["ensemble", "ensemble_graph", "tensorrt_llm_bls"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def batch(**more: object) -> Arrays:
    """Return tensors with a row for each of PROMPTS."""
    rows = {
        "text_input": np.array([[prompt] for prompt in PROMPTS], dtype=np.object_),
        "max_tokens": np.array([[12], [3], [7]], dtype=np.int32),
        "exclude_input_in_output": np.array([[True], [False], [True]]),
    }
    return rows | {name: np.array([[value]] * len(PROMPTS)) for name, value in more.items()}


def alone(row: int, **more: object) -> Arrays:
    return {name: array[row : row + 1] for name, array in batch(**more).items()}


def test_a_request_has_the_response_that_a_decoupled_model_gives_at_once(
    unary: EnsembleByHand, decoupled_answers: Answers, model: str
) -> None:
    [response], expected = unary.ask(WHOLE, model), decoupled_answers[model]
    assert response.keys() == expected.keys()
    assert all(response[name].tolist() == expected[name].tolist() for name in expected)


def test_a_batch_has_a_row_for_each_prompt(unary: EnsembleByHand, model: str) -> None:
    more = {"return_num_output_tokens": True}
    [response] = unary.ask(batch(**more), model)
    expected = [unary.ask(alone(row, **more), model)[0] for row in range(len(PROMPTS))]
    assert response["text_output"].tolist() == [one["text_output"].item() for one in expected]
    assert response["batch_index"].tolist() == [[0], [1], [2]]
    assert response["num_output_tokens"].tolist() == [one["num_output_tokens"].tolist()[0] for one in expected]


def test_several_sequences_are_rows_that_say_whose_they_are(unary: EnsembleByHand, model: str) -> None:
    more = {"num_return_sequences": np.int32(2), "top_p": np.float32(1.0), "seed": np.uint64(7)}
    [response] = unary.ask(batch(**more), model)
    assert response["batch_index"].tolist() == [[0], [0], [1], [1], [2], [2]]
    assert response["sequence_index"].tolist() == [[0], [1]] * 3
    assert len(set(response["text_output"].tolist())) == 6


def test_stop_strings_end_each_row_at_its_own_place(unary: EnsembleByHand, model: str) -> None:
    [whole] = unary.ask(batch(), model)
    texts = [text.decode() for text in whole["text_output"].tolist()]
    stops = [texts[0][10:14], "never said", texts[2][4:8]]
    asked = batch() | {"stop_words": np.array([[stop.encode()] for stop in stops], dtype=np.object_)}
    [cut] = unary.ask(asked, model)
    assert [text.decode() for text in cut["text_output"].tolist()] == [
        text.partition(stop)[0] for text, stop in zip(texts, stops, strict=True)
    ]


def test_tokens_of_a_batch_are_padded_and_counted(unary: EnsembleByHand) -> None:
    asked = {
        "input_ids": np.array([[20, 21, 22], [30, 0, 0]], dtype=np.int32),
        "input_lengths": np.array([[3], [1]], dtype=np.int32),
        "request_output_len": np.array([[4], [2]], dtype=np.int32),
    }
    [response] = unary.ask_model("tensorrt_llm", asked)
    assert response["output_ids"].shape == (2, 1, 7)
    assert response["sequence_length"].tolist() == [[7], [3]]
    assert response["output_ids"][0, 0, :3].tolist() == [20, 21, 22]
    assert response["output_ids"][1, 0, 0] == 30
    assert response["output_ids"][1, 0, 3:].tolist() == [-1] * 4


@pytest.mark.parametrize(("asked_of", "name"), [("ensemble", "stream"), ("ensemble_graph", "stream")])
def test_a_stream_is_refused_by_the_name_that_the_client_knows(unary: EnsembleByHand, asked_of: str, name: str) -> None:
    with pytest.raises(AdapterError, match=rf"\[INVALID_ARG field={name} value=True\].*decoupled: false"):
        unary.ask(question(stream=array(True, np.bool_)), asked_of)


def test_a_stream_of_tokens_is_refused_by_its_own_name(unary: EnsembleByHand) -> None:
    asked = {
        "input_ids": array([20, 21], np.int32),
        "input_lengths": array(2, np.int32),
        "request_output_len": array(4, np.int32),
        "streaming": array(True, np.bool_),
    }
    with pytest.raises(AdapterError, match=r"\[INVALID_ARG field=streaming value=True\].*leave streaming out"):
        unary.ask_model("tensorrt_llm", asked)


def test_one_bad_prompt_of_a_batch_fails_the_request_and_is_named(unary: EnsembleByHand, model: str) -> None:
    asked = batch() | {"top_p": np.array([[0.5], [1.5], [0.5]], dtype=np.float32)}
    with pytest.raises(AdapterError, match=r"\[INVALID_ARG field=top_p value=1\.5 batch_index=1\]"):
        unary.ask(asked, model)


def test_the_steps_by_themselves_give_what_upstreams_client_reads_and_sends_on(unary: EnsembleByHand) -> None:
    # tools/inflight_batcher_llm/end_to_end_test.py, test_functionality_ifb.
    asked = {"QUERY": array(PROMPT.encode(), np.object_), "REQUEST_OUTPUT_LEN": array(8, np.int32)}
    empty = {"BAD_WORDS_DICT": array(b"", np.object_), "STOP_WORDS_DICT": array(b"", np.object_)}
    [prompt] = unary.ask_model("preprocessing", asked | empty)
    names = {"input_ids": "INPUT_ID", "decoder_input_ids": "DECODER_INPUT_ID", "input_lengths": "REQUEST_INPUT_LEN"}
    names |= {"request_output_len": "REQUEST_OUTPUT_LEN", "end_id": "OUT_END_ID", "pad_id": "OUT_PAD_ID"}
    [tokens] = unary.ask_model("tensorrt_llm", {name: prompt[made] for name, made in names.items()})
    assert tokens["output_ids"].shape[:2] == (1, 1)
    sent = {"TOKENS_BATCH": tokens["output_ids"], "SEQUENCE_LENGTH": tokens["sequence_length"]}
    [text] = unary.ask_model("postprocessing", sent)
    whole = unary.ask(question(exclude_input_in_output=array(False, np.bool_), max_tokens=array(8, np.int32)))
    assert text["OUTPUT"].item().decode() == text_of(whole)
