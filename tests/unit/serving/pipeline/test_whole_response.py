# SPDX-License-Identifier: Apache-2.0
"""The responses to one request as one: a row for each, padded, in order, and nothing of it lost."""

import numpy as np
import numpy.typing as npt
import pytest
from recording_tensor_sink import RecordingTensorSink

from serving.pipeline.whole_response import WholeResponse, joined_rows
from serving.requests.stream_state import StreamState, pack, unpack_final_states
from trireme.base.errors import RequestError, ServerError

Array = npt.NDArray[np.generic]


def ids(*token_ids: int) -> Array:
    return np.array([[token_ids]], dtype=np.int32)


def number(value: int, dtype: type = np.int32) -> Array:
    return np.array([[value]], dtype=dtype)


def text(*beams: bytes) -> Array:
    return np.array(beams, dtype=np.object_)


def test_a_single_response_stays_as_it_is() -> None:
    part = {"output_ids": ids(1, 2), "text_output": text(b"a", b"b")}
    assert joined_rows([part]) is part


def test_rows_are_in_the_order_of_prompts_and_of_their_sequences() -> None:
    parts = [
        {"output_ids": ids(prompt, of), "batch_index": number(prompt), "sequence_index": number(of)}
        for prompt, of in ((1, 0), (0, 1), (1, 1), (0, 0))
    ]
    joined = joined_rows(parts)
    assert joined["output_ids"].tolist() == [[[0, 0]], [[0, 1]], [[1, 0]], [[1, 1]]]
    assert joined["batch_index"].tolist() == [[0], [0], [1], [1]]
    assert joined["sequence_index"].tolist() == [[0], [1], [0], [1]]


def test_shorter_rows_are_padded_and_their_lengths_are_told() -> None:
    joined = joined_rows(
        [
            {"output_ids": ids(5, 6, 7), "output_log_probs": np.array([[[-1.0, -2.0, -3.0]]], np.float32)},
            {"output_ids": ids(8), "output_log_probs": np.array([[[-4.0]]], np.float32), "batch_index": number(1)},
        ]
    )
    assert joined["output_ids"].tolist() == [[[5, 6, 7]], [[8, -1, -1]]]
    assert joined["sequence_length"].tolist() == [[3], [1]]
    assert joined["output_log_probs"].tolist() == [[[-1.0, -2.0, -3.0]], [[-4.0, 0.0, 0.0]]]
    assert joined["output_log_probs"].dtype == np.float32


def test_what_only_one_row_asked_for_is_empty_in_the_others() -> None:
    joined = joined_rows(
        [
            {"text_output": text(b"a"), "num_input_tokens": number(7), "finish_reason": np.array([[b"stop"]], object)},
            {"text_output": text(b"b"), "batch_index": number(1)},
        ]
    )
    assert joined["num_input_tokens"].tolist() == [[7], [0]]
    assert joined["finish_reason"].tolist() == [[b"stop"], [b""]]


def test_texts_are_one_after_the_other_with_as_many_for_each_row() -> None:
    two, one = {"text_output": text(b"a", b"b")}, {"text_output": text(b"c"), "batch_index": number(1)}
    assert joined_rows([two, one])["text_output"].tolist() == [b"a", b"b", b"c", b""]


@pytest.mark.parametrize("num_prompt_tokens", [0, 0xC1, 0xC1C1])
def test_states_of_streams_come_out_of_their_padding(num_prompt_tokens: int) -> None:
    states = [StreamState(1, True, num_prompt_tokens), StreamState(0xC1, True, 3, ("a longer stop string",))]
    parts = [{"stream_state": pack(state), "batch_index": number(index)} for index, state in enumerate(states)]
    assert unpack_final_states(joined_rows(parts)["stream_state"]) == states


def test_a_state_that_is_not_final_or_not_ours_is_refused() -> None:
    rows = np.concatenate([pack(StreamState(1, True)), pack(StreamState(1, False))])
    for packed in (rows, np.zeros((2, 4), np.uint8)):
        with pytest.raises(RequestError, match="stream_state"):
            unpack_final_states(packed)


def test_a_request_has_one_response_at_its_end() -> None:
    sink = RecordingTensorSink()
    whole = WholeResponse(sink)
    assert whole.takes_one
    whole.send({"text_output": text(b"b"), "batch_index": number(1)}, is_final=False)
    assert sink.responses == []
    whole.send({"text_output": text(b"a"), "batch_index": number(0)}, is_final=True)
    [response] = sink.responses
    assert response["text_output"].tolist() == [b"a", b"b"]


def test_a_request_that_fails_on_its_way_has_its_error_alone() -> None:
    sink = RecordingTensorSink()
    whole = WholeResponse(sink)
    whole.send({"text_output": text(b"b"), "batch_index": number(1)}, is_final=False)
    whole.fail(ServerError("it broke"))
    assert sink.responses == []
    assert str(sink.error) == "[INTERNAL] it broke"
